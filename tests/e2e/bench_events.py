"""Scripts of `lab` at the smallest size: donors that die, and a cluster."""

import glob
import os
import shutil
import subprocess

from lib import lab
from lib.harness import WantOfRoot, check

from .bench import host, kind, lines
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


def samples_of(r, *words, timeout_s):
    """Runs an experiment once; returns its samples and its output, and checks that the host is unchanged."""
    before, out = host(), r.path("results.jsonl")
    p = lab.call(r, "run", *words, "--repeats", "1", "--out", out, "--cache", r.path("cache"), timeout_s=timeout_s)
    r.same(p.returncode, 0, p.stdout[-3000:] + p.stderr[-3000:])
    r.same(host(), before, "the host after the experiment")
    return [x for x in lines(out) if x["kind"] == "sample"], p.stdout


@check("lab-erasure", host=True, modes=("signal",), slow_only=True, timeout_s=240)
def erasure(r):
    """Donors die under copies and codes: three copies and 4+2 lose nothing, two copies and 2+1 lose a page."""
    canvas_only(r)
    samples, said = samples_of(r, "erasure", "--scale", "0.25", timeout_s=230)
    phases = {}
    for s in samples:
        r.same(s["outcome"], "ok", f"{s}")
        phases.setdefault(s["variant"]["canvas_far"]["copies"], []).append(s)
    lost = {copies: sum(s["figures"]["lost"] for s in of) for copies, of in phases.items()}
    r.same(lost, {"2": 1, "3": 0, "2+1": 1, "4+2": 0}, "what lost a page")
    memory = {copies: of[0]["figures"]["memory_times"] for copies, of in phases.items()}
    r.same(memory, {"2": 2, "3": 3, "2+1": 1.5, "4+2": 1.5}, "memory of donors")
    for s in phases["4+2"]:
        r.require(s["ops_per_s"] > 0 and s["access_ns"]["p99"] >= s["access_ns"]["p50"], f"{s}")
    r.require("memory_times" in said and "canvas-far[4+2]" in said, said)


@check("lab-cluster", host=True, modes=("signal",), slow_only=True, timeout_s=420, needs=cannot)
def cluster(r):
    """Five hosts run programs and lend memory at the same time; one needs its memory back, one dies: all
    bytes are right."""
    canvas_only(r)
    samples, said = samples_of(r, "cluster", "--scale", "0.25", "--variants", "local,canvas-far", timeout_s=410)
    wholes = {s["variant"]["canvas_far"]["copies"] if kind(s) == "canvas_far" else "local": s["figures"]
              for s in samples if s["workload"] == "cluster"}
    r.same(sorted(wholes), ["1+disk", "local"], "the variants")
    for s in samples:
        # Does not judge the speed: on a host with two processors some containers are unfinished at the end.
        r.require(s["outcome"] in ("ok", "oom"), f"{s}")
    ended = [s for s in samples if "container" in s.get("parameters", {}) and kind(s) == "canvas_far"]
    r.require(sum(s["seconds"] is not None for s in ended) >= len(ended) // 3, f"how containers ended: {ended}")
    whole = wholes["1+disk"]
    r.require(whole["lent_most_mib"] > 30, f"hosts lent: {whole}")
    r.require(sum(s["far"]["reads"] or 0 for s in ended if s.get("far")) > 500, "reads from other hosts")
    r.require("longest_after_death_ms" in whole and whole["died"] > 0, f"others worked when a host died: {whole}")
    r.require("completion_times_local" in said, said[-3000:])
    r.note(f"lent up to {whole['lent_most_mib']:.0f} MiB, {whole['evicted_slabs']:.0f} slabs taken back, "
           f"longest answer after the death {whole['longest_after_death_ms']:.0f} ms")
