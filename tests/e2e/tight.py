"""A limit that is tight for several processes, or below what they need at all. These tests show that a run ends
within the runner's patience; `lab run tight` measures the speed."""

import json
import os
import re
import subprocess
import sys
import time

from lib import canvas, procs
from lib.harness import MIB, ONCE, TESTS, check

from . import hostile
from .operate import wait_until

CROWD = [sys.executable, os.path.join(TESTS, "py", "crowd.py")]


def status(r, name):
    done = subprocess.run([r.session.canvas, "status", name, "--json"], capture_output=True, text=True, timeout=30)
    r.require(done.returncode in (0, 1), f"status: {done.stderr}")
    return json.loads(done.stdout)


@check("tight-ten", timeout_s=150)
def tight_ten(r):
    """Ten processes at a limit that leaves each some 4 MiB, with Python: all of them finish."""
    if not r.managed:
        return
    c = r.start([*CROWD, 10, 4], tag="ten", local=48 * MIB, pool=128 * MIB)
    r.wait(c, timeout_s=120)
    r.require("crowd right" in c.out(), f"no closing line\n{c.tail()}")
    stats = r.load_stats(c)
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
    r.require(canvas.find(stats, "pages_out") > 0, "it never paged: the test shows nothing")


@check("tight-hopeless", timeout_s=200, normal=ONCE)
def tight_hopeless(r):
    """Ten processes at a limit below the memory that cannot be paged: they go on, and status and report name a
    sufficient limit."""
    if not r.managed:
        return
    name, end = f"tight{os.getpid()}", r.path("end")
    c = r.start([*CROWD, 10, 2, end], tag="hopeless", local=12 * MIB, pool=128 * MIB, extra=["--tenant", name])
    wait_until(r, "each has made progress", lambda: "all have made a turn" in c.out() or not c.alive(), 120)

    def problem():
        return next((p for p in status(r, name)["health"] if p["code"] == "C013"), None)

    told = wait_until(r, "C013 is told", problem, 20)
    r.same(told["name"], "local-too-small", "name")
    needed = wait_until(r, "what is needed is told", lambda: status(r, name)["limits"]["local_needed_bytes"], 20)
    r.require(12 * MIB < needed <= 100 * MIB, f"{needed} bytes would do")
    # With that limit and some more the warning ends.
    subprocess.run([r.session.canvas, "set", name, "local=200M"], check=True, timeout=30)
    wait_until(r, "C013 is over", lambda: problem() is None, 20)
    open(end, "w").close()
    r.wait(c, timeout_s=60)
    r.require("crowd right" in c.out(), f"no closing line\n{c.tail()}")
    stats = r.load_stats(c)
    r.require(stats["limits"]["local_needed_bytes"] >= needed - MIB, f"report: {stats['limits']}")
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")


@check("tight-siblings", timeout_s=60, **hostile.C)
def tight_siblings(r):
    """A sleeping process loses its pages before a busy one loses any, even if the busy one's are older."""
    if not r.managed:
        return
    # If the sleeper's reclaim thread gets no processor for 2 ms, the busy process is reclaimed from: the best of
    # three tries is that of an uncrowded machine. Without ages no try is good.
    tries = []
    while not tries or (min(tries) >= 100 and len(tries) < 3):
        c = r.call([r.binary("siblings"), 24, 32, 24], tag=f"siblings{len(tries)}", local=72 * MIB, pool=128 * MIB)
        r.require("siblings right" in c.out(), f"no closing line\n{c.tail()}")
        lost = dict(re.findall(r"(busy|idle) lost (\d+) of", c.err()))
        r.note(f"lost {lost}")
        tries.append(int(lost["busy"]))
    r.require(min(tries) < 100, f"the busy one lost {lost['busy']} pages")
    r.require(int(lost["idle"]) > 8 * 256, f"the idle one lost {lost['idle']} pages")


@check("tight-asleep", timeout_s=90, normal=ONCE, **hostile.C)
def tight_asleep(r):
    """A sleeping process with pages in the swap cache only is asked for them, and does not poll."""
    if not r.managed:
        return
    used = []
    while not used or (min(used) >= 1.6 and len(used) < 3):
        c = r.call([r.binary("asleep"), 48, 128, 3], tag=f"asleep{len(used)}", local=32 * MIB, pool=512 * MIB)
        r.require("asleep right" in c.out(), f"no closing line\n{c.tail()}")
        said = re.search(r"asleep used (\d+) us of (\d+)", c.err())
        used.append(int(said[1]) / int(said[2]))
        r.same(canvas.find(r.load_stats(c), "verify_failures"), 0, "verify_failures")
    # 0.5 to 1.3 times the kernel's time to free 64 MiB (36 ms on an idle machine), and 5 to 6 times if it polls.
    r.note(f"asleep it used {min(used):.1f} times what 64 MiB take")
    r.require(min(used) < 1.6, f"it used {used} times what 64 MiB take")


@check("tight-storm", timeout_s=200, normal=ONCE)
def tight_storm(r):
    """Many short processes at 32 MiB, eight at a time: all of them finish."""
    if not r.managed:
        return
    count = r.size(200, 1000)
    c = r.start([*CROWD, "storm", count], tag="storm", local=32 * MIB, pool=64 * MIB)
    r.wait(c, timeout_s=180)
    r.require(f"storm right {count}" in c.out(), f"no closing line\n{c.tail()}")
    stats = r.load_stats(c)
    r.require(canvas.find(stats, "forks") >= count, f"{canvas.find(stats, 'forks')} forks")
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")


