"""What is measured. Each item gives a figure under each of its engines, and has targets."""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

from lib import clients
from lib.venv import python_with

from .engine import MIB, Broken

HEAP_MIB = 1024
BUDGET = 256 * MIB


class Item:
    """`measure(lab, engine)` gives {"value": ..., ...}; `better` says which way is good.

    A target is (against, relation, bound): against "zram" or "local" it is about the ratio of
    speeds; against a key of the result about the figure itself.
    """

    def __init__(self, name, unit, better, engines, measure, targets=(), missing=None):
        self.name, self.unit, self.better, self.engines = name, unit, better, engines
        self.measure, self.targets, self.missing = measure, targets, missing


def fault_p50_ns(stats):
    return stats.get("fault_time_ns", {}).get("p50")


def pattern(kind, threads=1, seconds=3.0):
    def measure(lab, engine):
        part = 4 if lab.quick else 1
        with lab.stage(engine, BUDGET // part, HEAP_MIB * MIB // part) as s:
            c = s.call([lab.program("pattern"), kind, HEAP_MIB // part,
                        1.0 if lab.quick else seconds, threads, 1], timeout_s=300)
            d = json.loads(c.out())
        r = {"value": d["ops_per_s"], "ns_per_op": d["ns_per_op"], "p50_ns": d["p50_ns"], "p99_ns": d["p99_ns"],
             "us_per_page": d["ns_per_op"] / 1000, "over_budget_bytes": s.over_budget_bytes(), **s.extra}
        if "stats" in s.extra:
            p50 = fault_p50_ns(s.extra["stats"])
            if p50 is not None:
                r["fault_p50_us"] = p50 / 1000
        return r

    return measure


def startup(lab, engine):
    """Median of 20 starts of /bin/true, in ms."""
    times = []
    for _ in range(5 if lab.quick else 20):
        with lab.stage(engine) as s:
            stats = os.path.join(s.dir, "stats.json")
            argv = [shutil.which("true")]
            if engine != "local":
                argv = [*s.canvas_argv(stats), *argv]
            began = time.monotonic()
            subprocess.run(argv, check=True)
            times.append((time.monotonic() - began) * 1000)
    return {"value": statistics.median(times)}


# -- key-value servers -------------------------------------------------------------------------
def server(s, kind, memory_mib):
    path = os.path.join(s.dir, "s.sock")
    if kind == "redis":
        argv = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no",
                "--daemonize", "no", "--dir", s.dir]
    else:
        user = ["-u", "nobody"] if os.getuid() == 0 else []
        os.chmod(s.dir, 0o777)
        argv = ["memcached", *user, "-t", "4", "-m", str(memory_mib), "-s", path, "-a", "777"]
    child = s.start(argv, tag=kind)
    clients.wait_socket(path, child, timeout_s=60)
    return child, path


def end_server(s, child):
    if s.group and s.group.oom_kills():
        raise Broken("OOM")
    child.signal(15)
    s.wait(child, 120, expect=None)


