"""Hosts that do not overcommit memory (vm.overcommit_memory=2): what canvas reserves is not charged before it is used."""

import json
import sys

from lib import canvas
from lib.harness import MIB, check
from vm import guest

from .vm import boot, text

# A host that does not overcommit charges all private memory that can be written to, touched or not. What a program has
# of it after it has held three times what is local, its answer, and what it has when it has given that back.
HOLDS = """
import hashlib, mmap

def charged():
    total = 0
    for line in open("/proc/self/maps"):
        span, access = line.split()[:2]
        if access[1] == "w" and access[3] == "p":
            start, end = (int(x, 16) for x in span.split("-"))
            total += end - start
    return total

held = mmap.mmap(-1, {bytes}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, {bytes}, 4096):
    held[at:at + 4096] = hashlib.sha256(b"%d" % at).digest() * 128
right = all(held[at:at + 4096] == hashlib.sha256(b"%d" % at).digest() * 128 for at in range(0, {bytes}, 4096))
most = charged()
held.close()
print(right, most, charged())
"""
LOCAL = 16 * MIB
# Tables for the first pages of the heap and of mappings, stacks, working memory of a fault and of reclaim, and the
# pool, in which what is compressed so well takes 4 MiB.
OWN_BYTES = 12 * MIB


def holds(r, **o):
    """What the program says: whether it is right, and its charged bytes at most and in the end."""
    argv = [sys.executable, "-c", HOLDS.format(bytes=3 * LOCAL)]
    said = r.call(argv, **o).out().split()
    r.same(said[0], "True", "what is read is what was written")
    return [int(n) for n in said[1:]]


@check("overcommit-charged", timeout_s=90)
def charged(r):
    """What canvas reserves beside a program's memory counts for little where no memory is overcommitted, whatever the
    far space could hold."""
    plain = holds(r, canvas_on=False)
    for what, extra in (("pool", ()), ("far", ("--far", "512G", "--far-dir", r.dir))):
        managed = holds(r, local=LOCAL, pool=64 * MIB, extra=extra)
        more = [m - p for m, p in zip(managed, plain)]
        r.note(f"{what}: {more[0] / MIB:.1f} MiB more than plain, {more[1] / MIB:.1f} MiB when all is given back")
        r.require(max(more) <= OWN_BYTES, f"{what}: {more} bytes more than plain are charged")


SCRIPT = r"""
    echo 80 > /proc/sys/vm/overcommit_ratio
    echo 2 > /proc/sys/vm/overcommit_memory
    cp /proc/sys/vm/overcommit_memory /out/setting
    overcommit 48 > /out/plain || exit 11
    for mode in signal thread; do
        canvas run --local LOCAL --pool 64M --mode $mode --require --stats /out/$mode.json -- overcommit 48 \
            > /out/$mode || exit 12
    done
"""


@check("overcommit-never", modes=("signal",), timeout_s=240, needs=guest.missing)
def never(r):
    """Under vm.overcommit_memory=2 a program is managed and right; what it gives back it may have again, and what is too
    much it is refused."""
    result = boot(r, SCRIPT.replace("LOCAL", str(LOCAL)), files={"/usr/bin/overcommit": r.binary("overcommit")},
                  timeout_s=220)
    r.same(text(result, "setting"), "2\n", "vm.overcommit_memory")
    said = {name: text(result, name).split(",") for name in ("plain", "signal", "thread")}
    for mode in ("signal", "thread"):
        r.same(said[mode][0], said["plain"][0], f"what the program says, {mode}")
        stats = json.loads(text(result, f"{mode}.json"))
        r.same(stats["mode"], mode, "mode")
        r.same(canvas.check_stats(stats, LOCAL), [], "what is wrong with the report")
        r.same(stats["processes"]["unmanaged"], 0, "unmanaged processes")
        r.require(canvas.find(stats, "pages_out") > 0, "it never paged: the test shows nothing")
    r.note("; ".join(f"{name}{said[name][1].rstrip()}" for name in said))
