"""A run whose settings change while it runs, and one whose far memory the host's agent keeps."""

import json
import os
import signal
import subprocess
import sys
import time

from lib import canvas, procs
from lib.clients import Memcached, Redis, wait_socket
from lib.harness import MIB, ONCE, PATIENCE, TESTS, Failure, Skip, check
from lib.values import Values, Zipf

from . import hostile, servers

# 48 MiB of pages that are all different, all of them checked at the end.
HOLDER = """
import hashlib, sys, time
pages = [hashlib.sha512(b"%d" % i).digest() * 64 for i in range(12288)]
print("ready", flush=True)
while not sys.argv[1:] or not __import__("os").path.exists(sys.argv[1]):
    time.sleep(0.05)
for i, p in enumerate(pages):
    assert p == hashlib.sha512(b"%d" % i).digest() * 64, i
print("right", flush=True)
"""


def python():
    """The system's interpreter: an ordinary user may not be able to read the one that runs the tests."""
    return "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


def ask(r, *words):
    """Output of a canvas command, as JSON if it is."""
    done = subprocess.run([r.session.canvas, *words], capture_output=True, text=True, timeout=30)
    r.require(done.returncode in (0, 1), f"{words}: {done.stderr}")
    return done.stdout


def wait_until(r, what, probe, timeout_s=60, state=None):
    """Returns the result of `probe` once that is true. On a timeout the message has the result of `state` as well."""
    timeout_s *= PATIENCE
    end = time.monotonic() + timeout_s
    while True:
        got = probe()
        if got:
            return got
        if time.monotonic() >= end:
            raise Failure(f"{what}: not after {timeout_s} s{f': {state()}' if state else ''}")
        time.sleep(0.1)


# Least local memory once the holder's pages are back: more than what a limit of 24 MiB could hold with the rest.
CAME_BACK = 52 * MIB


def local_bytes(r, name):
    return json.loads(ask(r, "status", name, "--json"))["used"]["local_bytes"]


@check("raise-local", normal=ONCE, timeout_s=150)
def raise_local(r):
    """`canvas set NAME local=`: raised, pages come back before they are touched; lowered, pages are evicted."""
    if not r.managed:
        return
    name, end = f"holder{os.getpid()}", r.path("end")
    c = r.start([sys.executable, "-c", HOLDER, end], tag="holder", local=24 * MIB, pool=64 * MIB,
                extra=["--tenant", name])
    wait_until(r, "the program is ready", lambda: "ready" in c.out() or not c.alive())

    def local():
        return local_bytes(r, name)

    r.require(local() <= 24 * MIB, f"{local()} bytes are local at 24 MiB")
    ask(r, "set", name, "local=200M")
    wait_until(r, "pages come back by themselves", lambda: local() > CAME_BACK)
    ask(r, "set", name, "local=24M")
    wait_until(r, "pages leave", lambda: local() <= 24 * MIB)
    open(end, "w").close()
    r.wait(c, timeout_s=60)
    r.require("right" in c.out(), f"no closing line\n{c.tail()}")
    stats = r.load_stats(c)
    came = canvas.find(stats, "pages_in_proactive")
    r.require(came >= 6000, f"stats: pages_in_proactive = {came}")
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
    r.note(f"{came} pages came back")


@check("raise-local-late", timeout_s=150, modes=("signal",))
def raise_local_late(r):
    """The limit is raised before the background thread has run once: it notices the raise nevertheless."""
    if not r.managed:
        return
    name, end, looks = f"late{os.getpid()}", r.path("end"), r.path("looks")
    tracer = [sys.executable, os.path.join(TESTS, "py", "late_thread.py"), looks, sys.executable]
    c = r.start([sys.executable, "-c", HOLDER, end], tag="holder", local=24 * MIB, pool=64 * MIB,
                extra=["--tenant", name], prefix=tracer)
    wait_until(r, "the program is ready", lambda: "ready" in c.out() or not c.alive())
    if "ptrace is not allowed" in c.tail():
        raise Skip("ptrace is not allowed here")
    ask(r, "set", name, "local=200M")
    r.require(local_bytes(r, name) <= 28 * MIB, "the background thread has run already: the order was not forced")
    open(looks, "w").close()
    wait_until(r, "pages come back by themselves", lambda: local_bytes(r, name) > CAME_BACK)
    open(end, "w").close()
    r.wait(c, timeout_s=60)
    r.require("right" in c.out(), f"no closing line\n{c.tail()}")


def replaced_and_killed(r, first, agent):
    """Far memory at a host's agent outlives the agent, which is replaced, and whose successor is killed. `agent`
    starts one with further flags; returns the last of them."""
    second = agent("--replace")
    r.wait(first, expect=0, timeout_s=20)
    time.sleep(1)
    second.signal(signal.SIGKILL)
    r.wait(second, expect=-9, timeout_s=20)
    return agent()


