"""Donors that die without a replacement, and slow donors."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time

from lib.harness import MIB, ONCE, check

from .copies import ends_right, lenders, moved, where, worker
from .operate import ask, python, wait_until
from .slo import find

# So many MiB of incompressible data. At a line `read` it reads as many pages at random as there are and checks
# each, and at `write` it writes and reads each page. It prints a line when done.
READER = """
import hashlib, mmap, os, random, sys
SIZE, PAGES = 4096, int(sys.argv[2]) << 8
m = mmap.mmap(-1, SIZE * PAGES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
order = random.Random(int(sys.argv[1]))
def page(i, version):
    return hashlib.shake_128(b"%d,%d" % (i, version)).digest(2048)
def write(version):
    for i in range(PAGES):
        m[i * SIZE:i * SIZE + 2048] = page(i, version)
def read(pages, version):
    for i in pages:
        assert m[i * SIZE:i * SIZE + 2048] == page(i, version), i
write(0)
for line in sys.stdin:
    if line == "read\\n":
        read((order.randrange(PAGES) for _ in range(PAGES)), 0)
    else:
        write(1)
        read(range(PAGES), 1)
    print(line.strip(), flush=True)
"""


def does(r, c, what, times=1):
    """Has the program do something, and waits until it is done."""
    before = c.out().count(what)
    c.p.stdin.write(f"{what}\n".encode() * times)
    c.p.stdin.flush()
    wait_until(r, f"the program can {what}", lambda: c.out().count(what) == before + times or not c.alive(), 150,
               state=c.err)
    r.require(c.alive(), f"it could not {what}: {c.err()}")


def far(r, name):
    return where(r, name)[0]["far"]


def lends_again(r, address):
    """Starts an empty donor in place of a dead one."""
    c = r.start([r.session.canvas, "serve", "--listen", address, "--memory", "256M", "--reserve", "0"],
                tag=f"donor{len(r.children)}", canvas_on=False)
    wait_until(r, "the donor listens", lambda: "listening on" in c.err() or not c.alive())


def reads_on(r, copies, n, kills):
    """A program reads while as many donors are dead as its copies allow, without replacements; then the
    donors come back."""
    lending, servers = lenders(r, n)
    mib, least = r.size((28, 1000), (48, 10_000))
    name = f"degraded{os.getpid()}"
    c = r.start([python(), "-c", READER, "7", mib], tag="reader", stdin=subprocess.PIPE, local=16 * MIB, pool=mib * MIB // 6,
                extra=["--tenant", name, "--far", "256M", "--copies", copies, "--to", ",".join(servers)])
    # Until no write is in flight: each page has its copies.
    does(r, c, "read")
    slabs = where(r, name)[1]
    dead = sorted(servers, key=lambda s: -slabs.get(s, 0))[:kills]
    r.require(all(slabs.get(s, 0) for s in dead), f"they have nothing: {slabs}")
    for address in dead:
        lending[servers.index(address)].signal(signal.SIGKILL)
    wait_until(r, "the donors are missed", lambda: far(r, name)["degraded_slabs"] > 0, 60,
               state=lambda: where(r, name))
    before = far(r, name)["fault_reads"]
    does(r, c, "read", times=r.size(1, 4))
    more = far(r, name)["fault_reads"] - before
    r.require(more > least, f"{more} faults brought pages in from donors")
    status = where(r, name)[0]
    codes = [p["code"] for p in status["health"]]
    r.require({"C001", "C002"} <= set(codes), f"it is degraded, and told is {codes}")
    for address in dead:
        lends_again(r, address)
    wait_until(r, "all is whole again", lambda: far(r, name)["degraded_slabs"] == 0, 120,
               state=lambda: where(r, name))
    # Writes work again.
    does(r, c, "write")
    c.p.stdin.close()
    r.wait(c, timeout_s=120)
    stats = r.load_stats(c)
    r.same([find(stats, key) for key in ("verify_failures", "anomalies")], [0, 0], "verify failures, anomalies")
    r.same(stats["far"]["corrupt"], 0, "copies that did not verify")
    return f"{more} faults while {kills} of {n} donors were dead"


@check("donors-dead-2", normal=ONCE, timeout_s=300)
def donors_dead_2(r):
    """Two copies on two donors, one of which dies: a program that only reads is not affected."""
    return reads_on(r, "2", 2, 1) if r.managed else None


@check("donors-dead-4-2", slow_only=True, modes=("signal",), timeout_s=300)
def donors_dead_4_2(r):
    """Shards on six donors, two of which die: a program that only reads is not affected."""
    return reads_on(r, "4+2", 6, 2) if r.managed else None


@check("donors-dead-disk", modes=("signal",), timeout_s=300)
def donors_dead_disk(r):
    """Two copies on two donors, one of which dies: the missing copies go to a far directory, and back."""
    if not r.managed:
        return
    lending, servers = lenders(r, 2)
    c, name, end = worker(r, servers, flags=("--copies", "2"), mib=r.size(32, 64))
    moved(r, name, "2", servers, 2)
    lending[0].signal(signal.SIGKILL)
    wait_until(r, "the donor is missed", lambda: far(r, name)["degraded_slabs"] > 0, 60)
    before = far(r, name)["extents_out"]
    wait_until(r, "pages leave the pool", lambda: far(r, name)["extents_out"] > before + 100 or not c.alive(), 120)
    r.require(c.alive(), f"it has ended: {c.err()}")
    lends_again(r, servers[0])
    moved(r, name, "2", servers, 2)
    ends_right(r, c, end)


@contextlib.contextmanager
def busy(lends):
    """Keeps a donor from running most of the time, each time for longer than the delay of a hedged read."""
    over = threading.Event()

    def stops():
        while not over.is_set():
            lends.signal(signal.SIGSTOP)
            time.sleep(0.3)
            lends.signal(signal.SIGCONT)
            over.wait(0.02)

    thread = threading.Thread(target=stops)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@check("donor-slow", modes=("signal",), timeout_s=200)
def donor_slow(r):
    """One of two donors becomes slow: one command names it within seconds, even while nothing is read from
    it, with its latency, until it is as fast as the other."""
    if not r.managed:
        return
    lending, (slow, fast) = lenders(r, 2)
    mib = r.size(28, 48)
    name = f"slow{os.getpid()}"
    c = r.start([python(), "-c", READER, "7", mib], tag="reader", stdin=subprocess.PIPE, local=16 * MIB, pool=mib * MIB // 6,
                extra=["--tenant", name, "--far", "256M", "--copies", "2", "-o", "lanes=off",
                       "--to", f"{slow},{fast}"])
    told = lambda: [p["text"] for p in where(r, name)[0]["health"] if p["code"] == "C015"]
    donors = lambda: {d["address"]: d for d in where(r, name)[0]["donors"]}
    does(r, c, "read")
    wait_until(r, "none is slow", lambda: not told(), 30, state=donors)
    with busy(lending[0]):
        began = time.monotonic()
        wait_until(r, "it is named", lambda: any(slow in text for text in told()), 30, state=donors)
        r.note(f"named after {time.monotonic() - began:.1f} s")
        r.require(not any(fast in text for text in told()), f"the other one is slow, too: {told()}")
        r.require(donors()[slow]["slow"] and not donors()[fast]["slow"], donors())
        shown = ask(r, "status", name)
        r.require(f"C015 donor-slow: donor {slow}" in shown, shown)
        rates = json.loads(ask(r, "stat", name, "--json", "-i", "1", "-n", "1"))
        r.same({d["address"] for d in rates["donors"]}, {slow, fast}, "donors of `stat`")
        before = donors()[slow]["failovers"]
        c.p.stdin.write(b"read\n")
        c.p.stdin.flush()
        wait_until(r, "other copies are read", lambda: donors()[slow]["failovers"] > before, 30, state=donors)
    wait_until(r, "it is named no more", lambda: not told(), 60, state=donors)
    c.p.stdin.close()
    r.wait(c, timeout_s=120)
    r.same(c.out().count("read"), 2, "times that all was read")
