"""`lab run` itself: a tiny run, its results, report and comparison; the host is left unchanged."""

import glob
import json
import os
import signal
import time

from lib import lab
from lib.harness import Failure, check
from net import hosts

from .command import canvas_only

# The smallest size at which half of the working set exceeds each program's minimum.
SCALE = ("--scale", "0.06")


def host():
    """Present state of everything that a bench changes."""
    with open("/proc/swaps") as f:
        swaps = f.read()
    groups = []
    for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory"):
        groups += glob.glob(f"{root}/canvas-bench*")
    return {
        "swaps": swaps, "zram": sorted(glob.glob("/dev/zram*")), "groups": sorted(set(groups)),
        "journals": sorted(glob.glob("/run/canvas-lab/*")), "links": sorted(glob.glob("/sys/class/net/cb*n*")),
    }


def lines(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def skipped(all_lines):
    return {x["variant"]: x["reason"] for x in all_lines if x["kind"] == "skip"}


def kind(sample):
    """A variant's name without its flags."""
    v = sample["variant"]
    return v if isinstance(v, str) else next(iter(v))


@check("bench-tiny", host=True, modes=("signal",), timeout_s=120)
def tiny(r):
    """Programs under all variants of this host; report and comparison of the results."""
    canvas_only(r)
    before = host()
    results = r.path("results.jsonl")
    names = r.size(("zipf",), ("quicksort", "zipf"))
    p = lab.call(r, "run", *names, *SCALE, "--repeats", "3", "--ratios", "50", "--variants", "local,canvas,zram", "--out", results,
            "--cache", r.path("cache"), timeout_s=110)
    r.same(p.returncode, 0, f"code of the bench ({p.stderr[-1500:]})")
    r.same(host(), before, "the host after the bench")
    got = lines(results)
    r.same(got[0]["kind"], "run", "first line")
    missing = skipped(got)
    variants = [v for v in ("local", "canvas", "zram") if v not in missing]
    samples = [x for x in got if x["kind"] == "sample"]
    r.same(len(samples), len(names) * len(variants) * 3, f"samples (skipped: {missing})")
    ooms = 0
    for s in samples:
        what = f"{s['workload']} on {s['variant']}"
        if kind(s) == "zram" and s["outcome"] == "oom":
            # With cgroup v1 this happens at times although swap is free: a valid result.
            ooms += 1
            continue
        r.same(s["outcome"], "ok", what)
        r.require(s["seconds"] > 0, f"{what} took no time")
        if kind(s) != "local":
            r.require(s["swap_out_pages"] > 0, f"{what} did not page")
            r.require(s["memory_peak_bytes"] <= s["limit_bytes"] * 1.01 + (4 << 20),
                      f"{what}: {s['memory_peak_bytes']} B of {s['limit_bytes']}")
    for name in names:
        answers = {s["answer"] for s in samples if s["workload"] == name and s["outcome"] == "ok"}
        r.same(len(answers), 1, f"answers of {name}: {answers}")
        r.require(name in p.stdout, f"no {name} in the table:\n{p.stdout}")

    page = r.path("page.html")
    p = lab.call(r, "report", results, "-o", page)
    r.same((p.returncode, p.stdout, p.stderr), (0, "", ""), "lab report")
    with open(page) as f:
        text = f.read()
    r.require(text.count("<svg") >= 2, "the page has no plots")
    r.require(all(name in text for name in names), "the page does not name the programs")

    p = lab.call(r, "compare", results, results)
    r.same((p.returncode, p.stderr), (0, ""), "lab compare")
    rows = [x for x in p.stdout.splitlines() if x.endswith("no difference seen")]
    few = len(names) * len(variants) - len(rows)
    r.require(0 <= few <= ooms, f"rows of a file against itself:\n{p.stdout}")
    r.note(f"{len(samples)} samples, {ooms} out of memory; skipped: {missing or 'nothing'}")


@check("bench-far", host=True, modes=("signal",), timeout_s=150)
def far(r):
    """A program over donors that the bench starts: its records are complete, and nothing of the donors is
    left."""
    canvas_only(r)
    before = host()
    results = r.path("results.jsonl")
    p = lab.call(r, "run", "random-read", "--scale", "0.12", "--repeats", "1", "--ratios", "50", "--variants",
            "local,canvas-far", "--out", results, "--cache", r.path("cache"), timeout_s=140)
    r.same(p.returncode, 0, f"code of the bench ({p.stderr[-1500:]})")
    r.same(host(), before, "the host after the bench")
    samples = {kind(s): s for s in lines(results) if s["kind"] == "sample"}
    r.same({k: s["outcome"] for k, s in samples.items()}, {"local": "ok", "canvas_far": "ok"}, "outcomes")
    r.same(samples["canvas_far"]["answer"], samples["local"]["answer"], "answer")
    got = samples["canvas_far"]["far"]
    r.same(got["donors"], 3, "donors")
    for what in ("pages_demoted", "faults", "in_bytes", "out_bytes", "donors_cpu_s", "agent_peak_bytes"):
        r.require(got[what] and got[what] > 0, f"{what} of {got}")
    r.require(got["donors_bytes"] >= 2 * got["out_bytes"], f"two copies of all that was written: {got}")
    r.require(0 < got["read_ns"]["p50"] <= got["read_ns"]["max"], f"times of reads: {got}")
    r.require(all(got["tcp"][k] > 0 for k in ("blocking_ns", "busy_ns", "stream_bytes_per_s")), f"TCP: {got}")
    left = [line for line in processes() if r.path("canvas-bench-") in line]
    r.same(left, [], "donors that are left")
    r.note(f"read p50 {got['read_ns']['p50'] / 1000:.0f} us, TCP {got['tcp']['busy_ns'] / 1000:.0f} us")


@check("bench-far-link", host=True, modes=("signal",), slow_only=True, needs=hosts.missing, timeout_s=180)
def far_link(r):
    """Donors behind a link of 200 Mbit/s: nothing exceeds that rate, and nothing of the link is left, even
    after a kill."""
    canvas_only(r)
    before = host()
    results = r.path("results.jsonl")
    common = ("--ratios", "25", "--variants", "canvas-far", "--far-link", "200mbit", "--cache", r.path("cache"))
    p = lab.call(r, "run", "sequential", "--scale", "0.12", "--repeats", "1", *common, "--out", results, timeout_s=100)
    r.same(p.returncode, 0, f"code of the bench ({p.stderr[-1500:]})")
    r.same(host(), before, "the host after the bench")
    sample, = [s for s in lines(results) if s["kind"] == "sample"]
    r.same((sample["outcome"], sample["variant"]["canvas_far"]["link_bits_per_s"]), ("ok", 200_000_000), "the run")
    link = 200e6 / 8
    r.require(0.5 * link < sample["far"]["tcp"]["stream_bytes_per_s"] < link, f"a stream: {sample['far']}")
    begin, end = sample["measured_s"]
    r.require(0 <= begin < end, f"the measured part: {begin} to {end}")
    # Ticks are a quarter of a second, in which a full bucket matters little.
    rates = [t["far"]["in_bytes_per_s"] for t in sample["timeline"] if begin < t["at_s"] < end]
    r.require(rates and 0 < max(rates) < 1.1 * link, f"rates of reading: {rates}")

    child = r.start([lab.path(r), "run", "sequential", "--scale", "0.06", "--repeats", "99", *common, "--out",
                     r.path("other.jsonl")], tag="bench", canvas_on=False)
    first_sample(r, child, r.path("other.jsonl"))
    end = time.monotonic() + 30
    while host()["links"] == before["links"]:
        r.require(time.monotonic() < end, "the next run has no link")
        time.sleep(0.02)
    child.signal(signal.SIGKILL)
    r.wait(child, expect=None, timeout_s=30)
    while host() != before:
        r.require(time.monotonic() < end + 30, f"after SIGKILL: {host()}")
        time.sleep(0.1)
    left = [line for line in processes() if r.path("canvas-bench-") in line]
    r.same(left, [], "processes that are left")
    r.note(f"stream {sample['far']['tcp']['stream_bytes_per_s'] / 1e6:.1f} MB/s, reads up to {max(rates) / 1e6:.1f}")


@check("bench-isolation", host=True, modes=("signal",), needs=hosts.missing, slow_only=True, timeout_s=340)
def isolation(r):
    """A program alone and with company, on one agent behind a link: the company ends with it, and nothing is
    left."""
    canvas_only(r)
    before = host()
    results = r.path("results.jsonl")
    # Cells after the first ones are left out.
    p = lab.call(r, "run", "isolation", "--variants", "canvas-far", "--scale", "0.1", "--repeats", "1", "--time-max",
            "240s", "--out", results, "--cache", r.path("cache"), timeout_s=320)
    r.require(p.returncode in (0, 1), f"code of the bench ({p.stderr[-1500:]})")
    r.same(host(), before, "the host after the bench")
    samples = [s for s in lines(results) if s["kind"] == "sample"]
    beside = [s for s in samples if s.get("co_run") == "random-read+sequential"
              and s["variant"]["canvas_far"]["tenancy"] == "each"]
    r.same({s["workload"]: s["outcome"] for s in beside}, {"random-read": "ok", "sequential": "ok"}, "the co-run")
    by_name = {s["workload"]: s for s in beside}
    r.same(by_name["sequential"].get("answer"), None, "answer of company, which is ended")
    r.require(all(s["far"]["in_bytes"] > 0 for s in beside), f"bytes of each tenant: {beside}")
    link = by_name["random-read"]["link_to_host"]
    carried = (link[-1][1] - link[0][1]) / (link[-1][0] - link[0][0])
    r.require(0 < carried < 1.1 * 200e6 / 8, f"{carried} bytes a second over the link")
    left = [line for line in processes() if r.path("canvas-bench-") in line]
    r.same(left, [], "processes that are left")


def processes():
    """Command lines of all processes."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as f:
                found.append(f.read().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            pass
    return found


@check("bench-user", host=True, modes=("signal",), as_user=True, timeout_s=90)
def user(r):
    """Without root, local and canvas run; the kernel's variants are skipped with the reason."""
    canvas_only(r)
    before = host()
    results = r.path("results.jsonl")
    common = ("--ratios", "50", "--out", results, "--cache", r.path("cache"))
    p = lab.call(r, "run", "zipf", *SCALE, "--repeats", "1", *common, "--variants", "local,canvas,zram",
            timeout_s=80)
    r.same(p.returncode, 0, f"code ({p.stderr[-1500:]})")
    got = lines(results)
    r.require("root" in skipped(got).get("zram", ""), f"why zram is skipped: {skipped(got)}")
    r.same(sorted((kind(s), s["outcome"]) for s in got if s["kind"] == "sample"),
           [("canvas", "ok"), ("local", "ok")], "samples")
    size = os.path.getsize(results)
    p = lab.call(r, "run", "zipf", *common, "--variants", "zram")
    r.same((p.returncode, p.stdout), (2, ""), "zram alone")
    r.require("root" in p.stderr and len(p.stderr.splitlines()) == 1, f"what it says: {p.stderr!r}")
    r.same(os.path.getsize(results), size, "results after an error")
    r.same(host(), before, "the host")
    r.same(glob.glob(r.path("canvas-bench-*")), [], "journals and scratch in the temporary directory")


def first_sample(r, child, results):
    """Waits until the bench `child` has written a sample."""
    end = time.monotonic() + 60
    while not (os.path.exists(results) and any(x["kind"] == "sample" for x in lines(results))):
        if not child.alive():
            raise Failure(f"the bench ended\n{child.tail()}")
        r.require(time.monotonic() < end, f"no sample in a minute\n{child.tail()}")
        time.sleep(0.2)


@check("bench-two", host=True, modes=("signal",), timeout_s=120)
def two(r):
    """A second bench reports the first: with the kernel's swap it ends at once, without it runs."""
    canvas_only(r)
    before = host()
    results, other = r.path("results.jsonl"), r.path("other.jsonl")
    common = (*SCALE, "--ratios", "50", "--cache", r.path("cache"))
    child = r.start([lab.path(r), "run", "zipf", *common, "--variants", "local,canvas", "--repeats", "99",
                     "--out", results], tag="bench", canvas_on=False)
    first_sample(r, child, results)
    p = lab.call(r, "run", "zipf", *common, "--variants", "local,zram", "--out", other)
    if os.getuid() == 0:
        r.same((p.returncode, p.stdout, os.path.exists(other)), (2, "", False), f"beside another ({p.stderr})")
        r.require(f"process {child.pid}" in p.stderr and len(p.stderr.splitlines()) == 1,
                  f"what it says: {p.stderr!r} (the first is {child.pid})")
    p = lab.call(r, "run", "zipf", *common, "--variants", "local", "--repeats", "1", "--out", other, timeout_s=60)
    r.same(p.returncode, 0, f"without the kernel's swap ({p.stderr})")
    r.require(f"process {child.pid}" in p.stderr, f"what it says: {p.stderr!r}")
    child.signal(signal.SIGINT)
    r.wait(child, expect=130, timeout_s=30)
    p = lab.call(r, "run", "zipf", *common, "--variants", "local", "--repeats", "1", "--out", other, timeout_s=60)
    r.same((p.returncode, "process" in p.stderr), (0, False), f"alone again ({p.stderr})")
    r.same(host(), before, "the host")


@check("bench-interrupted", host=True, modes=("signal",), timeout_s=90)
def interrupted(r):
    """Ctrl-C in the middle of a run: exit code 130, and the host is unchanged."""
    canvas_only(r)
    before = host()
    results = r.path("results.jsonl")
    child = r.start([lab.path(r), "run", "zipf", "--scale", "0.1", "--ratios", "50", "--variants", "zram,canvas",
                     "--repeats", "9", "--out", results, "--cache", r.path("cache")], tag="bench", canvas_on=False)
    first_sample(r, child, results)
    child.signal(signal.SIGINT)
    r.wait(child, expect=130, timeout_s=30)
    r.same(host(), before, "the host")
