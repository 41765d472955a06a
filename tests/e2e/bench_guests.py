"""The bench over guests (`bench/fastswap`): what it works out, and a small run of it."""

import json
import os
import shutil
import subprocess
import sys

from lib.harness import check

from .command import canvas_only
from .disk import vm_missing

BENCH = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "bench")


def cannot():
    if os.getuid() != 0:
        return "the bench needs root"
    for name in ("redis-server", "memcached", "gcc", "qemu-storage-daemon"):
        if not shutil.which(name):
            return f"no {name}"
    return vm_missing()


def unit_tests(r, module):
    """The tests of a bench's own parts pass, and there are some."""
    canvas_only(r)
    done = subprocess.run([sys.executable, "-m", "unittest", module], cwd=BENCH, capture_output=True, text=True)
    r.same(done.returncode, 0, done.stderr)
    r.require("OK" in done.stderr.splitlines()[-1] and "Ran 0" not in done.stderr, done.stderr)


@check("bench-guests-figures", modes=("signal",), timeout_s=60)
def figures(r):
    """What the bench parses and works out is right, and its client notices an answer that is wrong."""
    unit_tests(r, "lib.test_guests")


@check("bench-guests", host=True, modes=("signal",), slow_only=True, timeout_s=300, needs=cannot)
def small(r):
    """A redis in a guest swaps onto canvas: a line with its figures, a table; a name that is none changes nothing."""
    canvas_only(r)
    bench, out = os.path.join(BENCH, "fastswap"), r.path("fastswap.jsonl")
    wrong = subprocess.run([bench, "--only", "redis:tape"], capture_output=True, text=True)
    r.same(wrong.returncode, 2, wrong.stderr)
    r.require("there is no variant tape" in wrong.stderr, wrong.stderr)
    done = subprocess.run([bench, "--canvas", r.session.canvas, "--only", "redis:lz4", "--seconds", "2", "--available-mib",
                           "48", "--out", out], capture_output=True, text=True, timeout=280)
    r.same(done.returncode, 0, done.stdout + done.stderr)
    with open(out) as f:
        first, line = map(json.loads, f)
    r.same((first["kind"], line["part"], line["variant"]), ("run", "redis", "lz4"), "the lines")
    r.require(line["memory"]["stored_pages"] > 5000 and line["checked_values"] > 1000, f"{line}")
    r.require(line["swapoff"]["pages"] > 1000 and line["swapoff"]["left_pages"] <= 2, f"{line['swapoff']}")
    r.require("swapoff us/page" in done.stdout, done.stdout)
