"""A donor whose host's own programs take its memory faster than clients can move their slabs."""

import json
import os
import re
import signal
import subprocess
import threading
import time

from lib import procs
from lib.harness import MIB, check

from .copies import ends_right, where, works
from .hostile import seeds
from .operate import python, wait_until
from .reserve import Group

TOTAL_MIB, RESERVE_MIB = 4096, 64
# Memory left on the host when its own program begins to grow, and the rate of its growth.
LEFT_MIB, GROWS_MIB_S = 160, 48
# Memory that the program finally leaves.
SPARES_MIB = 24
# Size of a donor's control group, and memory that other programs in it finally leave.
GROUP_MIB, GROUP_SPARES_MIB = 384, 48

# A program that takes this much memory, at this rate.
GROWS = """
import mmap, sys, time
mib, mib_s = int(sys.argv[1]), int(sys.argv[2])
m = mmap.mmap(-1, mib << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
began = time.monotonic()
for i in range(mib):
    for at in range(i << 20, (i + 1) << 20, 4096):
        m[at] = 1
    time.sleep(max(0, began + i / mib_s - time.monotonic()))
print("grown", flush=True)
sys.stdin.read()
"""


def listens(r, donor):
    """Address of a donor, once it listens."""
    wait_until(r, "the donor listens", lambda: "listening on" in donor.err() or not donor.alive())
    return re.search(r"listening on (\S+),", donor.err())[1]


class Host:
    """A host with a donor, as the donor sees it: it can use what the host's own program leaves, and the kernel
    kills it when nothing is left."""

    def __init__(self, r, name, taken=0):
        self.r, self.name, self.taken, self.killed, self.over = r, name, taken, False, threading.Event()
        os.mkdir(r.path(name))
        self.total = TOTAL_MIB * MIB
        self.child = None
        self.tell()
        self.child = r.start(
            [r.session.canvas, "serve", "--listen", "127.0.0.1:0", "--memory", "512M", "--reserve", f"{RESERVE_MIB}M",
             "-o", f"procfs={r.path(name)}", "--state-json", self.file("state.json")], tag=name, canvas_on=False)
        self.address = listens(r, self.child)
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()

    def file(self, name):
        return os.path.join(self.r.path(self.name), name)

    def lends(self):
        """Bytes that the donor has lent."""
        try:
            with open(f"/proc/{self.child.pid}/statm") as f:
                return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (AttributeError, OSError, IndexError):
            return 0

    def left(self):
        return self.total - self.taken - self.lends()

    def tell(self):
        left = self.left()
        path = self.file("meminfo")
        with open(path + ".new", "w") as f:
            f.write(f"MemTotal: {self.total >> 10} kB\nMemAvailable: {max(0, left) >> 10} kB\n")
        os.replace(path + ".new", path)
        return left

    def _look(self):
        while not self.over.wait(0.005):
            if self.tell() <= 0 and not self.killed:
                self.killed = True
                self.child.signal(signal.SIGKILL)

    def squeeze(self):
        """The host's own program takes nearly all memory, also what the donor gives back."""
        self.taken = self.total - self.lends() - LEFT_MIB * MIB
        began, from_there = time.monotonic(), self.taken
        most = self.total - SPARES_MIB * MIB - 16 * MIB
        while self.taken < most and not self.killed:
            time.sleep(0.005)
            self.taken = min(most, from_there + int((time.monotonic() - began) * GROWS_MIB_S * MIB))
        return time.monotonic() - began

    def state(self):
        try:
            with open(self.file("state.json")) as f:
                return json.load(f)
        except FileNotFoundError:
            return None

    def close(self):
        self.over.set()
        self.thread.join()


def signal_all(runs, sig):
    """Signals programs, runners and agents, all at once."""
    pids = [pid for c, _ in runs for pid in procs.tree(c.pid, False)]
    for pid in pids:
        os.kill(pid, sig)


def begin(r, servers, n):
    """Starts a number of programs, each with a slab in two copies."""
    runs = []
    for i, seed in enumerate(seeds(r, n)):
        name = f"squeezed{os.getpid()}-{i}"
        c = r.start(works(r.path("end"), seed, r.size(48, 64)), tag=f"worker{i}", local=16 * MIB, pool=8 * MIB,
                    extra=["--tenant", name, "--far", "256M", "--to", ",".join(servers), "--copies", "2"])
        runs.append((c, name))
    for c, _ in runs:
        wait_until(r, "the programs are ready", lambda c=c: "filled" in c.out() or not c.alive(), 90)
    return runs


def are_whole(r, runs, server):
    """Whether each slab has both copies, one of them at this donor."""
    for _, name in runs:
        status, slabs = where(r, name)
        if status["far"]["degraded_slabs"] != 0 or slabs.get(server, 0) == 0:
            return False
    return True


