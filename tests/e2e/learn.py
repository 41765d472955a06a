"""`-o learn`: pages that a program needed when it resumed are prefetched when it resumes again, in this run or a
later one."""

import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

from lib import canvas
from lib.clients import Redis, wait_socket
from lib.harness import MIB, ONCE, TESTS, Skip, check
from lib.values import Values

from .operate import ask, local_bytes, wait_until

# Pages that are all different. For each line of input, reads and checks the pages it names, in the program or in a
# child.
PROGRAM = """
import hashlib, mmap, os, random, sys, time
n = int(sys.argv[1])
m = mmap.mmap(-1, n * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
page = lambda i: hashlib.shake_128(b"%d" % i).digest(1024) * 4
for i in range(n):
    m[i * 4096:i * 4096 + 4096] = page(i)
pages = {"all": random.Random(5).sample(range(n), n), "other": random.Random(6).sample(range(n), n)}
pages["first"], pages["last"] = pages["all"][:n // 2], pages["all"][n // 2:]
print("ready", flush=True)
def touch(what):
    began, sum = time.monotonic(), 0
    for i in pages[what]:
        sum += m[i * 4096]
    took = time.monotonic() - began
    for i in pages[what]:
        if m[i * 4096:i * 4096 + 4096] != page(i):
            sys.exit(f"page {i} is wrong")
    return took
for line in sys.stdin:
    what = line.strip()
    if what == "fork":
        child = os.fork()
        if child == 0:
            touch("last")
            os._exit(0)
        took = touch("first")
        if os.waitpid(child, 0)[1]:
            sys.exit("the child is wrong")
    else:
        took = touch(what)
    print("touched", int(took * 1e6), flush=True)
print("right", flush=True)
"""
# Far more than the pages that stay local while it is idle, which the first resumption cannot learn.
PAGES = 16384
LOCAL, LEAST = 160 * MIB, 8 * MIB


