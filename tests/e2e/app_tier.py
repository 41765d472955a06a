"""`-o app-tier`: prefetching for faults that the pager's prefetcher cannot predict."""

import json
import os
import shutil
import subprocess

from lib import canvas
from lib.harness import MIB, ONCE, Skip, check

from . import hostile
from .operate import ask, wait_until

find = canvas.find
TIERS = "off", "threads", "refs", "auto"


def linked(r, kind, tier, *flags):
    """Runs tests/c/linked.c with at most half of its pages local, many beyond the pool; returns its report."""
    mib, pool_mib, rounds = r.size((16, 2, 3), (24, 4, 5))
    c = r.call([r.binary("linked"), kind, mib, 4096, rounds, *hostile.seeds(r, 1)], tag=f"{kind}-{tier}",
               local=8 * MIB, pool=pool_mib * MIB,
               extra=["--far", "256M", "--to", f"disk:{r.dir}", "--copies", "disk", "-o", "unit=4K",
                      "-o", "proactive-threshold=off", "-o", f"app-tier={tier}", *flags])
    r.require(f"round {rounds - 1}" in c.out(), f"{kind}: {c.tail()}")
    stats = r.load_stats(c)
    r.same([find(stats, key) for key in ("verify_failures", "anomalies")], [0, 0], "verify failures, anomalies")
    r.same(stats["policy"]["app_tier"], tier, "policy.app_tier")
    return stats


@check("app-tier", timeout_s=240, normal=ONCE, **hostile.C)
def app_tier(r):
    """A list and a tree of pages in random order: the pages they refer to are read ahead, and few others."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    for kind in r.size(("tree",), ("list", "tree")):
        by_tier = {tier: linked(r, kind, tier) for tier in r.size(("off", "refs", "auto"), TIERS)}
        waited = {tier: find(stats, "faults_beyond_pool") for tier, stats in by_tier.items()}
        r.note(f"{kind}: read while a thread waits {waited}")
        for tier in {"off", "threads"} & set(by_tier):
            r.same([find(by_tier[tier], f"app_issued_{what}") for what in ("links", "refs")], [0, 0], tier)
        refs = by_tier["refs"]
        issued, used = (sum(find(refs, f"app_{what}_{by}") for by in ("links", "refs")) for what in ("issued", "used"))
        r.require(used > 0.9 * issued, f"{kind}: {used} of {issued} pages read ahead were used")
        # Where the faulting instruction is known so are its pointers; otherwise only the former order is.
        part = 0.2 if r.mode == "signal" else 0.8
        r.require(waited["refs"] < part * waited["off"], f"{kind}: {waited}")
        # Values as measured here; the measurement itself does not depend on the host.
        trials = {tier: find(stats, "app_trials") for tier, stats in by_tier.items()}
        r.require(trials["auto"] > 0 and trials["refs"] == 0, f"{kind}: comparisons {trials}")


@check("app-tier-set", modes=("signal",), timeout_s=120, **hostile.C)
def app_tier_set(r):
    """Switched off and on while a program runs; a wrong value is refused in one line and changes nothing."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    name = f"tier{os.getpid()}"
    c = r.start([r.binary("linked"), "list", 24, 4096, 100_000, *hostile.seeds(r, 1)], tag="live", local=8 * MIB,
                pool=5 * MIB, extra=["--tenant", name, "--far", "256M", "--to", f"disk:{r.dir}", "--copies", "disk",
                                     "-o", "proactive-threshold=off", "-o", "app-tier=off"])

    def status():
        return json.loads(ask(r, "status", name, "--json"))

    wait_until(r, "the program works", lambda: "round 0" in c.out() or not c.alive())
    for bad in ("app-tier=on", "app-tier="):
        done = subprocess.run([r.session.canvas, "set", name, bad], capture_output=True, text=True)
        r.same((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), bad)
        r.require("auto, off, threads, refs" in done.stderr, f"{bad}: {done.stderr}")
    r.same(status()["limits"]["app_tier"], "off", "limits.app_tier")
    ask(r, "set", name, "app-tier=refs")
    r.same(status()["limits"]["app_tier"], "refs", "limits.app_tier")
    before = c.out().count("round")
    wait_until(r, "it goes on", lambda: c.out().count("round") > before + 3 or not c.alive())
    said = [ask(r, "stat", name, "-n", "1", *how).splitlines() for how in (["--prefetch"], ["--json"])]
    head, row = said[0][-2].split(), said[0][-1].split()
    r.same((len(head), len(row)), (12, 13), f"columns of {said[0]}")
    ahead = json.loads(said[1][0])["ahead"]
    r.require(ahead["forwarded_per_s"] > 0 and ahead["refs_per_s"] + ahead["links_per_s"] > 0, f"{ahead}")
    os.kill(c.pid, 15)
    r.wait(c, expect=143, timeout_s=30)
    stats = r.load_stats(c)
    r.require(find(stats, "app_issued_refs") > 500, f"{find(stats, 'app_issued_refs')} by reference")


JAVA = """
import java.util.TreeMap;
public class Nodes {
    public static void main(String[] a) {
        TreeMap<Integer, byte[]> map = new TreeMap<>();
        java.util.Random rng = new java.util.Random(5);
        for (int i = 0; i < 40_000; i++) {
            byte[] item = new byte[1000];
            rng.nextBytes(item);
            map.put(rng.nextInt(), item);
        }
        long first = 0;
        for (int round = 0; round < 5; round++) {
            long sum = 0;
            for (var e : map.entrySet()) sum = sum * 31 + e.getKey() + e.getValue()[999];
            if (round == 0) first = sum;
            if (sum != first) throw new AssertionError();
        }
        System.out.println("right");
    }
}
"""


@check("app-tier-java", slow_only=True, modes=("signal",), timeout_s=200,
       needs=lambda: None if shutil.which("javac") else "no javac")
def java(r):
    """Reads references of a stock JVM by its own tables, and ignores its collector threads; nothing is
    written to stderr."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    source = r.write("Nodes.java", JAVA)
    subprocess.run(["javac", "-d", r.dir, source], check=True, timeout=120)
    c = r.call(["java", "-XX:+UseSerialGC", "-Xmx160m", "-Xms160m", "-cp", r.dir, "Nodes"], tag="java", local=48 * MIB,
               pool=10 * MIB, extra=["--far", "512M", "--to", f"disk:{r.dir}", "--copies", "disk", "-o", "app-tier=refs"],
               timeout_s=150)
    r.same((c.out(), c.err()), ("right\n", ""), "output and standard error")
    stats = r.load_stats(c)
    names = "faults_forwarded", "faults_kept_out", "issued_refs", "used_refs"
    got = {name: find(stats, f"app_{name}") for name in names}
    r.note(str(got))
    r.require(got["faults_kept_out"] > 100, f"no collector was kept out: {got}")
    r.require(got["issued_refs"] > 100 and got["used_refs"] > 50, f"no reference was followed: {got}")