def outlived(r, threads):
    """Two programs' far memory with one `canvas agent`, which is replaced and killed meanwhile: `threads` are the
    flags of the three agents."""
    socket = r.path("agent.sock")
    flags = iter(threads)

    def agent(*more):
        return r.start([r.session.canvas, "agent", "--socket", socket, "--to", f"disk:{r.dir}", *next(flags), *more],
                       tag=f"agent{len(r.children)}", canvas_on=False)

    first = agent()
    wait_until(r, "the agent listens", lambda: os.path.exists(socket))
    flags_of_run = ["--far", "1G", f"--to=agent:{socket}"]
    runs = [r.start([r.binary("hammer"), 11, 2, r.size(2500, 4000), 96, "no-fork"], tag="hammer", local=16 * MIB,
                    pool=4 * MIB, extra=flags_of_run),
            r.start([r.binary("mem"), "leaf", r.size(64, 96)], tag="leaf", local=12 * MIB, pool=3 * MIB, extra=flags_of_run)]
    time.sleep(1)
    third = replaced_and_killed(r, first, agent)
    for c in runs:
        r.wait(c, timeout_s=120)
        stats = r.load_stats(c)
        r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
        r.require(canvas.find(stats, "pages_demoted") > 0, f"{c.argv}: nothing went to the agent")
    r.stop(third, expect=0)


@check("host-agent", timeout_s=200, modes=("signal",), slow_only=True, **hostile.C)
def host_agent(r):
    """Two programs' far memory with one `canvas agent`, which is replaced and killed meanwhile."""
    if r.managed:
        outlived(r, [[], [], []])


@check("host-agent-threads", timeout_s=200, modes=("signal",), **hostile.C)
def host_agent_threads(r):
    """Agents with two serving threads, then one, then three; and an invalid number."""
    if not r.managed:
        return
    for wrong in ("0", "65", "few"):
        done = subprocess.run([r.session.canvas, "agent", "--socket", r.path("no.sock"), "-o", f"threads={wrong}"],
                              capture_output=True, text=True, timeout=30)
        r.same((done.returncode, done.stdout), (2, ""), f"threads={wrong}")
        r.require("write auto, or a number from 1 to 64" in done.stderr, f"what it says: {done.stderr}")
    outlived(r, [["-o", "threads=2"], ["-o", "threads=1"], ["-o", "threads=3"]])


def sum_of_local_bytes(children):
    """Anonymous memory of all processes of these runs, without their pools, in one sample."""
    pids = procs.memories([pid for c in children if c.alive() for pid in procs.tree(c.pid, False)])
    before = procs.pool_bytes(pids)
    return procs.anon_bytes(pids) - max(before, procs.pool_bytes(pids))


def agent_of(r):
    """Starts a host agent for this test; returns it and the flags with which runs find it."""
    socket = r.path("agent.sock")
    r.start([r.session.canvas, "agent", "--socket", socket, "--to", f"disk:{r.dir}"], tag="agent", canvas_on=False)
    wait_until(r, "the agent listens", lambda: os.path.exists(socket))
    return ["--far", "512M", f"--to=agent:{socket}", "--tenant", f"joint{os.getpid()}"]


@check("joined-tenant", timeout_s=300, modes=("signal",), needs=hostile.no_compiler)
def joined_tenant(r):
    """Separate programs in one tenant: one limit for their sum; killing one does not end the others."""
    if not r.managed:
        return
    flags, end = agent_of(r), r.path("end")
    # A third of their memory.
    local, held = 30 * MIB, HOLDER.replace("12288", "6144")

    def start(argv, tag):
        return r.start(argv, tag=tag, local=local, pool=6 * MIB, extra=flags)

    # The first program creates the tenant, and ends before the others do.
    first = start([r.binary("mem"), "leaf", r.size(32, 64)], "leaf")
    victim = start([sys.executable, "-c", held, end], "victim")
    holder = start([sys.executable, "-c", held, end], "holder")
    sums = []

    def look(runs=(first, victim, holder)):
        sums.append(sum_of_local_bytes(runs))
        return runs

    def ready():
        return all("ready" in c.out() or not c.alive() for c in look()[1:])

    wait_until(r, "the programs have their memory", ready, timeout_s=90)
    pids = procs.tree(victim.pid, False)
    r.require(len(pids) == 1, f"{pids}: there is one victim")
    os.kill(pids[0], signal.SIGKILL)
    r.wait(victim, expect=137, timeout_s=20)

    def swept():
        lines = ask(r, "status", flags[-1], "--json").splitlines()
        return all(pids[0] not in json.loads(line)["processes"] for line in lines)

    wait_until(r, "the dead are swept", swept)
    while first.alive():
        look()
        time.sleep(0.1)
    r.wait(first, timeout_s=90)
    r.require(max(sums) <= local + canvas.slack_bytes(local), f"{max(sums) / MIB:.1f} MiB at one time")
    r.note(f"{max(sums) / MIB:.1f} of {local / MIB:.0f} MiB at most")
    # A family of another run in the tenant, with forks that share far memory.
    r.wait(start([r.binary("hammer"), 11, 2, r.size(800, 4000), r.size(24, 48)], "hammer"), timeout_s=120)
    open(end, "w").close()
    r.wait(holder, timeout_s=90)
    r.require("right" in holder.out(), f"no closing line\n{holder.tail()}")
    last = r.load_stats(holder)
    r.same(canvas.find(last, "verify_failures"), 0, "verify_failures")
    r.same(canvas.find(last, "beyond_pool_failures"), 0, "beyond_pool_failures")
    r.require(canvas.find(last, "pages_demoted") > 0, "nothing went to the agent")
    r.require(canvas.find(last, "forks") > 0, "nobody forked")