@check("tight-small", timeout_s=60)
def tight_small(r):
    """Canvas's memory for a small process, with tables, stacks and patched code, is less than 1 MiB, and is
    reported as the kernel counts it."""
    if not r.managed:
        return

    def ready(tag, on):
        # The shell's other memory is the same with and without canvas.
        c = r.start(["sh", "-c", "echo ready; read line; :"], tag=tag, canvas_on=on, stdin=subprocess.PIPE,
                    local=32 * MIB, pool=16 * MIB, extra=["--tenant", tag])
        wait_until(r, "the shell is ready", lambda: "ready" in c.out() or not c.alive())
        return c

    def end(c):
        c.p.stdin.close()
        r.wait(c, timeout_s=30)

    c = ready("plain", False)
    plain = procs.rss_anon(c.pid)
    end(c)
    name = f"small{os.getpid()}"
    c, last = ready(name, True), ""

    def told():
        nonlocal last
        said = status(r, name)
        pid, = said["processes"]
        takes, own = procs.rss_anon(pid) - plain, said["used"]["metadata_bytes"]
        last = f"{takes >> 10} KiB, of which canvas names {own and own >> 10}"
        r.require(takes < MIB, f"canvas takes {takes} bytes of a shell")
        # The start leaves some pages of the shell's stack, and relocated pages, behind. (Kernels before Linux 6.7
        # do not have the figure.)
        return own is None or takes - 96 * 1024 <= own <= takes

    end_s = time.monotonic() + 20
    while not told():
        r.require(time.monotonic() < end_s, f"what canvas takes: {last}")
        time.sleep(0.2)
    r.note(last)
    end(c)


@check("below-break", timeout_s=60, **hostile.C)
def below_break(r):
    """The page below the initial break exists, also for a program without a heap yet."""
    if not r.managed:
        return
    c = r.start([r.binary("below_break")], tag="brk", local=12 * MIB, pool=16 * MIB)
    r.wait(c, timeout_s=60)
    r.require("right" in c.out(), f"no closing line\n{c.tail()}")


@check("little-brk", timeout_s=60, **hostile.C)
def little_brk(r):
    """A break that moves by a page at a time: zeros, the usual errors, and a fault for few of the pages."""
    if not r.managed:
        return
    c = r.start([r.binary("little_brk")], tag="brk", local=12 * MIB, pool=64 * MIB)
    r.wait(c, timeout_s=60)
    r.require("right" in c.out(), f"no closing line\n{c.tail()}")
    stats = r.load_stats(c)
    r.require(canvas.find(stats, "pages_out") > 0, "it never paged: the test shows nothing")
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
    faults, pages = canvas.find(stats, "faults_first_touch"), canvas.find(stats, "pages_zero_filled")
    r.note(f"{faults} faults for {pages} pages")
    if r.mode == "signal":
        r.require(faults < pages // 2, f"{faults} faults for {pages} pages: the call fills none")


def sites(c):
    """Sites patched and prepared in the last program of a run."""
    return [int(n) for n in re.findall(r"patched (\d+) \(prepared (\d+)\)", c.err())[-1]]


@check("prepared-code", timeout_s=60)
def prepared_code(r):
    """The code of libc and the loader is prepared once for the run; any other file is patched in place."""
    if not r.managed:
        return
    env = {"CANVAS_DEBUG_START": "1"}
    c = r.call(["cat", "/proc/self/maps"], tag="same", local="16M", env=env)
    patched, prepared = sites(c)
    r.require(patched == prepared > 300, f"{prepared} of {patched} sites prepared")
    # No page of libc's code is private to the process, or writable.
    code = [line.split() for line in c.out().splitlines() if "r-xp" in line or "rwxp" in line]
    r.require(all(line[1] == "r-xp" for line in code), f"code that can be written to: {code}")
    r.require(not any(line[-1].endswith("/libc.so.6") for line in code), "libc's own code is mapped")
    c = r.call(hostile.with_other_libc(r, "cat", "/proc/self/maps"), tag="other", local="16M", env=env)
    patched, prepared = sites(c)
    r.require(0 < prepared < 100 < patched, f"{prepared} of {patched} sites prepared for another libc")
    r.require(r.path("libc.so.6") in c.out(), "the other libc was not loaded")


@check("one-filter", timeout_s=60, modes=("signal",))
def one_filter(r):
    """A program that execs others does not accumulate system call filters: each would slow down every call."""
    if not r.managed:
        return
    show = "exec grep Seccomp_filters /proc/self/status"
    for deep in range(3):
        show = f"exec sh -c '{show}'" if deep == 0 else f'exec sh -c "{show}"' if deep == 1 else show
    c = r.call(["sh", "-c", show], tag="filters", local="16M")
    r.same(c.out().split(), ["Seccomp_filters:", "1"], "filters")


@check("grow-advised", timeout_s=120, **hostile.C)
def grow_advised(r):
    """Memory with advice for forks grows and moves by mremap as one mapping, with far and shared pages."""
    c = r.start([r.binary("grow_advised")], tag="grow", local=24 * MIB, pool=200 * MIB)
    r.wait(c, timeout_s=100)
    r.require("right" in c.out(), f"no closing line\n{c.tail()}")
    if r.managed:
        r.require(canvas.find(r.load_stats(c), "pages_out") > 0, "it never paged: the test shows nothing")


@check("tight-waiters", timeout_s=60, **hostile.C)
def waiters(r):
    """A thousand waiting children, far more than fit into the limit: no thread works for them meanwhile."""
    c = r.call([r.binary("futex_children"), 1000], tag="waiters", local="16M")
    r.same(c.out(), "all are back\n", "output")
