"""Memory that canvas charges to a tenant's processes, compared with the kernel's count."""

import json
import os
import re
import subprocess
import time

from lib import procs
from lib.harness import MIB, Skip, check

from .operate import ask, wait_until
from .reserve import Group

# Limit of a control group that only counts.
LIMIT_BYTES = 2048 * MIB

# Memory that a process takes between measurements: stacks and tables, a few pages at a time.
SLACK_BYTES = MIB // 2


def figures(r, name):
    """Bytes of the pool, and of all memory: by canvas and by the kernel."""
    said = json.loads(ask(r, "status", name, "--json"))
    used, pids = said["used"], procs.memories(said["processes"])
    pool, all_of_it = procs.pool_bytes(pids), procs.anon_bytes(pids)
    return used["pool_bytes"], used["pool_bytes"] + used["local_bytes"], pool, all_of_it


def compare(r, argv, what, writes=False, peak=0, **o):
    """Starts a program that reports when it is ready, and compares; at rest, both figures are stable."""
    name = f"charged{os.getpid()}-{len(r.children)}"
    c = r.start(argv, tag=name, stdin=subprocess.PIPE, **{**o, "extra": ["--tenant", name, *o.get("extra", ())]})
    wait_until(r, "the program is ready", lambda: "\n" in c.out() or not c.alive())
    last = ""

    def close():
        nonlocal peak, last
        before = figures(r, name)
        charged_pool, charged, pool, all_of_it = figures(r, name)
        peak = max(peak, pool, before[2])
        # While it writes, memory changes between two samples: the truth is between those.
        moved = abs(before[3] - all_of_it) if writes else 0
        wrong = abs(charged - all_of_it) - moved
        of_pool = abs(charged_pool - pool) - (abs(before[2] - pool) if writes else 0)
        last = (f"pool {charged_pool / MIB:.2f} of {pool / MIB:.2f} MiB, in all {charged / MIB:.2f} of "
                f"{all_of_it / MIB:.2f}")
        # The strip of raw headers of freed slabs stays: 0.8 % of the largest pool so far, which is charged as
        # local.
        largest = peak
        return wrong <= max(all_of_it // 100, SLACK_BYTES) and of_pool <= max(largest // 100, SLACK_BYTES)

    end = time.monotonic() + 60
    while not close():
        r.require(time.monotonic() < end, f"{what}: not within 1 %: {last}")
        time.sleep(0.3)
    r.note(f"{what}: {last}")
    c.p.stdin.close()
    r.wait(c, timeout_s=60)


def memfds(pid):
    """Sizes of the memory files that a process has open, by name; each file once."""
    found = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{fd}"
        try:
            name, there = os.readlink(path), os.stat(path)
        except OSError:
            continue
        if name.startswith("/memfd:"):
            found[there.st_ino] = (name.removeprefix("/memfd:").split()[0], there.st_blocks * 512)
    return list(found.values())


def agent_of(pid):
    """The agent process of a run."""
    for p in procs.tree(pid, False):
        with open(f"/proc/{p}/cmdline", "rb") as f:
            if b"agent-worker" in f.read():
                return p
    return None


def donor(r):
    """A donor's address."""
    c = r.start([r.session.canvas, "serve", "--listen", "127.0.0.1:0", "--memory", "256M", "--reserve", "0"],
                tag=f"donor{len(r.children)}", canvas_on=False)
    wait_until(r, "the donor listens", lambda: "listening on" in c.err() or not c.alive())
    return re.search(r"listening on (\S+),", c.err())[1]


def compare_all(r, group):
    """Compares all memory of a run with far memory at donors, part by part; and its sum with the kernel's
    count, where the run can have a control group."""
    name = f"charged{os.getpid()}-all"
    prefix = group.prefix() if group else ()
    flags = ["--tenant", name, "--far", "256M", "--to", f"{donor(r)},{donor(r)}", "--copies", "2"]
    c = r.start([r.binary("forks"), 100, 3, 0, 0], tag=name, stdin=subprocess.PIPE, local=16 * MIB, pool=24 * MIB,
                prefix=prefix, extra=flags)
    wait_until(r, "the program is ready", lambda: "\n" in c.out() or not c.alive())
    agent = agent_of(c.pid)
    r.require(agent, f"the run has no agent; it lives: {c.alive()}; it has said: {c.err()[-400:]}")
    last = ""

    def close():
        nonlocal last
        said = json.loads(ask(r, "status", name, "--json"))
        used = said["used"]
        pids = procs.memories(said["processes"])
        files = memfds(c.pid)
        segment = sum(size for name, size in files if name == "canvas-segment")
        pairs = [
            ("segment", used["segment_bytes"], segment, segment // 100),
            # Some pages of an agent that polls its donors each second.
            ("agent", used["agent_bytes"], procs.anon_bytes([agent]), 4 * 4096),
        ]
        truth = procs.anon_bytes([*pids, agent]) + segment
        # Memory shared by relatives is measured at intervals, and estimated from faults in between.
        pairs.append(("all", used["memory_bytes"], truth, truth // 50))
        if group:
            # The runner itself is in the group, and so are files that belong to no tenant.
            others = procs.anon_bytes([c.pid]) + sum(size for name, size in files if name != "canvas-segment")
            truth = group.anonymous_and_shared() - others
            pairs.append(("control group", used["memory_bytes"], truth, truth // 50))
        last = ", ".join(f"{what} {charged / MIB:.2f} of {truth / MIB:.2f} MiB" for what, charged, truth, _ in pairs)
        # Checks that buffers and requests were used at all.
        return segment > MIB and all(abs(charged - truth) <= most for _, charged, truth, most in pairs)

    end = time.monotonic() + 60
    while not close():
        r.require(time.monotonic() < end, f"with donors: not within 1 % (all: 2 %): {last}")
        time.sleep(0.3)
    r.note(f"with donors: {last}")
    r.require("of this host's memory, of which" in ask(r, "status", name), "status does not say it")
    c.p.stdin.close()
    r.wait(c, timeout_s=60)
    memory = r.load_stats(c)["memory"]
    for what in ("segment_bytes", "agent_bytes"):
        r.require(memory[what]["peak"] > MIB // 2, f"{what} in the report: {memory[what]}")


@check("charged-all", host=True, timeout_s=120, modes=("signal",))
def charged_all(r):
    """With far memory at donors: segment and agent within 1 % of the kernel's count, all within 2 %."""
    if not r.managed:
        return
    group, why = None, None
    try:
        group = Group(LIMIT_BYTES)
    except Skip as e:
        why = e
    try:
        compare_all(r, group)
    finally:
        for c in r.children:
            c.kill_tree()
        if group:
            group.close()
    if why:
        # Everything except the comparison with the control group was checked.
        raise why


@check("charged", host=True, timeout_s=200, modes=("signal",))
def charged(r):
    """Pool and all memory within 1 % of the kernel's count: at rest, under writes, after forks, after freeing."""
    if not r.managed:
        return
    forks = r.binary("forks")
    pool = 1024 * MIB
    compare(r, [forks, 100, 0, 0, 0], "at rest", local=24 * MIB, pool=pool)
    compare(r, [r.binary("holder"), 64, r.path("held.bin")], "read all over", writes=True, local=16 * MIB, pool=pool)
    compare(r, [forks, 100, 3, 0, 0], "after forks", local=24 * MIB, pool=pool)
    compare(r, [forks, 100, 3, 50, 0], "after forks and writes", local=32 * MIB, pool=pool)
    compare(r, [forks, 100, 0, 0, 80], "after freeing", peak=84 * MIB, local=16 * MIB, pool=pool)
    compare(r, [forks, 100, 0, 0, 0], "with far memory", local=16 * MIB, pool=24 * MIB,
            extra=["--far", "256M", "--to", f"disk:{r.dir}"])
