"""The bench's built-in workloads: `lab workload` under `canvas run`, the same answer."""

import json

from lib import lab
from lib.harness import Failure, program


def workload(r, name, mib, *flags):
    """Runs the workload; compares its answer, not its speed."""
    c = r.call([lab.path(r), "workload", name, "--mib", mib, *flags], tag=name)
    return answer_of(c, name)


def answer_of(c, name):
    """The answer that a built-in program printed."""
    try:
        lines = c.out().splitlines()
        got = json.loads(lines[-1])
    except (IndexError, ValueError):
        raise Failure(f"{name}: its last line is no JSON: {c.out()[-300:]!r}\n{c.tail()}") from None
    if not got["answer"]:
        raise Failure(f"{name} gave no answer")
    if got["seconds"] <= 0 or got["ops_per_s"] <= 0:
        raise Failure(f"{name} did nothing: {got}")
    return got["answer"]


@program("workload-random-write", as_user=True, timeout_s=120, shares=(25,))
def random_write(r):
    """Every word is checked when it is touched and again at the end."""
    return workload(r, "random-write", r.size(48, 512), "--seconds", "1", "--threads", "2")


@program("workload-sequential-write", as_user=True, timeout_s=120, shares=(25,), slow_only=True)
def sequential_write(r):
    return workload(r, "sequential-write", r.size(48, 512), "--seconds", "1", "--threads", "2")


@program("workload-quicksort", as_user=True, timeout_s=120, shares=(25,), normal=(("signal", 25),))
def quicksort(r):
    return workload(r, "quicksort", r.size(32, 512))


@program("workload-rmat-bfs", as_user=True, timeout_s=180, shares=(25,), normal=(("signal", 25),))
def rmat_bfs(r):
    return workload(r, "rmat-bfs", r.size(18, 256), "--rounds", r.size(1, 2))


@program("workload-snappy", as_user=True, timeout_s=120, shares=(25,), normal=(("signal", 25),))
def snappy(r):
    return workload(r, "snappy", r.size(32, 384), "--rounds", "1")
