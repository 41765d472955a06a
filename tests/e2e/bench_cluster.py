"""The bench of a cluster (`bench/cluster`): what it plans and works out, and a small cluster that lends and runs."""

import glob
import json
import os
import shutil
import subprocess

from lib.harness import WantOfRoot, check

from .bench_guests import BENCH, unit_tests
from .command import canvas_only


def cannot():
    if os.getuid() != 0:
        return WantOfRoot("network namespaces and control groups need root")
    for name in ("ip", "tc", "nsenter", "redis-server", "memcached"):
        if not shutil.which(name):
            return f"{name} is not installed (tests/packages.txt)"
    done = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    if done.returncode:
        return f"no network namespaces here: {done.stderr.strip()}"
    return None if glob.glob("/sys/fs/cgroup/**/memory.stat", recursive=True) else "no control groups for memory here"


def left():
    """What a cluster makes on this host."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    groups = glob.glob("/sys/fs/cgroup/**/canvas-host-*", recursive=True)
    return sorted([*groups, *(n for n in names if n.startswith("canvas-")), *glob.glob("/var/tmp/canvas-place-*")])


@check("cluster-figures", modes=("signal",), timeout_s=60)
def figures(r):
    """What the bench plans and works out is right, and its client notices an answer that is wrong."""
    unit_tests(r, "lib.test_cluster")


@check("cluster", host=True, modes=("signal",), slow_only=True, timeout_s=240, needs=cannot)
def small(r):
    """Five hosts run programs and lend at one time; one wants its memory back, one dies: all bytes are right."""
    canvas_only(r)
    bench, out, before = os.path.join(BENCH, "cluster"), r.path("cluster.jsonl"), left()
    for words, said in ((["--variants", "tape"], "no variant tape"), (["--variants", "zram"], "is to be local"),
                        (["--host-mib", "9999999"], "write --host-mib")):
        wrong = subprocess.run([bench, "--canvas", r.session.canvas, *words], capture_output=True, text=True)
        r.same((wrong.returncode, wrong.stdout, len(wrong.stderr.splitlines())), (2, "", 1), wrong.stderr)
        r.require(said in wrong.stderr, wrong.stderr)
    done = subprocess.run([bench, "--canvas", r.session.canvas, "--quick", "--out", out], capture_output=True,
                          text=True, timeout=230)
    r.same(done.returncode, 0, done.stdout[-6000:] + done.stderr)
    r.same(left(), before, "what is left of the hosts")
    with open(out) as f:
        first, *lines = map(json.loads, f)
    wholes = {x["variant"]: x["whole"] for x in lines if "whole" in x}
    r.same((first["kind"], sorted(wholes)), ("run", ["canvas:1+disk", "local"]), "the lines")
    whole = wholes["canvas:1+disk"]
    ended = [x["outcome"] for x in lines if x["variant"] == "canvas:1+disk" and "outcome" in x]
    # How fast they are is the bench's matter; on a host of two processors some still work when it ends.
    r.same(set(ended) - {"ok", "died", "unfinished"}, set(), "how containers ended")
    r.require(ended.count("ok") >= len(ended) // 3, f"how containers ended: {ended}")
    r.require(whole["memory"]["lent_mib_max"] > 30 and whole["far"]["reads"] > 500, f"hosts lent: {whole}")
    r.same([whole["far"][k] for k in ("corrupt", "verify_failures", "anomalies")], [0, 0, 0], "what was not right")
    r.require(whole["at_death"]["answers"] > 100, f"others worked when a host died: {whole['at_death']}")
    r.require("lent MiB" in done.stdout and "completion" in done.stdout, done.stdout[-3000:])
    r.note(f"lent up to {whole['memory']['lent_mib_max']} MiB, {whole['evicted_slabs']} slabs taken back, "
           f"longest answer after the death {whole['at_death']['max_us'] / 1e3:.0f} ms")