@check("donor-squeezed", modes=("signal",), timeout_s=240)
def donor_squeezed(r):
    """Clients are stopped while the memory of a donor's host runs out: the donor frees lent memory in time,
    survives, and all data is read from the other copies and copied again."""
    if not r.managed:
        return
    # The third host has no room at first, so that the other two have all slabs.
    host, other, third = hosts = Host(r, "squeezed"), Host(r, "other"), Host(r, "third", (TOTAL_MIB - 100) * MIB)
    try:
        runs = begin(r, [h.address for h in hosts], 3)
        wait_until(r, "both have all", lambda: are_whole(r, runs, host.address), 60)
        # One donor of each slab may free its copy, and knows it; stopped programs report nothing any more.
        wait_until(r, "both know", lambda: sum(h.state()["spare_slabs"] for h in (host, other)) == len(runs), 20,
                   state=lambda: [h.state() for h in (host, other)])
        # Pages beyond the pools go there in the background, and the donor counts them at intervals.
        wait_until(r, "much is lent", lambda: host.state()["touched_bytes"] > len(runs) * r.size(8, 16) * MIB, 60,
                   state=host.state)
        lent = host.state()["touched_bytes"]
        signal_all(runs, signal.SIGSTOP)
        try:
            took_s = host.squeeze()
            third.taken = 0
            wait_until(r, "the third one has room", lambda: third.state()["free_bytes"] > 0, 10, state=third.state)
        finally:
            signal_all(runs, signal.SIGCONT)
        r.require(not host.killed and host.child.alive(), f"the kernel killed the donor after {took_s:.1f} s")
        said = host.child.err()
        r.require("are freed at once" in said, f"the donor has said: {said[-600:]}")
        wait_until(r, "the donor has counted", lambda: host.state()["counters"]["freed_early_slabs"] == len(runs), 10,
                   state=host.state)
        counters = host.state()["counters"]
        r.note(f"{lent >> 20} MiB were freed within {took_s:.1f} s")
        r.same([counters[c] for c in ("freed_early_sole_slabs", "evicted_late_slabs")], [0, 0], "sole ones, late ones")
        wait_until(r, "all have both copies", lambda: are_whole(r, runs, third.address), 90,
                   state=lambda: [where(r, name) for _, name in runs])
        for c, _ in runs:
            ends_right(r, c, r.path("end"))
        for h in hosts:
            r.stop(h.child, signal.SIGTERM, expect={0})
    finally:
        for h in hosts:
            h.close()


@check("donor-grouped", host=True, modes=("signal",), timeout_s=120)
def donor_grouped(r):
    """A donor in a control group with a limit: it lends what the group leaves, and takes that back when other
    programs of the group grow. With the machine's memory as the only bound, it would lend until the kernel kills
    it."""
    if not r.managed:
        return
    group = Group(GROUP_MIB * MIB)
    third = Host(r, "third", (TOTAL_MIB - 100) * MIB)
    try:
        state = r.path("grouped.json")
        lend = [r.session.canvas, "serve", "--listen", "127.0.0.1:0", "--memory", "2G"]
        inside = r.start([*group.prefix(), *lend, "--reserve", f"{RESERVE_MIB}M", "--state-json", state], tag="inside",
                         canvas_on=False)
        outside = r.start(lend, tag="outside", canvas_on=False)
        servers = [third.address, listens(r, inside), listens(r, outside)]

        def told():
            with open(state) as f:
                return json.load(f)

        wait_until(r, "its state is told", lambda: os.path.exists(state), 10)
        r.require(told()["free_bytes"] < GROUP_MIB * MIB, f"it would lend more than its group has: {told()}")
        runs = begin(r, servers, 2)
        wait_until(r, "all is there twice", lambda: are_whole(r, runs, servers[1]), 60)
        wait_until(r, "much is lent", lambda: told()["touched_bytes"] > len(runs) * r.size(8, 16) * MIB, 60, state=told)
        third.taken = 0
        wait_until(r, "the third one has room", lambda: third.state()["free_bytes"] > 0, 20, state=third.state)
        lent = told()["touched_bytes"]
        grows = r.start([*group.prefix(), python(), "-c", GROWS, str(GROUP_MIB - GROUP_SPARES_MIB), str(GROWS_MIB_S)],
                        tag="grows", canvas_on=False, stdin=subprocess.PIPE)
        wait_until(r, "the program has grown", lambda: "grown" in grows.out() or not grows.alive(), 60)
        r.same(group.kills(), 0, "processes that the kernel has ended")
        r.require(inside.alive() and grows.alive(), f"somebody has ended: {inside.err()[-600:]}")
        counters = told()["counters"]
        r.note(f"{lent >> 20} MiB were lent; {counters['freed_early_slabs']} slabs freed early, "
               f"{counters['evicted_slabs']} evicted; least left {group.least / MIB:.1f} MiB")
        r.require(counters["freed_early_slabs"] + counters["evicted_slabs"] > 0, f"nothing was given back: {counters}")
        for c, _ in runs:
            ends_right(r, c, r.path("end"))
        grows.p.stdin.close()
        r.wait(grows, timeout_s=30)
        for child in (inside, outside, third.child):
            r.stop(child, signal.SIGTERM, expect={0})
    finally:
        third.close()
        r.close()
        group.close()
