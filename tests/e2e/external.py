"""The bench's external workloads, tiny: YCSB on redis and memcached, XGBoost, scikit-learn, Spark.

Downloads (PyPI, Maven Central) and data are kept in the user's cache, as for the bench itself.
"""

import json
import os
import shutil
import subprocess
import time

from lib.harness import Failure, Skip, example, program

SCALE = {"redis": 0.05, "memcached": 0.05, "xgboost": 0.05, "sklearn": 0.04, "spark": 0.03, "java": 0.1}


def cargo_missing():
    return None if shutil.which("cargo") else "cargo is not installed"


def plan(r, name):
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    scratch = r.path("scratch")
    os.makedirs(scratch, exist_ok=True)
    scale = SCALE[name.split("-")[0]]
    out = subprocess.run([example("external"), "plan", name, "--cache", os.path.join(cache, "canvas-tests", "bench"),
                          "--scratch", scratch, "--scale", str(scale), "--seed", "11"], capture_output=True, text=True)
    if out.returncode == 3:
        raise Skip(out.stdout.strip())
    if out.returncode:
        raise Failure(out.stderr.strip())
    return json.loads(out.stdout)


def answer(child):
    lines = child.out().splitlines()
    if not lines:
        raise Failure(f"no answer:\n{child.tail()}")
    got = json.loads(lines[-1])
    if not got["seconds"] > 0:
        raise Failure(f"no time: {lines[-1][:300]}")
    return got


def listening(socket, child, timeout_s=60):
    import socket as sockets

    host, port = socket.rsplit(":", 1)
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if not child.alive():
            raise Failure(f"the server ended:\n{child.tail()}")
        try:
            sockets.create_connection((host, int(port)), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise Failure(f"nothing listens on {socket}")


def run_workload(r, name):
    p = plan(r, name)
    if "program" in p:
        child = r.call(p["program"]["argv"], tag="program", env=dict(p["program"]["env"]))
        return answer(child)["answer"]
    server = r.start(p["server"]["argv"], tag="server", env=dict(p["server"]["env"]))
    listening(p["socket"], server)
    for i, client in enumerate(p["clients"]):
        child = r.call(client["argv"], tag=f"client{i}", env=dict(client["env"]), canvas_on=False)
    # The footprint is that of the server.
    r.anon_peak_bytes = 0
    got = answer(child)
    r.stop(server)
    r.require(got.get("ops_per_s"), "no ops_per_s")
    if name != "redis-set-get":
        for key in ("latency_ns", "latency_histogram"):
            r.require(got.get(key), f"no {key}")
        r.same(got["latency_ns"]["p50"] > 0, True, "p50")
    return got["answer"]


def register(name, **o):
    @program(f"bench-{name}", slow_only=True, shares=(25,), timeout_s=150, needs=cargo_missing, **o)
    def test(r):
        return run_workload(r, name)

    test.__doc__ = name


for mix in "abcdef":
    register(f"redis-ycsb-{mix}", modes=("signal", "thread") if mix == "a" else ("signal",))
    if mix != "e":
        register(f"memcached-ycsb-{mix}", modes=("signal", "thread") if mix == "a" else ("signal",))
for name in ("redis-get95", "memcached-get95", "redis-set-get", "java", "sklearn-kmeans", "xgboost"):
    register(name, modes=("signal",))
for work in ("lr", "kmeans", "bayes", "skewed-groupby", "pagerank", "cc", "sssp", "triangles"):
    register(f"spark-{work}", modes=("signal",))
