"""Programs with a pool that is far too small, and far memory on a disk."""

import json
import os
import random
import signal
import subprocess
import time

from lib import canvas, lab, procs
from lib.harness import MIB, ONCE, check, deep
from net.load import Here, Pages

from . import hostile, languages, servers, workloads  # noqa: F401  (they register what is run again)

deep("hammer", timeout_s=400, slow_only=True, normal=(("signal", 25), ("thread", 25)))
deep("hammer-no-fork", timeout_s=240, normal=(("signal", 25),))
deep("window-model", slow_only=True, normal=(("signal", 25),))
deep("memory-forks", normal=(("signal", 25),))
deep("memory-dontfork", slow_only=True, normal=(("signal", 25),))
deep("memory-threads", normal=(("signal", 25),))
deep("python-fork", slow_only=True, normal=(("thread", 50),))
deep("redis", timeout_s=400, slow_only=True, normal=(("signal", 25),), shares=(25, 50))
deep("postgres", timeout_s=400, slow_only=True, normal=(("signal", 25),))
deep("java-g1", slow_only=True, normal=(("signal", 25),))
deep("workload-random-write", normal=(("thread", 25),))
deep("workload-quicksort", slow_only=True, normal=(("signal", 25),))


FAR = ["--far", "2G"]


def agent_of(child, not_pid=None):
    """The pid of the agent of a `canvas run`, or None."""
    for pid in procs.tree(child.pid, include_root=False):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if pid != not_pid and b"agent-worker" in f.read():
                    return pid
        except OSError:
            pass
    return None


def wait_for_agent(r, child, not_pid=None):
    end = time.monotonic() + 30
    while child.alive():
        pid = agent_of(child, not_pid)
        if pid:
            return pid
        r.require(time.monotonic() < end, f"no agent after 30 s\n{child.tail()}")
        time.sleep(0.01)
    return None


@check("far-timeliness", modes=("signal",), timeout_s=60)
def far_timeliness(r):
    """-o timeliness=off reaches the agent's scheduler: no read ahead is dropped, however long the queue."""
    if not r.managed:
        return
    answers = {}
    for rule in ("on", "off") if r.slow else ("off",):
        # Streams of four threads, and a limit that delays their reads ahead: with the rule some of them are
        # usually dropped.
        argv = [lab.path(r), "workload", "sequential", "--mib", "24", "--seconds", "0.5", "--threads", "4"]
        extra = ["--far", "256M", "--to", f"disk:{r.dir}", "-o", f"timeliness={rule}", "-o", "swap-in-limit=6M/s"]
        c = r.call(argv, tag=rule, local=8 * MIB, pool=2 * MIB, extra=extra, timeout_s=50)
        answers[rule] = json.loads(c.out().splitlines()[-1])["answer"]
        stats = r.load_stats(c)
        far, told = stats["far"], canvas.find(stats, "prefetch_dropped")
        came = far["prefetch_time_ns"]["count"]
        r.require(came > 0, f"nothing was read ahead: {far}")
        if rule == "off":
            r.same((far["dropped"], told), (0, 0), "reads ahead that were dropped, by the agent and the program")
        r.note(f"{rule}: {came} reads ahead came, {far['dropped']} were dropped")
    r.same(len(set(answers.values())), 1, f"answers: {answers}")


@check("deep-limit", timeout_s=90, normal=(("signal", None),), **hostile.C)
def deep_limit(r):
    """--pool and --far used up: mmap returns ENOMEM, all bytes are right, and freed memory can be used again."""
    if not r.managed:
        return
    c = r.call([r.binary("mem"), "enomem", "1024"], tag="enomem", local="32M", pool="16M",
               extra=["--far", "64M", "--to", f"disk:{r.dir}"], timeout_s=80)
    granted = int(c.out().split()[1]) if c.out().startswith("chunks") else -1
    r.require(70 <= granted <= 150,
              f"{granted} MiB were granted with 32 MiB local, 16 MiB of pool and 64 MiB of far memory")
    stats = r.load_stats(c)
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
    r.require(canvas.find(stats, "mmaps_refused", default=0) > 0, "stats: mmaps_refused = 0")
    r.require(canvas.find(stats, "pages_demoted") > 0, "stats: pages_demoted = 0")
    told = c.err().count("the pool and far memory are full")
    r.require(1 <= told <= 3, f"full far memory is reported {told} times\n{c.tail()}")
    r.note(f"granted {granted} MiB; {canvas.summary(stats)}")


