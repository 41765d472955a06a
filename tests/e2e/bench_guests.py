"""Guests that swap (`lab run fastswap`): the figures computed from their output, and a small run."""

import os
import shutil
import subprocess
import sys

from lib.harness import WantOfRoot, check

from .bench_events import samples_of
from .command import canvas_only
from .disk import vm_missing

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def cannot():
    if os.getuid() != 0:
        return WantOfRoot("guests that swap onto canvas need root")
    for name in ("redis-server", "memcached", "gcc", "qemu-storage-daemon"):
        if not shutil.which(name):
            return f"no {name}"
    return vm_missing()


@check("lab-guests-figures", modes=("signal",), timeout_s=60)
def figures(r):
    """Commands to guests and computed figures are right, and the client notices a wrong answer."""
    canvas_only(r)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.join(ROOT, d) for d in ("tests", "lab"))}
    done = subprocess.run([sys.executable, "-m", "unittest", "guests.test_guests"], env=env, capture_output=True, text=True)
    r.same(done.returncode, 0, done.stderr)
    r.require("OK" in done.stderr.splitlines()[-1] and "Ran 0" not in done.stderr, done.stderr)


@check("lab-guests", host=True, modes=("signal",), slow_only=True, timeout_s=600, needs=cannot)
def small(r):
    """Analytics together with a redis in guests that swap onto canvas: rows with all figures, and equal
    answers."""
    canvas_only(r)
    samples, said = samples_of(r, "fastswap", "--with", "lr", "--variants", "canvas", "--scale", "0.2", timeout_s=580)
    for s in samples:
        r.same(s["outcome"], "ok", f"{s}")
    r.same({s["parameters"]["onto"] for s in samples}, {"none", "lz4"}, "what guests swapped onto")
    for workload, percent in (("lr", 100), ("lr", 75), ("lr", 50), ("kmeans", 50)):
        of = [s for s in samples if (s["workload"], s["local_percent"]) == (workload, percent)]
        r.same((len(of), len({s["answer"] for s in of})), (2, 1), f"{workload} at {percent} %")
        r.require(all(s["seconds"] > 0 for s in of), f"{of}")
    stored = [s["figures"]["memory_stored_pages"] for s in samples if s["workload"] == "ended"]
    r.require(len(stored) == 2 and min(stored) > 1000, f"pages that canvas stored: {stored}")
    r.require("memory_host_mib" in said, said)