# Incompressible pages, read all the time, and checked at the end.
RESIDENT = """
import hashlib, os, sys, time
page = lambda i: hashlib.shake_128(b"%d" % i).digest(4000)
pages = [page(i) for i in range(6144)]
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    sum(p[2000] for p in pages)
    time.sleep(0.1)
for i, p in enumerate(pages):
    assert p == page(i), i
print("right", flush=True)
"""


# Slow: proactive swap-in left pages far for a minute in one run of four.
@check("joined-pool", timeout_s=150, modes=("signal",), needs=hostile.no_compiler, slow_only=True)
def joined_pool(r):
    """A pool full of copies of local pages: it follows its limit, and other programs of the tenant can use it."""
    if not r.managed:
        return
    flags, end = agent_of(r), r.path("end")
    name = flags[-1]
    idle = r.start([sys.executable, "-c", RESIDENT, end], tag="idle", local=16 * MIB, pool=8 * MIB,
                   extra=flags)
    wait_until(r, "the program is ready", lambda: "ready" in idle.out() or not idle.alive())

    def used():
        return json.loads(ask(r, "status", name, "--json").splitlines()[0])["used"]

    # All pages come back, and their copies stay.
    ask(r, "set", name, "local=72M")
    wait_until(r, "pages come back", lambda: used()["far_pages_bytes"] < 4 * MIB)
    r.require(used()["pool_bytes"] > 4 * MIB, f"no copies are in the pool: {used()}")
    ask(r, "set", name, "pool=3M")
    wait_until(r, "copies leave the pool", lambda: used()["pool_bytes"] <= 3 * MIB)
    r.require(used()["resident_bytes"] > 24 * MIB, f"its pages left instead: {used()}")
    other = r.start([r.binary("mem"), "leaf", 96], tag="other", local=72 * MIB, pool=3 * MIB, extra=flags)
    r.wait(other, timeout_s=90)
    open(end, "w").close()
    r.wait(idle, timeout_s=30)
    r.require("right" in idle.out(), f"no closing line\n{idle.tail()}")
    for c in (idle, other):
        r.same(c.err().count("full: reclaim stops"), 0, f"pool or far memory reported full by {c.argv}")
    stats = r.load_stats(idle)
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
    dropped = canvas.find(stats, "pool_copies_dropped")
    r.require(dropped > 500, f"stats: pool_copies_dropped = {dropped}")


@check("joined-servers", timeout_s=200, modes=("signal",), as_user=True,
       needs=servers.missing("redis-server", "memcached"))
