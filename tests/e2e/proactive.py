"""Proactive swap-in: while local memory is free, the pages evicted last come back before they are touched."""

import json
import os
import subprocess
import sys
import time

from lib import canvas
from lib.harness import MIB, ONCE, check

from .operate import ask, wait_until

# Fills memory A, has it evicted, and waits; then reports the faults on A, and whether it is right. Pages of A are
# all different. The first argument names what evicts A: memory that the program unmaps, a child that fills and
# ends, or nothing.
PUSHED = """
import hashlib, mmap, os, sys, time
what, mib, end = sys.argv[1], int(sys.argv[2]), sys.argv[3]
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
page = lambda i: hashlib.shake_128(b"%d" % i).digest(1024) * 4
def fill(n, first):
    m = mmap.mmap(-1, n * 4096, flags=PRIVATE)
    for i in range(n):
        m[i * 4096:i * 4096 + 4096] = page(first + i)
    return m
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.05)
n = mib * 256
a = fill(n, 0)
print("filled", flush=True)
if what == "child":
    child = os.fork()
    if child == 0:
        b = fill(n, n)
        print("pushed", flush=True)
        wait_for(end + ".free")
        os._exit(0)
    os.waitpid(child, 0)
elif what == "unmap":
    b = fill(n, n)
    print("pushed", flush=True)
    wait_for(end + ".free")
    b.close()
elif what == "cycles":
    for cycle in range(int(sys.argv[4])):
        b = fill(n, n)
        b.close()
        time.sleep(0.4)
print("freed", flush=True)
wait_for(end)
for i in range(n):
    assert a[i * 4096:i * 4096 + 4096] == page(i), i
print("right", flush=True)
"""


def pushed(r, what, *more, mib=32, tag="pushed", **o):
    end = r.path(f"{tag}.end")
    name = f"{tag}{os.getpid()}"
    o["extra"] = ["--tenant", name, *o.get("extra", [])]
    c = r.start([sys.executable, "-c", PUSHED, what, mib, end, *more], tag=tag, **o)
    return c, name, end


def says(r, c, word):
    wait_until(r, f"the program says {word}", lambda: word in c.out() or not c.alive())
    r.require(word in c.out(), f"it does not say {word}\n{c.tail()}")


def status(r, name):
    return json.loads(ask(r, "status", name, "--json"))


def far_bytes(r, name):
    return status(r, name)["used"]["far_pages_bytes"]


def touch(path):
    open(path, "w").close()


def ends_right(r, c, end):
    touch(end)
    r.wait(c, timeout_s=60)
    r.require("right" in c.out(), f"no closing line\n{c.tail()}")
    stats = r.load_stats(c)
    for wrong in ("verify_failures", "anomalies"):
        r.same(canvas.find(stats, wrong), 0, wrong)
    return stats


