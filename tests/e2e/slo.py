"""`--slo`: memory that a program does not need is evicted, and the program is slowed only slightly."""

import json
import os
import subprocess
import time

from lib import canvas
from lib.harness import MIB, Skip, check

from .operate import ask, python, wait_until

find = canvas.find

# 64 MiB that are filled once, of which an eighth is in constant use, until the file `end` exists. When the file
# `phase` exists, another eighth is. At the end each page is compared with its expected contents.
COLD = """
import mmap, os, sys
SIZE, PAGES, HOT = 4096, 64 << 8, 8 << 8
end, phase = sys.argv[1:3]
m = mmap.mmap(-1, SIZE * PAGES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def first(i):
    return (b"%d," % (i * 7919)).ljust(24, b".") * 20
for i in range(PAGES):
    m[i * SIZE:i * SIZE + 480] = first(i)
counts = [0] * PAGES
print("filled", flush=True)
start, turns, moved = 0, 0, 0
while not os.path.exists(end):
    if start == 0 and os.path.exists(phase):
        start, moved = PAGES // 2, turns
    if start and turns == moved + 50:
        print("moved", flush=True)
    for i in range(start, start + HOT):
        counts[i] += 1
        at = i * SIZE + 2048
        m[at:at + 8] = counts[i].to_bytes(8, "little")
        # Work that needs no memory.
        sum(m[at - 64:at + 64])
    turns += 1
for i in range(PAGES):
    assert m[i * SIZE:i * SIZE + 480] == first(i), i
    assert m[i * SIZE + 2048:i * SIZE + 2056] == counts[i].to_bytes(8, "little"), i
print(f"right after {turns} turns", flush=True)
"""
HOT_PAGES, PAGES = 8 << 8, 64 << 8


def cold(r, *flags, **limits):
    """Starts the program above under canvas: returns it, its tenant's name, its two files."""
    name, end, phase = f"cold{os.getpid()}", r.path("end"), r.path("phase")
    c = r.start([python(), "-c", COLD, end, phase], tag="cold", extra=["--tenant", name, *flags], **limits)
    wait_until(r, "the program is ready", lambda: "filled" in c.out() or not c.alive())
    return c, name, end, phase


def used(r, name):
    return json.loads(ask(r, "status", name, "--json"))["used"]


def ends_right(r, c, end):
    open(end, "w").close()
    r.wait(c, timeout_s=120)
    r.require("right" in c.out(), f"no closing line\n{c.tail()}")
    stats = r.load_stats(c)
    r.same([find(stats, key) for key in ("verify_failures", "anomalies")], [0, 0], "verify failures, anomalies")
    return stats


@check("slo", as_user=True, timeout_s=180, normal=(("signal", None),))
def slo(r):
    """Without --local: cold pages are evicted, hot ones stay, and a new phase is followed."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    c, name, end, phase = cold(r, "--slo", "5%")

    def is_small():
        return used(r, name)["local_bytes"] < 36 * MIB

    wait_until(r, "of 64 MiB less than 36 are local", is_small)
    at_first = used(r, name)
    r.require(at_first["far_pages_bytes"] > 28 * MIB, f"{at_first}")
    # A limit of all the host's memory is not shown.
    local = next(line for line in ask(r, "status", name).splitlines() if line.startswith("  local"))
    r.require(local.endswith(", limited only by slo=5%"), local)
    open(phase, "w").close()
    wait_until(r, "the new phase goes on", lambda: "moved" in c.out() or not c.alive())
    wait_until(r, "the new phase is local, and the old one leaves", is_small)
    stats = ends_right(r, c, end)
    # Other load changes the slowdown, but not that hot pages were local when the program touched them.
    turns, faults = int(c.out().split()[-2]), find(stats, "faults_far")
    r.require(faults < 3 * PAGES + turns * HOT_PAGES // 100, f"{faults} far faults in {turns} turns of {HOT_PAGES} pages")
    r.note(f"{faults} far faults in {turns} turns of {HOT_PAGES} pages")
    r.same(stats["policy"]["slo"], "5%", "policy.slo")
    r.require(find(stats, "pages_offload_asked") > 7000, "pages that were asked for")
    # The program never waited for direct reclaim.
    r.same(find(stats, "reclaim_pages_direct"), 0, "reclaim_pages_direct")


@check("slo-set", as_user=True, modes=("signal",), timeout_s=180)
def slo_set(r):
    """`canvas set RUN slo=`: nothing is evicted before; afterwards cold pages are; a wrong value changes nothing."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    c, name, end, _ = cold(r, local=160 * MIB)
    before = used(r, name)["far_pages_bytes"]
    r.same(before, 0, "bytes that left without a target")
    for bad, want in (("slo=60%", "0.1% to 50%"), ("slo=p99=1ns", "p99=1us"), ("slo=fast", "off")):
        done = subprocess.run([r.session.canvas, "set", name, "local=100M", bad], capture_output=True, text=True)
        r.same((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), bad)
        r.require(want in done.stderr, f"{bad}: {done.stderr}")
    limits = json.loads(ask(r, "status", name, "--json"))["limits"]
    r.same((limits["slo"], limits["local_bytes"]), (None, 160 * MIB), "what was refused changed something")
    ask(r, "set", name, "slo=p99=50ms")
    wait_until(r, "pages leave", lambda: used(r, name)["far_pages_bytes"] > 20 * MIB)
    ask(r, "set", name, "slo=off")
    time.sleep(0.5)
    r.same(json.loads(ask(r, "status", name, "--json"))["limits"]["slo"], None, "limits.slo")
    # Evicted pages come back, because local memory is free.
    wait_until(r, "pages come back", lambda: used(r, name)["far_pages_bytes"] < 12 * MIB)
    ends_right(r, c, end)


@check("slo-flag", modes=("signal",), timeout_s=30)
def slo_flag(r):
    """An unreachable target gets one sentence, and CMD is not started."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    for bad, want in (("0.01%", "write a share of 0.1% to 50%"), ("p99=1h", "write p99=1us to p99=10s"),
                      ("2", "write a share such as 25%, a time as in p99=300us, or off")):
        done = subprocess.run([r.session.canvas, "run", "--slo", bad, "--", "echo", "started"],
                              capture_output=True, text=True)
        r.same((done.returncode, done.stdout), (125, ""), bad)
        r.require(want in done.stderr, f"{bad}: {done.stderr}")