def key_value(kind):
    value_bytes = 1000

    def keys(lab):
        return 60_000 if lab.quick else 400_000

    def load(lab, s):
        child, path = server(s, kind, keys(lab) // 500 + 64)
        s.outside([lab.program("kvload"), kind, path, "load", keys(lab), value_bytes], timeout_s=300)
        return child, path

    def measure(lab, engine):
        def plain(s):
            child, _ = load(lab, s)
            time.sleep(0.3)
            end_server(s, child)

        budget = lab.footprint(kind, plain) // 4
        with lab.stage(engine, budget, 4 * budget) as s:
            child, path = load(lab, s)
            zipf = [lab.program("kvload"), kind, path, "zipf", keys(lab), value_bytes]
            # Both servers still move their keys to a larger hash table for seconds after the load.
            s.outside([*zipf, 2 if lab.quick else 6, 8, 4, 5, 2], timeout_s=300)
            out = s.outside([*zipf, 2 if lab.quick else 6, 8, 4, 5, 1], timeout_s=300)
            end_server(s, child)
        d = json.loads(out)
        return {"value": d["ops_per_s"], "p50_ns": d["batch_p50_ns"], "p99_ns": d["batch_p99_ns"],
                "budget_mib": budget / MIB, "over_budget_bytes": s.over_budget_bytes(), **s.extra}

    return measure


def redis_benchmark(lab, engine):
    with lab.stage(engine) as s:
        child, path = server(s, "redis", 0)
        n = 40_000 if lab.quick else 300_000
        out = s.outside(["redis-benchmark", "-s", path, "-n", n, "-r", 100_000, "-d", 500, "-c", 20,
                         "-t", "set,get", "--csv"], timeout_s=300)
        end_server(s, child)
    rates = [float(m) for m in re.findall(r'^"(?:SET|GET)","([\d.]+)"', out, re.M)]
    if len(rates) != 2:
        raise Broken("FAILED", out[:300])
    return {"value": statistics.geometric_mean(rates), "set_per_s": rates[0], "get_per_s": rates[1], **s.extra}


# -- Java, Python, Spark ------------------------------------------------------------------------
_answers = {}


def timed(key, argv_of, share, out_is_answer=lambda out: out, pool_factor=2, limited=True):
    """A batch program: its seconds; its output must be the same under every engine."""

    def measure(lab, engine):
        budget, pool = 0, 0
        if limited:
            footprint = lab.footprint(key, lambda s: s.call(**argv_of(lab)))
            budget, pool = int(footprint * share), int(footprint * pool_factor)
        with lab.stage(engine, budget, pool or (1 << 30)) as s:
            c = s.call(timeout_s=900, **argv_of(lab))
            out, err = c.out(), c.err()
        m = re.search(r"^seconds ([\d.]+)", out + err, re.M)
        seconds = float(m.group(1)) if m else c.seconds
        answer = out_is_answer(re.sub(r"^seconds .*$", "", out, flags=re.M).strip())
        if _answers.setdefault(key, answer) != answer:
            raise Broken("WRONG", f"{answer[:200]} instead of {_answers[key][:200]}")
        return {"value": seconds, "total_s": c.seconds, "budget_mib": budget / MIB,
                "over_budget_bytes": s.over_budget_bytes(), **s.extra}

    return measure


def java_argv(lab):
    nodes, rounds = (400_000, 2) if lab.quick else (3_000_000, 4)
    return {"argv": ["java", "-XX:-UsePerfData", "-Xmx900m", "-Xms900m", "-cp", lab.java_classes(), "Work",
                     nodes, rounds, 2, 5], "tag": "java"}


def java_free_argv(lab):
    nodes, rounds = (400_000, 4) if lab.quick else (1_500_000, 20)
    return {"argv": ["java", "-XX:-UsePerfData", "-Xmx600m", "-Xms600m", "-cp", lab.java_classes(), "Work",
                     nodes, rounds, 2, 5], "tag": "java"}


def ml_python():
    return python_with("xgboost") or ("/usr/bin/python3" if subprocess.run(
        ["/usr/bin/python3", "-c", "import sklearn"], capture_output=True).returncode == 0 else None)


def xgb_argv(lab):
    rows, rounds = (100_000, 10) if lab.quick else (1_200_000, 30)
    return {"argv": [ml_python(), os.path.join(lab.root, "bench", "py", "xgb.py"), rows, rounds], "tag": "xgb",
            "env": {"OMP_NUM_THREADS": "2"}}


def spark_argv(lab):
    rows = 300_000 if lab.quick else 2_000_000
    return {"argv": [python_with("pyspark"), os.path.join(lab.root, "tests", "py", "spark.py"), rows, "1g"],
            "tag": "spark", "env": {"SPARK_LOCAL_IP": "127.0.0.1"}}


def spark_answer(out):
    return "\n".join(l for l in out.splitlines() if l.startswith(("rows", "logistic", "kmeans", "positive")))


def needs(*commands):
    def reason():
        gone = [c for c in commands if not shutil.which(c)]
        return f"{', '.join(gone)} not installed" if gone else None

    return reason


PEERS = ("local", "zram", "canvas")
ITEMS = [
    Item("random-read", "ops/s", "higher", PEERS, pattern("randread"),
         [("zram", ">=", 3.0), ("fault_p50_us", "<=", 5.0)]),
    Item("random-write", "ops/s", "higher", PEERS, pattern("randwrite"), [("zram", ">=", 2.5)]),
    Item("sequential-read", "pages/s", "higher", PEERS, pattern("seqread"),
         [("zram", ">=", 8.0), ("us_per_page", "<=", 1.5)]),
    Item("fill", "pages/s", "higher", PEERS, pattern("fill"), [("zram", ">=", 2.5)]),
    Item("zipf-read", "ops/s", "higher", PEERS, pattern("zipfread")),
    Item("threads-1", "ops/s", "higher", ("zram", "canvas"), pattern("randread", 1)),
    Item("threads-2", "ops/s", "higher", ("zram", "canvas"), pattern("randread", 2), [("threads-1", ">=", 1.0)]),
    Item("threads-4", "ops/s", "higher", ("zram", "canvas"), pattern("randread", 4), [("threads-2", ">=", 1.0)]),
    Item("threads-8", "ops/s", "higher", ("zram", "canvas"), pattern("randread", 8), [("threads-4", ">=", 1.0)]),
    Item("start-up", "ms", "lower", ("local", "canvas-roomy"), startup, [("added", "<=", 50.0)]),
    Item("no-limit-redis", "requests/s", "higher", ("local", "canvas-free", "canvas-roomy"), redis_benchmark,
         [("local", ">=", 0.97)], needs("redis-server", "redis-benchmark")),
    Item("no-limit-java", "s", "lower", ("local", "canvas-free", "canvas-roomy"),
         timed("java-free", java_free_argv, 1.0, limited=False), [("local", ">=", 0.97)], needs("java", "javac")),
    Item("redis-25", "ops/s", "higher", PEERS, key_value("redis"), [("zram", ">=", 2.0), ("local", ">=", 0.5)],
         needs("redis-server")),
    Item("memcached-25", "ops/s", "higher", PEERS, key_value("memcached"),
         [("zram", ">=", 2.0), ("local", ">=", 0.5)], needs("memcached")),
    Item("java-25", "s", "lower", PEERS, timed("java", java_argv, 0.25), [("zram", ">=", 3.0)],
         needs("java", "javac")),
    Item("xgboost-50", "s", "lower", PEERS, timed("xgb", xgb_argv, 0.5), [("zram", ">=", 1.0)],
         lambda: None if ml_python() else "neither xgboost nor scikit-learn can be had"),
    Item("pyspark-50", "s", "lower", PEERS, timed("spark", spark_argv, 0.5, spark_answer), [("zram", ">=", 1.0)],
         lambda: needs("java")() or (None if python_with("pyspark") else "pyspark cannot be installed")),
]