def comes_back(r, c, name, end, far_before):
    """Far pages come back, and cause no faults when they are touched."""
    r.require(far_before > 12 * MIB, f"{far_before} bytes are far: the test shows nothing")
    wait_until(r, "pages come back by themselves", lambda: far_bytes(r, name) < MIB)
    stats = ends_right(r, c, end)
    came = canvas.find(stats, "pages_in_proactive")
    r.require(came * 4096 > far_before // 2, f"{came} pages came back of {far_before / MIB:.0f} MiB")
    return stats, came


@check("proactive-unmap", normal=ONCE, timeout_s=150)
def proactive_unmap(r):
    """Memory freed by an unmap is used for evicted pages, which then cause no faults."""
    if not r.managed:
        return
    c, name, end = pushed(r, "unmap", local=48 * MIB, pool=64 * MIB)
    says(r, c, "pushed")
    far = far_bytes(r, name)
    touch(end + ".free")
    stats, came = comes_back(r, c, name, end, far)
    faults = canvas.find(stats, "faults_far")
    r.require(faults < came // 4, f"{faults} far faults, though {came} pages came back before")
    used = canvas.find(stats, "pages_in_proactive_used")
    # While the swap cache is more than half full, no page is looked up.
    r.require(used > came // 5, f"{used} of {came} pages were found used, though all were")
    r.note(f"{came} pages came back, {used} found used, {faults} far faults")


@check("proactive-sibling", normal=ONCE, timeout_s=150)
def proactive_sibling(r):
    """A sibling that exits leaves its memory to its neighbour's evicted pages."""
    if not r.managed:
        return
    end, name = r.path("end"), f"siblings{os.getpid()}"
    script = f'"$0" -c "$1" none 32 {end} & "$0" -c "$1" none 32 {end}.first; wait'
    c = r.start(["sh", "-c", script, sys.executable, PUSHED], tag="siblings", local=52 * MIB, pool=64 * MIB,
                extra=["--tenant", name])
    wait_until(r, "both are filled", lambda: c.out().count("freed") == 2 or not c.alive())
    far = far_bytes(r, name)
    touch(end + ".first")
    wait_until(r, "the first one has ended", lambda: len(status(r, name)["processes"]) <= 2)
    stats, came = comes_back(r, c, name, end, min(far, 14 * MIB))
    r.same(c.out().count("right"), 2, "closing lines")
    r.note(f"{came} pages came back of {far / MIB:.0f} MiB of both")


@check("proactive-child", normal=ONCE, timeout_s=150)
def proactive_child(r):
    """A fork's child evicts its parent's pages, and ends: they come back."""
    if not r.managed:
        return
    c, name, end = pushed(r, "child", local=48 * MIB, pool=64 * MIB)
    says(r, c, "pushed")
    far = far_bytes(r, name)
    touch(end + ".free")
    says(r, c, "freed")
    _, came = comes_back(r, c, name, end, min(far // 2, 14 * MIB))
    r.note(f"{came} pages came back of {far / MIB:.0f} MiB of both")


@check("proactive-deep", timeout_s=200, modes=("signal",))
def proactive_deep(r):
    """Pages demoted to a disk come back through the pool, when both have room."""
    if not r.managed:
        return
    c, name, end = pushed(r, "unmap", local=48 * MIB, pool=6 * MIB,
                          extra=["--far", "512M", "--to", f"disk:{r.dir}"])
    says(r, c, "pushed")
    far = far_bytes(r, name)
    touch(end + ".free")
    stats, came = comes_back(r, c, name, end, far)
    r.require(canvas.find(stats, "pages_demoted") > 0, "nothing left the pool")
    r.require(canvas.find(stats, "pages_promoted") > 0, "nothing came back into the pool")
    r.note(f"{came} pages came back, {canvas.find(stats, 'pages_promoted')} raised")


# Touches random pages, more than fit, and checks them.
BUSY = """
import mmap, random
n, rounds = 16384, 60000
m = mmap.mmap(-1, n * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(n):
    m[i * 4096:i * 4096 + 8] = i.to_bytes(8, "little")
r = random.Random(7)
for _ in range(rounds):
    i = r.randrange(n)
    assert m[i * 4096:i * 4096 + 8] == i.to_bytes(8, "little"), i
print("right")
"""


@check("proactive-busy", normal=ONCE, timeout_s=150)
def proactive_busy(r):
    """A program that uses all of its limit: no pages come in except by its faults, and none are evicted for others."""
    if not r.managed:
        return
    counts = {}
    for threshold in ("off", "5%"):
        c = r.call([sys.executable, "-c", BUSY], tag=f"busy{threshold[0]}", local=32 * MIB, pool=64 * MIB,
                   extra=["-o", f"proactive-threshold={threshold}"], timeout_s=60)
        r.require("right" in c.out(), f"no closing line\n{c.tail()}")
        stats = r.load_stats(c)
        counts[threshold] = [canvas.find(stats, k) for k in ("pages_in_proactive", "faults_far", "pages_out")]
    r.same(counts["off"][0], 0, "pages that came back though it is off")
    came, faults, out = counts["5%"]
    r.require(faults > 5000, f"{faults} far faults: the test shows nothing")
    r.require(came <= faults // 100, f"{came} pages came back beside {faults} far faults")
    r.require(out <= counts["off"][2] * 5 // 4, f"{out} pages left, and {counts['off'][2]} without")
    r.note(f"{came} came, {faults} far faults, {out} left ({counts['off'][2]} when off)")


@check("proactive-unused", timeout_s=200, normal=ONCE)
def proactive_unused(r):
    """Pages that come back and are evicted unused make swap-in less and less frequent."""
    if not r.managed:
        return
    cycles = r.size(8, 14)
    c, _, end = pushed(r, "cycles", cycles, local=48 * MIB, pool=64 * MIB)
    says(r, c, "freed")
    stats = ends_right(r, c, end)
    came = canvas.find(stats, "pages_in_proactive")
    # Each time it would be most of the 32 MiB.
    r.require(came > 1000, f"{came} pages came back: the test shows nothing")
    r.require(came < cycles * 4000, f"{came} pages came back in {cycles} cycles")
    r.note(f"{came} pages came back in {cycles} cycles")


@check("proactive-set", timeout_s=150, modes=("signal",))
def proactive_set(r):
    """Threshold and batch by variable, configuration file and `canvas set`; a wrong value changes nothing."""
    if not r.managed:
        return
    name = f"settings{os.getpid()}"
    config = r.write("canvas.toml", f'[tenant.{name}]\nproactive_threshold = "10%"\nproactive_batch = "1M"\n')
    env = {"CANVAS_CONFIG": config, "CANVAS_OPTIONS": "proactive-threshold=off"}
    c, name, end = pushed(r, "unmap", tag="settings", local=48 * MIB, pool=64 * MIB, env=env)
    says(r, c, "pushed")

    def limits():
        got = status(r, name)["limits"]
        return got["proactive_threshold_bytes"], got["proactive_batch_bytes"]

    r.same(limits(), (None, MIB), "the variable goes before the file, the file before the default")
    for bad, want in (("proactive-threshold=on", "or off"), ("proactive-threshold=0%", "share of nothing"),
                      ("proactive-batch=1K", "write 4K to 64M"), ("proactive-batch=5%", "size")):
        done = subprocess.run([r.session.canvas, "set", name, "local=100M", bad], capture_output=True, text=True)
        r.same((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), bad)
        r.require(want in done.stderr, f"{bad}: {done.stderr}")
    got = status(r, name)["limits"]
    r.same((limits(), got["local_bytes"]), ((None, MIB), 48 * MIB), "what was refused changed something")
    touch(end + ".free")
    says(r, c, "freed")
    far = far_bytes(r, name)
    time.sleep(1)
    # The program polls for a file, and needs some of its own pages for that.
    r.require(far_bytes(r, name) >= far - MIB, "pages came back though it is off")
    ask(r, "set", name, "proactive-threshold=4M", "proactive-batch=64K")
    r.same(limits(), (4 * MIB, 64 << 10), "what was set")
    stats, _ = comes_back(r, c, name, end, far)
    r.same(stats["limits"]["proactive_batch_bytes"], 64 << 10, "the report's batch")