@check("deep-compaction", timeout_s=150, normal=ONCE, **hostile.C)
def compaction(r):
    """Pages rewritten at random leave far memory mostly empty everywhere, and it is used again: --far limits
    live data, not everything ever written. Agents die meanwhile."""
    if not r.managed:
        return
    pages = Pages(r, Here, ("--far", "64M", "--to", f"disk:{r.dir}"), 104)
    writes = r.size(12_000, 100_000)
    rng, kills, last, end = random.Random(6), 0, None, time.monotonic() + 120
    # In the slow suite by then all of it has been rewritten more than once, which would need another 64M.
    while pages.writes() < writes and time.monotonic() < end:
        pages.alive()
        time.sleep(rng.uniform(0.2, 1))
        if kills < 3:
            last = wait_for_agent(r, pages.child, last)
            pages.alive()
            os.kill(last, signal.SIGKILL)
            kills += 1
    written = pages.writes()
    r.require(written >= writes // 2, f"only {written} pages were written anew in that time")
    stats = pages.finish()
    emptied = canvas.find(stats, "extents_compacted")
    r.require(emptied > 0, "stats: extents_compacted = 0")
    r.require(stats["far"]["limit_bytes"] == 64 * MIB, f"far: {stats['far']}")
    r.note(f"{written} pages written anew, {emptied} extents emptied; {canvas.summary(stats)}")


@check("deep-clean", timeout_s=90, normal=ONCE, **hostile.C)
def deep_clean(r):
    """Data read from beyond the pool and not changed is not written again, whether read alone or in a stream."""
    if not r.managed:
        return
    for pattern in ("random-read", "sequential"):
        c = r.call([lab.path(r), "workload", pattern, "--mib", "64", "--seconds", "1"], tag=pattern,
                   local="8M", pool="4M", extra=[*FAR, "--to", f"disk:{r.dir}"], timeout_s=60)
        stats = r.load_stats(c)
        far = {k: stats["far"][k] for k in ("bytes_in", "bytes_out")}
        clean = canvas.find(stats, "pages_out_clean")
        r.require(far["bytes_in"] > 0 and clean > 0, f"{pattern}: {far}, {clean} pages out clean")
        # All data is written once, and the part in flight twice.
        r.require(far["bytes_out"] < 96 * MIB, f"{pattern}: {far}: written again and again")
        r.note(f"{pattern}: {far}, {clean} pages out clean; {canvas.summary(stats)}")


@check("deep-agent-killed", timeout_s=200, normal=ONCE, **hostile.C)
def agent_killed(r):
    """The agent is killed repeatedly: the next one adopts everything, and every byte is right."""
    if not r.managed:
        return
    c = r.start([r.binary("hammer"), 5, 2, r.size(1000, 40_000), r.size(64, 256)], tag="hammer",
                local=16 * MIB, pool=4 * MIB, extra=[*FAR, "--to", f"disk:{r.dir}"])
    rng, kills, last = random.Random(5), 0, None
    while kills < r.size(2, 100):
        last = wait_for_agent(r, c, last)
        if last is None:
            break
        time.sleep(rng.uniform(0.05, 0.5))
        try:
            os.kill(last, signal.SIGKILL)
        except ProcessLookupError:
            break
        kills += 1
    r.wait(c, timeout_s=190)
    r.require(c.out().startswith("hammer seed 5: "), f"no closing line\n{c.tail()}")
    stats = r.load_stats(c)
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
    r.require(kills >= 2, f"only {kills} kills")
    r.require(canvas.find(stats, "faults_beyond_pool") > 0, "stats: faults_beyond_pool = 0")
    r.note(f"{kills} kills; {canvas.summary(stats)}")


@check("deep-agent-stopped", timeout_s=90, normal=ONCE, **hostile.C)
def agent_stopped(r):
    """The agent hangs: a page that cannot be read in time raises SIGBUS with a reason, and is never zeros."""
    if not r.managed:
        return
    c = r.start([r.binary("mem"), "leaf", 192], tag="leaf", local=16 * MIB, pool=4 * MIB,
                extra=[*FAR, "--to", f"disk:{r.dir}", "-o", "far-wait=1s"])
    agent = wait_for_agent(r, c)
    r.require(agent, f"it ended too soon\n{c.tail()}")
    end = time.monotonic() + 30
    # Once the agent writes, the program cannot end without reading all data back.
    while c.alive() and written_bytes(agent) < 8 * MIB:
        r.require(time.monotonic() < end, f"nothing was written\n{c.tail()}")
        time.sleep(0.005)
    os.kill(agent, signal.SIGSTOP)
    try:
        r.wait(c, expect={-7, 135}, timeout_s=60)
    finally:
        try:
            os.kill(agent, signal.SIGCONT)
        except ProcessLookupError:
            pass
    r.require("right" not in c.out(), f"it ended as if nothing had happened: {c.out()}")
    # Depends on which comes first: a page to read, or room for a page to write.
    reasons = ("cannot be reached", "does not answer")
    r.require(any(why in c.err() for why in reasons), f"no line on stderr tells why\n{c.tail()}")
    r.require(len(c.err().splitlines()) <= 8, f"the same is told again and again\n{c.tail()}")


def limit_files(pid, soft):
    """Limits the descriptors of a process, as its user: root may lack the right in some places."""
    who = os.stat(f"/proc/{pid}")
    subprocess.run(["prlimit", f"--pid={pid}", f"--nofile={soft}:"], check=True, user=who.st_uid, group=who.st_gid,
                   extra_groups=[])


@check("deep-agent-unstartable", timeout_s=60, normal=ONCE, **hostile.C)
def agent_unstartable(r):
    """An agent that cannot be started is retried with pauses, and reported in one line; then the run
    continues."""
    if not r.managed:
        return
    pages = Pages(r, Here, ("--far", "64M", "--to", f"disk:{r.dir}"), 40)
    child = pages.child
    agent = wait_for_agent(r, child)
    pages.alive()
    with open(f"/proc/{child.pid}/limits") as limits:
        soft = next(line.split()[3] for line in limits if line.startswith("Max open files"))
    # The runner keeps its open descriptors and can open no more, so it can start no agent.
    limit_files(child.pid, 3)
    os.kill(agent, signal.SIGKILL)
    end = time.monotonic() + 30
    while "cannot be started" not in child.err():
        r.require(time.monotonic() < end, f"nobody says so\n{child.tail()}")
        time.sleep(0.01)
    # An error here would show at once, or ten times a second.
    time.sleep(1.5)
    r.same(child.err().count("cannot be started"), 1, "lines about it")
    limit_files(child.pid, soft)
    wait_for_agent(r, child, agent)
    pages.finish()


@check("deep-vfork-killed", timeout_s=90, modes=("signal",), slow_only=True, **hostile.C)
def vfork_killed(r):
    """A child of vfork is killed inside a fault: its parent's fork fails with a sentence, and does not hang."""
    if not r.managed:
        return
    c = r.start([r.binary("door"), "vfork"], tag="vfork", local=16 * MIB, pool=4 * MIB, stdin=subprocess.PIPE,
                extra=[*FAR, "--to", f"disk:{r.dir}", "-o", "far-wait=1s"])
    agent = wait_for_agent(r, c)
    r.require(agent, f"it ended too soon\n{c.tail()}")
    end = time.monotonic() + 30
    while c.alive() and "ready" not in c.out():
        r.require(time.monotonic() < end, f"it is not ready\n{c.tail()}")
        time.sleep(0.01)
    os.kill(agent, signal.SIGSTOP)
    try:
        c.p.stdin.write(b"g")
        c.p.stdin.close()
        r.wait(c, timeout_s=60)
    finally:
        try:
            os.kill(agent, signal.SIGCONT)
        except ProcessLookupError:
            pass
    r.same(c.out(), "ready\nfork: EAGAIN\n", "output")
    r.require("a vfork child was killed" in c.err(), f"no line tells why\n{c.tail()}")


def written_bytes(pid):
    """Bytes that a process has written to files."""
    try:
        with open(f"/proc/{pid}/io") as f:
            return int(next(line for line in f if line.startswith("wchar")).split()[1])
    except (OSError, StopIteration):
        return 0
