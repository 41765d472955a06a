"""Makes a results file as `lab run` would write it, from a seed."""

import json
import math
import random

KERNEL = ("zram", "zswap", "disk")
# Cost of a fault under each variant, and length of its tail; invented numbers.
COST = {"local": 0.0, "canvas": 1.0, "canvas-plain": 1.25, "zram": 1.7, "zswap": 2.4, "disk": 9.0}
VARIANT = {"canvas": {"canvas": []}, "canvas-plain": {"canvas": ["-o", "prefetch=none"]}}
HOSTILE = "<script>document.title='owned'</script>"


def run_line(run_id, **changes):
    line = {
        "kind": "run", "schema": "canvas-bench/1", "run_id": run_id, "started_unix_s": 1_760_000_000,
        "canvas_version": "0.1.0", "argv": ["lab", "run", "quick"], "scale": 1.0, "repeats": 5, "seed": 1,
        "machine": {"cpu": "Made-up CPU @ 2.50GHz", "cpus": 4, "is_virtual": True, "memory_bytes": 16 << 30,
                    "kernel": "6.18.0-test", "cgroup_version": 2, "load_average": 0.31,
                    "features": {"thp": "madvise", "swappiness": "60", "zswap": "N"}},
    }
    line.update(changes)
    return line


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = [run_line("run-1")]
        self.at_s = 0.0

    def noise(self, width=0.04):
        return self.random.lognormvariate(0, width)

    def histogram(self, p50_ns, tail):
        counts = {}
        for _ in range(1500):
            ns = p50_ns * self.random.lognormvariate(0, 0.35)
            if self.random.random() < 0.02:
                ns *= 1 + tail * self.random.paretovariate(1.6)
            bound = int(2 ** (math.ceil(math.log2(ns) * 8) / 8)) + 1
            counts[bound] = counts.get(bound, 0) + 1
        return sorted(counts.items())

    def sample(self, experiment, workload, variant, percent, repeat, seconds, *, requests=False, co_run=None,
               parameters=None, outcome="ok", timeline=True):
        cost = COST[variant]
        far = 0 if percent is None else (100 - percent) / 100
        seconds *= self.noise()
        s = {
            "kind": "sample", "run_id": "run-1", "experiment": experiment, "workload": workload,
            "variant": VARIANT.get(variant, variant), "local_percent": percent,
            "limit_bytes": percent and (percent << 20) * 10, "co_run": co_run, "repeat": repeat,
            "at_s": round(self.at_s, 3), "outcome": outcome, "seconds": seconds, "answer": "4f1e",
            "cpu_user_s": seconds * 0.8, "cpu_system_s": seconds * 0.05 * (1 + cost),
            "memory_peak_bytes": ((percent or 100) << 20) * 10,
        }
        if parameters:
            s["parameters"] = parameters
        if requests:
            s["ops_per_s"] = 2e6 / seconds
            p50 = 18_000 * (1 + far * cost)
            s["latency_ns"] = {"p50": p50, "p99": p50 * (3 + 9 * far * cost), "p999": p50 * (8 + 30 * far * cost)}
            s["latency_histogram"] = self.histogram(p50, 2 + 6 * far * cost)
        if workload.startswith("pattern"):
            # Local accesses, and slow ones in proportion to the far pages.
            slow = self.histogram(3_500 * (1 + cost), 2) if percent else [[900, 3]]
            s["access_histogram"] = [[100, 90_000], [700, 2_000], *[b for b in slow if b[0] > 800]]
        if percent is not None:
            pages = int(250_000 * far * self.noise())
            s.update(faults=pages, swap_in_pages=pages, swap_out_pages=int(pages * 0.9),
                     far_peak_bytes=int((100 - percent) * (10 << 20) / 2.5))
            fault = 3_500 * (1 + cost) * self.noise(0.1)
            s["fault_ns"] = {"p50": fault, "p99": fault * (2 + cost), "p999": fault * (4 + 3 * cost)}
            if variant.startswith("canvas"):
                used = 0.0 if variant == "canvas-plain" else 0.9
                s["prefetch"] = {"issued": int(pages * used), "used": int(pages * used * 0.93),
                                 "contribution": 0.71 * used, "accuracy": 0.93 * used}
                s["entries"] = {"locked": pages // 9, "reserved": pages - pages // 9}
            if timeline:
                rate = pages / seconds
                s["timeline"] = [
                    {"at_s": t * seconds / 80, "in_pages_per_s": rate * self.noise(0.3) * (1 if t > 8 else t / 8),
                     "out_pages_per_s": rate * 0.9 * self.noise(0.3),
                     "ops_per_s": 2e6 / seconds * self.noise(0.1) if requests else None}
                    for t in range(1, 81)]
        self.at_s += seconds
        self.lines.append(s)
        return s

    def sweep(self, experiment, workload, base_s, percents, variants, repeats=5, sensitivity=1.0, **o):
        """A workload over its local ratios, with its all-local run."""
        for repeat in range(repeats):
            self.sample(experiment, workload, "local", None, repeat, base_s, **{**o, "timeline": False})
            for percent in percents:
                for variant in variants:
                    slow = 1 + sensitivity * COST[variant] * ((100 - percent) / 100) ** 1.6
                    self.sample(experiment, workload, variant, percent, repeat, base_s * slow, **o)


def realistic(seed):
    """Lines of a run: sweeps, co-runs, mirrors of papers, skips, and failures."""
    m = Maker(seed)
    variants = ("canvas", "canvas-plain", "zram", "zswap", "disk")
    m.sweep("quick", "redis-ycsb-a", 2.0, (100, 75, 50, 25), variants, requests=True)
    m.sweep("quick", "xgboost", 6.0, (100, 75, 50, 25), variants, sensitivity=0.4)
    m.sweep("quick", "pattern-random", 1.5, (50, 25), ("canvas", "zram", "disk"), sensitivity=2.5)
    m.sweep("quick", HOSTILE, 1.0, (50,), ("canvas", "zram"), repeats=2)
    programs = {"memcached-ycsb-b": 2.5, "snappy": 3.0, "xgboost": 6.0, "spark-lr": 9.0}
    together = "+".join(programs)
    for name, base in programs.items():
        requests = name.startswith("memcached")
        for repeat in range(3):
            o = {"requests": requests, "timeline": requests}
            m.sample("canvas-fig2", name, "local", None, repeat, base, **o)
            for variant in ("canvas", "zram"):
                solo = base * (1 + 0.5 * COST[variant])
                m.sample("canvas-fig2", name, variant, 25, repeat, solo, **o)
                beside = solo * (1.1 if variant == "canvas" else 1.6 + 1.3 * m.random.random())
                m.sample("canvas-fig2", name, variant, 25, repeat, beside, co_run=together, **o)
    for prefetcher in ("leap", "streams", "none"):
        for repeat in range(3):
            m.sample("canvas-table5", "spark-lr", "canvas", 25, repeat, 11.0, timeline=False,
                     parameters={"prefetcher": prefetcher})
    for threads in ("1", "2", "4", "8", "16"):
        for variant in ("canvas", "zram"):
            for repeat in range(3):
                m.sample("canvas-fig4", "random-write", variant, 25, repeat, 4.0 / int(threads) ** 0.5, timeline=False,
                         parameters={"threads": threads})
    m.sweep("infiniswap", "memcached-ycsb-b", 2.5, (75, 50), ("canvas", "zram", "disk"), repeats=3, requests=True,
            timeline=False)
    m.sample("quick", "xgboost", "disk", 25, 5, 60.0, outcome="oom", timeline=False)
    m.sample("quick", "xgboost", "zswap", 25, 5, 60.0, outcome={"failed": "ended by signal 9"}, timeline=False)
    m.lines += [
        {"kind": "skip", "run_id": "run-1", "experiment": "quick", "workload": "spark-lr", "variant": None,
         "reason": "pyspark is not installed; lab has prepared nothing"},
        {"kind": "not_yet", "run_id": "run-1", "experiment": "canvas-table5",
         "waits_for": "the two-tier prefetcher (patterns by thread and by reference): canvas has one tier"},
    ]
    return m.lines


def write(path, lines):
    with open(path, "w") as f:
        for line in lines:
            f.write(json.dumps(line) + "\n")
