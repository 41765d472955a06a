"""`-o unit`: pages faulted in together with a page; every byte is checked."""

import json
import subprocess
import time

from lib.harness import MIB, check

from . import slo
from .copies import lenders, moved, where, worker
from .operate import ask, python, wait_until

# 28 MiB of incompressible data. Uses groups of 64 pages together, in random order (`groups`), or single pages
# (`pages`), until the file exists.
USER = """
import hashlib, mmap, os, random, sys
SIZE, PAGES, GROUP = 4096, 28 << 8, 64
m = mmap.mmap(-1, SIZE * PAGES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def page(i):
    return hashlib.shake_128(b"%d" % i).digest(2048)
for i in range(PAGES):
    m[i * SIZE:i * SIZE + 2048] = page(i)
print("filled", flush=True)
rng, together = random.Random(5), sys.argv[2] == "groups"
def see(i):
    if m[i * SIZE:i * SIZE + 2048] != page(i):
        sys.exit(f"page {i} is wrong")
while not os.path.exists(sys.argv[1]):
    group = rng.randrange(PAGES // GROUP) * GROUP
    for i in rng.sample(range(group, group + GROUP), GROUP if together else 1):
        see(i)
for i in range(PAGES):
    see(i)
print("right", flush=True)
"""


def user(r, how, *flags):
    """The program above with its far memory on the disk; how to read its status, and the file that ends it."""
    name, end = f"unit-{how}-{r.mode}-{time.time_ns() % 1_000_000}", r.path(f"end-{how}")
    c = r.start([python(), "-c", USER, end, how], tag=f"unit-{how}", local=12 * MIB, pool=4 * MIB,
                extra=["--tenant", name, "--far", "256M", "--to", f"disk:{r.dir}", "-o", "prefetch=none", *flags])
    wait_until(r, "the program is ready", lambda: "filled" in c.out() or not c.alive(), 60)
    return c, name, end


def far_of(r, name):
    return json.loads(ask(r, "status", name, "--json"))["far"]


def reads(r, name, least):
    """The same, once so many pages were read for faults."""
    far = far_of(r, name)
    return far["fault_reads"] >= least and far


@check("unit", modes=("signal",), timeout_s=200)
def unit(r):
    """Pages that are used together come together; pages that are used alone come alone."""
    if not r.managed:
        return
    c, name, end = user(r, "groups")
    wait_until(r, "the unit grows", lambda: far_of(r, name)["unit_bytes"] >= 64 << 10, 60,
               state=lambda: far_of(r, name))
    r.note(f"{far_of(r, name)['unit_bytes'] >> 10} KiB for groups")
    # A new setting holds from then on.
    before = far_of(r, name)
    subprocess.run([r.session.canvas, "set", name, "unit=4K"], check=True, timeout=30)
    time.sleep(1)
    alone = far_of(r, name)
    r.same(alone["unit_bytes"], 4096, "the unit that was set")
    later = wait_until(r, "more pages are read", lambda: reads(r, name, alone["fault_reads"] + 500), 60)
    pages = later["fault_reads"] - alone["fault_reads"]
    extents = later["prefetch"]["requests"] - alone["prefetch"]["requests"]
    r.require(extents < pages / 20, f"{pages} pages were read alone, and {extents} extents")
    r.require(before["prefetch"]["requests"] > 100, f"{before}")
    stats = slo.ends_right(r, c, end)
    r.same(stats["far"]["corrupt"], 0, "copies that did not verify")

    c, name, end = user(r, "pages")
    far = wait_until(r, "pages are read", lambda: reads(r, name, 1500), 60)
    r.same(far["unit_bytes"], 4096, f"the unit of pages that are used alone: {far}")
    slo.ends_right(r, c, end)


@check("unit-refused", modes=("signal",), timeout_s=60)
def unit_refused(r):
    """An invalid unit gets one sentence, before anything runs."""
    if not r.managed:
        return
    for flags, why in ((["-o", "unit=3M"], "it is no read unit; write auto, 4K, or 32K to 2M"),):
        done = subprocess.run([r.session.canvas, "run", "--local", "16M", "--far", "64M", *flags, "--", "true"],
                              capture_output=True, text=True, timeout=30)
        r.same(done.returncode, 125, done.stderr)
        r.require(why in done.stderr, done.stderr)
