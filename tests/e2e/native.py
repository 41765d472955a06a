"""Memory that canvas does not page: where the host has swap, the kernel swaps it out when local memory is short."""

import json
import os
import re
import shutil
import subprocess
import time

from lib import canvas, procs, swap
from lib.harness import MIB, ONCE, Skip, check

from . import hostile
from .operate import ask, wait_until

# Size of .data and .bss, without the locked MiB.
COLD = 8 * MIB


def swapped(pid):
    """Bytes of a process that are in the host's swap."""
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"VmSwap:\s*(\d+)", f.read())[1]) * 1024


class Native:
    """A running program with cold native memory, under a limit that leaves little besides it."""

    def __init__(self, r, tag, *extra):
        self.r, self.name, self.end = r, f"{tag}{os.getpid()}", r.path(f"{tag}.end")
        self.child = r.start([r.binary("native"), 32, self.end], tag=tag, local=13 * MIB, pool=64 * MIB,
                             extra=["--tenant", self.name, *extra])
        wait_until(r, "the program is ready", lambda: "ready" in self.child.out() or not self.child.alive())

    def used(self):
        return self.status()["used"]

    def status(self):
        return json.loads(ask(self.r, "status", self.name, "--json"))

    def close(self):
        """Ends the program; returns its report."""
        open(self.end, "w").close()
        self.r.wait(self.child, timeout_s=60)
        self.r.require("native right" in self.child.out(), f"no closing line\n{self.child.tail()}")
        stats = self.r.load_stats(self.child)
        self.r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
        self.r.require(canvas.find(stats, "pages_out") > 0, "it never paged: the test shows nothing")
        return stats


def missing():
    return hostile.no_compiler() or swap.missing()


@check("native-swap", normal=ONCE, host=True, timeout_s=120, needs=missing)
def native_swap(r):
    """When memory is short, cold native memory goes to the host's swap, is no longer charged, and is reported;
    locked memory stays, and every byte is right. With the setting off nothing is swapped."""
    if not r.managed:
        return
    with swap.zram():
        off = Native(r, "off", "-o", "native-swap=off")
        on = Native(r, "on")
        r.require("ready locked" in on.child.out(), f"nothing is locked: {on.child.out()}")
        got = {}

        def gone():
            got.update(on.used())
            return got["swapped_bytes"] > COLD * 3 // 4 and got["native_bytes"] < COLD // 2

        wait_until(r, "native memory has left", gone, 30)
        pid, = procs.memories(on.status()["processes"])
        r.require(swapped(pid) > COLD * 3 // 4, f"the kernel says {swapped(pid)} bytes in swap")
        r.require("more in the host's swap" in ask(r, "status", on.name), "status does not say it")
        pid, = procs.memories(off.status()["processes"])
        r.require(off.used()["native_bytes"] > COLD, f"switched off: {off.used()}")
        r.same(swapped(pid), 0, "what has left of the program that was to keep it")
        stats = off.close()
        r.same((canvas.find(stats, "native_pages_out"), stats["policy"]["native_swap"]), (0, False), "switched off")
        stats = on.close()
        r.require(canvas.find(stats, "native_pages_out") * 4096 > COLD * 3 // 4, f"counters: {stats['counters']}")
        r.same(stats["policy"]["native_swap"], True, "policy")
        r.require(stats["memory"]["swapped_bytes"]["peak"] > COLD * 3 // 4, f"report: {stats['memory']}")
    r.note(f"{got['swapped_bytes'] / MIB:.1f} MiB left, {got['native_bytes'] / MIB:.1f} MiB stay")


@check("native-stays", normal=ONCE, host=True, timeout_s=60, **hostile.C)
def native_stays(r):
    """Without swap on the host native memory stays, and nothing of it is lost."""
    if not r.managed:
        return
    if swap.areas():
        raise Skip("this host has swap")
    native = Native(r, "stays")
    time.sleep(2)
    used = native.used()
    r.require(used["native_bytes"] > COLD, f"native memory: {used}")
    stats = native.close()
    r.same(canvas.find(stats, "native_pages_out"), 0, "native_pages_out")
    r.same(stats["memory"]["swapped_bytes"]["peak"], 0, "in swap")


@check("early-memory", timeout_s=60, **hostile.C)
def early_memory(r):
    """Memory that a library maps in its constructor, as allocators do, is paged: canvas starts before all
    libraries."""
    if not r.managed:
        return
    c = r.start(["true"], tag="early", local=12 * MIB, pool=64 * MIB, env={"LD_PRELOAD": r.binary("early-library")})
    r.wait(c, timeout_s=60)
    r.require("right" in c.out(), f"no closing line\n{c.tail()}")
    stats = r.load_stats(c)
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
    r.require(canvas.find(stats, "pages_out") > 1000, "the library's memory did not leave")
    native = stats["memory"]["native_bytes"]["peak"]
    r.require(native < 4 * MIB, f"{native} bytes are native")


def paged(r, c, limit):
    """Checks that the program had nearly no native memory, and stayed within its limit."""
    stats = r.load_stats(c)
    wrong = canvas.check_stats(stats, limit)
    r.require(not wrong, "; ".join(wrong))
    native = stats["memory"]["native_bytes"]["peak"]
    r.require(native < 12 * MIB, f"{native} bytes are native")


@check("drawn-addresses", modes=("signal", "thread"), timeout_s=60, **hostile.C)
def drawn_addresses(r):
    """Memory reserved at addresses that the program chooses at random is paged like other memory once it is
    accessible."""
    if not r.managed:
        r.call([r.binary("drawn")], tag="drawn")
        return
    c = r.start([r.binary("drawn")], tag="drawn", local=24 * MIB, pool=128 * MIB)
    r.wait(c, timeout_s=60)
    r.require("drawn right" in c.out(), f"no closing line\n{c.tail()}")
    paged(r, c, 24 * MIB)


# A heap of 1.2 million objects, some 180 MiB. V8 chooses random addresses.
OBJECTS = """
const all = [];
for (let i = 0; i < 1200000; i++) all.push({x: i, y: i * 2, z: [i]});
let sum = 0;
for (const o of all) sum += o.x + o.y + o.z[0];
console.log(all.length, sum);
"""


@check("node-heap", normal=ONCE, modes=("signal", "thread"), timeout_s=120,
       needs=lambda: None if shutil.which("node") else "no node (tests/packages.txt)")
def node_heap(r):
    """The heap of node is paged, and stays within its limit."""
    if not r.managed:
        return
    c = r.start([shutil.which("node"), "-e", OBJECTS], tag="heap", local=48 * MIB, pool=256 * MIB)
    r.wait(c, timeout_s=120)
    r.require("1200000 2879997600000" in c.out(), f"no closing line\n{c.tail()}")
    paged(r, c, 48 * MIB)