def joined_servers(r):
    """redis and memcached in one tenant, every value verified; one ends, and the other gets its memory."""
    if not r.managed:
        return
    flags, n = agent_of(r), r.size(12_000, 30_000)
    values, local, pool = Values(5, 1000), r.size(16, 24) * MIB, r.size(4, 8) * MIB
    home, paths = r.path("redis.d"), [r.path("redis.sock"), r.path("memcached.sock")]
    os.mkdir(home)
    argvs = [["redis-server", "--port", "0", "--unixsocket", paths[0], "--unixsocketperm", "777", "--save", "",
              "--appendonly", "no", "--dir", home],
             ["memcached", "-t", "4", "-m", "256", "-s", paths[1], "-a", "777", "-c", "64"]]
    if r.user:
        os.chown(home, r.user.pw_uid, r.user.pw_gid)
    runs = []
    for argv, path in zip(argvs, paths):
        runs.append(r.start(argv, tag=argv[0], local=local, pool=pool, extra=flags))
        wait_socket(path, runs[-1], timeout_s=60)
    redis, cached = Redis(paths[0]), Memcached(paths[1])
    for at in range(0, n, 100):
        cached.set_many([(b"key:%d" % k, values.get(k, 0)) for k in range(at, at + 100)])
        for answer in redis.pipeline((b"SET", b"key:%d" % k, values.get(k, 0)) for k in range(at, at + 100)):
            r.require(answer == b"OK", f"SET: {answer}")
    r.require(sum_of_local_bytes(runs) <= local + canvas.slack_bytes(local), "the sum is over the limit")
    zipf = Zipf(n, seed=9)
    for _ in range(r.size(100, 300)):
        keys = {zipf.next() for _ in range(50)}
        found = cached.get_many([b"key:%d" % k for k in keys])
        for k in keys:
            r.require(found.get(b"key:%d" % k) == values.get(k, 0), f"memcached, key {k}")
        for k, got in zip(sorted(keys), redis.pipeline((b"GET", b"key:%d" % k) for k in sorted(keys))):
            r.require(got == values.get(k, 0), f"redis, key {k}")
    cached.close()
    r.stop(runs[1], signal.SIGTERM, timeout_s=60)
    servers.redis_verify(redis, values, [0] * n, "when it is alone")
    redis.close()
    r.stop(runs[0], signal.SIGTERM, expect=0, timeout_s=60)
    stats = r.load_stats(runs[0])
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
    r.require(canvas.find(stats, "pages_demoted") > 0, "nothing went to the agent")


# Incompressible pages, read in random order or left alone until a file exists, then all checked.
SWAPPER = """
import hashlib, os, random, sys, time
end, n, busy = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "busy"
page = lambda i: hashlib.shake_128(b"%d" % i).digest(4096)
pages, draw = [page(i) for i in range(n)], random.Random(7)
print("ready", flush=True)
while not os.path.exists(end):
    if busy:
        i = draw.randrange(n)
        assert pages[i] == page(i), i
    else:
        time.sleep(0.05)
for i in range(n):
    assert pages[i] == page(i), i
print("right", flush=True)
"""


@check("elastic-pools", timeout_s=300, modes=("signal",), slow_only=True)
def elastic_pools(r):
    """One pool for two programs: the one that swaps gets the idle one's part, and all of it afterwards."""
    if not r.managed:
        return
    socket = r.path("agent.sock")
    r.start([r.session.canvas, "agent", "--socket", socket, "--to", f"disk:{r.dir}", "--pool", "64M"], tag="agent",
            canvas_on=False)
    wait_until(r, "the agent listens", lambda: os.path.exists(socket))
    ends = {}

    def start(what, mib):
        name = f"{what}{os.getpid()}"
        ends[name] = r.path(f"{what}.end")
        argv = [sys.executable, "-c", SWAPPER, ends[name], mib * 256, what]
        c = r.start(argv, tag=what, local=24 * MIB, pool=256 * MIB,
                    extra=["--far", "512M", f"--to=agent:{socket}", "--tenant", name])
        wait_until(r, f"{what} is ready", lambda: "ready" in c.out() or not c.alive(), timeout_s=90)
        return c, name

    def status(name):
        return json.loads(ask(r, "status", name, "--json"))

    def grant(name):
        return status(name)["limits"]["pool_grant_bytes"]

    def end(c, name):
        open(ends[name], "w").close()
        r.wait(c, timeout_s=90)
        r.require("right" in c.out(), f"no closing line\n{c.tail()}")
        stats = r.load_stats(c)
        for what in ("verify_failures", "beyond_pool_failures"):
            r.same(canvas.find(stats, what), 0, what)
        r.require(canvas.find(stats, "pages_demoted") > 0, f"{name}: nothing left its pool")

    idle, idles = start("idle", 64)
    r.require(grant(idles) == 62 * MIB, f"alone it is granted {grant(idles)}")
    before = status(idles)["used"]["pool_bytes"]
    r.require(before > 30 * MIB, f"{before} bytes are in its pool")
    busy, busys = start("busy", 128)
    began = time.monotonic()

    def moved():
        first, other = grant(idles), grant(busys)
        least = min(first, grant(idles))
        r.require(least + other <= 64 * MIB, f"{least} and {other} are more than the pool")
        return least <= 10 * MIB and other >= 50 * MIB

    wait_until(r, "slabs go to the busy one", moved, timeout_s=90)
    took = time.monotonic() - began
    r.require(grant(idles) >= 8 * MIB, "the idle one is below its floor")
    wait_until(r, "the idle one writes its pages out", lambda: status(idles)["used"]["pool_bytes"] <= 10 * MIB)
    end(idle, idles)
    wait_until(r, "the busy one has all", lambda: grant(busys) == 62 * MIB)
    end(busy, busys)
    r.note(f"the idle one's slabs were the busy one's after {took:.0f} s")