class Resuming:
    """A program under `-o learn` that is made idle before each resumption: all its pages are evicted."""

    def __init__(self, r, argv, tag, learn=None, local=LOCAL, least=LEAST, pool=512 * MIB, flags=()):
        self.r, self.name, self.local, self.least = r, f"{tag}{os.getpid()}", local, least
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        extra = ["--tenant", self.name, "-o", "proactive-threshold=off", "--metrics", f"127.0.0.1:{self.port}"]
        extra += ["-o", f"learn={learn}"] if learn else []
        extra += flags
        # This end keeps the pipe open until the last resumption.
        self.out, self.into = os.pipe()
        self.c = r.start(argv, tag=tag, local=local, pool=pool, extra=extra, stdin=self.out)
        os.close(self.out)

    def counters(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return {name: int(n) for name, n in re.findall(r"^canvas_(\w+)_total\S* (\d+)$", text, re.M)}

    def says(self, word, times=1):
        wait_until(self.r, f"the program says {word}",
                   lambda: self.c.out().count(word) >= times or not self.c.alive())
        self.r.require(self.c.out().count(word) >= times, f"it does not say {word}\n{self.c.tail()}")

    def idle(self):
        """Evicts all pages, and makes room again; then pauses for as long as a resumption requires."""
        ask(self.r, "set", self.name, f"local={self.least}")
        wait_until(self.r, "pages leave", lambda: local_bytes(self.r, self.name) <= self.least)
        ask(self.r, "set", self.name, f"local={self.local}")
        time.sleep(1.2)

    def resume(self, touch):
        """Counts of one resumption, which `touch` starts."""
        self.idle()
        before = self.counters()
        touch()
        # The end is noticed, and the recording kept.
        time.sleep(0.6)
        after = self.counters()
        return {name: after[name] - before[name] for name in after}

    def best(self, touch, faults_max):
        """The best of up to three resumptions: if this host takes the processors away for half a second, the
        resumption counts as over and another begins."""
        counts = []
        while not counts or counts[-1]["faults_far"] > faults_max and len(counts) < 3:
            counts.append(self.resume(touch))
        return min(counts, key=lambda c: c["faults_far"])

    def line(self, what):
        done = self.c.out().count("touched")
        os.write(self.into, what.encode() + b"\n")
        self.says("touched", done + 1)

    def end(self):
        os.close(self.into)
        self.r.wait(self.c, timeout_s=60)
        self.r.require("right" in self.c.out(), f"no closing line\n{self.c.tail()}")
        return self.judge()

    def judge(self):
        stats = self.r.load_stats(self.c)
        wrong = [canvas.find(stats, key) for key in ("verify_failures", "anomalies")]
        self.r.same(wrong, [0, 0], "verify failures, anomalies")
        return stats


def python(r, tag, learn=None, pages=PAGES, **how):
    p = Resuming(r, [sys.executable, "-c", PROGRAM, pages], tag, learn, **how)
    p.says("ready")
    return p


def few(r, what, first, then, part):
    """Checks that far faults are at most `percent` % of the first resumption's."""
    said = f"{what}: {then['faults_far']} far faults, {first['faults_far']} before; {then['learn_pages_in']} came ahead"
    said += f", {then['learn_replays']} replays, {then['learn_stopped']} stopped"
    r.require(then["faults_far"] * 100 <= first["faults_far"] * part, said)
    r.note(said)


def judge_run(r, first, counts, least, part):
    """Checks two resumptions of a run: in the first run (`first` is None) the second is compared with the first
    one, in a later run the first one with `first`. Returns the figures to compare later runs with."""
    if first is None:
        first = counts[0]
        r.require(first["faults_far"] >= least, f"{first['faults_far']} far faults: the test shows nothing")
        few(r, "again", first, counts[1], part)
    else:
        few(r, "in a later run", first, counts[0], 50)
    return first


@check("learn-python", timeout_s=150, normal=ONCE)
def learn_python(r):
    """The second resumption has a tenth of the far faults; so has the first one of a later run, from the file."""
    if not r.managed:
        return
    book = r.path("book")
    p = python(r, "learn", book)
    first = p.resume(lambda: p.line("all"))
    r.require(first["faults_far"] >= PAGES * 9 // 10, f"{first['faults_far']} far faults: the test shows nothing")
    r.same(first["learn_pages_in"], 0, "pages by a recording that nobody has made")
    then = p.best(lambda: p.line("all"), first["faults_far"] // 10)
    few(r, "again", first, then, 10)
    stats = p.end()
    r.require(canvas.find(stats, "learn")["recordings"] >= 1, f"{canvas.find(stats, 'learn')}")
    p = python(r, "rerun", book)
    few(r, "in a later run", first, p.resume(lambda: p.line("all")), 50)
    r.require(canvas.find(p.end(), "learn")["loaded"] >= 1, "nothing was loaded")


@check("learn-far", timeout_s=150, slow_only=True)
def learn_far(r):
    """Most pages have been demoted to the disk: they are requested ahead, and come from there."""
    if not r.managed:
        return
    p = python(r, "far", r.path("book"), PAGES // 2, pool=8 * MIB,
               flags=["--far", "512M", "--to", f"disk:{r.dir}", "--copies", "disk"])
    first = p.resume(lambda: p.line("all"))
    r.require(first["faults_beyond_pool"] >= 1000, f"{first['faults_beyond_pool']} waited for the disk: the test shows nothing")
    then = p.best(lambda: p.line("all"), first["faults_far"] * 15 // 100)
    few(r, "again", first, then, 15)
    r.require(then["faults_beyond_pool"] * 5 <= first["faults_beyond_pool"],
              f"{then['faults_beyond_pool']} waited for the disk, {first['faults_beyond_pool']} before")
    p.end()


@check("learn-other", timeout_s=150, normal=ONCE)
def learn_other(r):
    """A program that resumes with the other half of its memory gets few useless pages, and its new pages are
    learned."""
    if not r.managed:
        return
    p = python(r, "other", r.path("book"))
    p.resume(lambda: p.line("first"))
    last = p.resume(lambda: p.line("last"))
    r.require(last["learn_pages_in"] <= 2500, f"{last['learn_pages_in']} pages of another phase came in")
    r.require(last["faults_far"] >= PAGES * 4 // 10, f"{last['faults_far']} far faults: the test shows nothing")
    for name, what in (("the first phase", "first"), ("the second phase", "last")):
        few(r, name, last, p.best(lambda what=what: p.line(what), last["faults_far"] // 5), 20)
    p.end()


@check("learn-fork", timeout_s=150, slow_only=True)
def learn_fork(r):
    """A fork in the middle: parent and child read a half each, with a recording of both; no byte is wrong."""
    if not r.managed:
        return
    p = python(r, "fork", r.path("book"), pages=6000)
    for what in ("all", "fork", "all", "fork"):
        p.resume(lambda what=what: p.line(what))
    p.end()


@check("learn-redis", slow_only=True, timeout_s=200)
def learn_redis(r):
    """redis: all keys are read after an eviction, in another order each time, and every value is right."""
    if not r.managed:
        return
    if not shutil.which("redis-server"):
        raise Skip("redis-server is not installed")
    values, n, sock, book = Values(3, 1000), 100000, r.path("redis.sock"), r.path("book")
    first = None
    for tag in ("redis", "rerun"):
        p = Resuming(r, ["redis-server", "--port", 0, "--unixsocket", sock, "--save", "", "--appendonly", "no"], tag, book,
                     least=8 * MIB)
        wait_socket(sock, p.c)
        client = Redis(sock)
        list(client.pipeline((b"SET", b"key:%d" % k, values.get(k, 0)) for k in range(n)))

        def read(step):
            # At random: ordinary prefetch would find adjacent keys as well.
            keys = random.Random(step).sample(range(n), n)
            for k, got in zip(keys, client.pipeline((b"GET", b"key:%d" % k) for k in keys)):
                r.require(got == values.get(k, 0), f"key {k}")

        counts = [p.resume(lambda step=step: read(step)) for step in (1, 2)]
        first = judge_run(r, first, counts, 5000, 10)
        client.close()
        os.close(p.into)
        r.stop(p.c, expect=0)
        p.judge()


@check("learn-java", slow_only=True, timeout_s=200)
def learn_java(r):
    """A JVM, whose threads and collector fault as well."""
    if not r.managed:
        return
    if not shutil.which("javac"):
        raise Skip("no JDK (tests/packages.txt)")
    done = subprocess.run(["javac", "-d", r.dir, os.path.join(TESTS, "java", "Resume.java")], capture_output=True, text=True)
    r.require(done.returncode == 0, done.stderr)
    book, first = r.path("book"), None
    for tag in ("java", "rerun"):
        argv = ["java", "-Xshare:auto", "-XX:-UsePerfData", "-XX:+UseSerialGC", "-Xms256m", "-Xmx256m", "-cp", r.dir,
                "Resume", 128]
        p = Resuming(r, argv, tag, book, local=500 * MIB, least=24 * MIB)
        p.says("ready")
        counts = [p.resume(lambda: p.line("all")) for _ in range(2)]
        first = judge_run(r, first, counts, 3000, 20)
        p.end()


@check("learn-file", timeout_s=100, modes=("signal",))
def learn_file(r):
    """A file of another kind is refused and stays; a damaged recording is reported and overwritten."""
    if not r.managed:
        return

    def run(path, *more):
        return subprocess.run([r.session.canvas, "run", "--local", "64M", "-o", f"learn={path}", *more, "--", "true"],
                              capture_output=True, text=True, timeout=30)

    def whole():
        with open(book, "rb") as f:
            return f.read()

    mine, book = r.write("mine", "important\n"), r.path("book")
    done = run(mine)
    r.require(done.returncode == 125 and "would be overwritten" in done.stderr, f"{done}")
    with open(mine) as f:
        r.same(f.read(), "important\n", "the file")
    for path in (r.path("no/such"), r.dir):
        done = run(path)
        r.require(done.returncode == 125 and done.stderr.count("\n") == 1, f"{path}: {done}")
    p = python(r, "file", book, pages=4000)
    p.resume(lambda: p.line("all"))
    # Written while the program runs.
    wait_until(r, "the file is there", lambda: os.path.exists(book), timeout_s=10)
    p.end()
    good = whole()
    damages = {"cut": good[:-7], "changed": good[:200] + bytes([good[200] ^ 1]) + good[201:], "long": good + b"x" * (2 << 20),
               "another version": good[:8] + b"\x09" + good[9:]}
    for what, bytes_ in damages.items():
        with open(book, "wb") as f:
            f.write(bytes_)
        done = run(book)
        r.require(done.returncode == 0 and "it is overwritten" in done.stderr and done.stderr.count("\n") == 1, f"{what}: {done}")
    p = python(r, "anew", book, pages=4000)
    p.resume(lambda: p.line("all"))
    p.end()
    r.require(b"CANVASLR" == whole()[:8] and len(whole()) > 100, "it was not overwritten")
    r.same(sorted(f for f in os.listdir(r.dir) if f.endswith(".tmp")), [], "files left behind")
