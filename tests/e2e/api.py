"""canvas.h and its bindings: every call and the examples, with canvas and without."""

import functools
import glob
import os
import subprocess

from lib import canvas
from lib.harness import MIB, ONCE, ROOT, Failure, check

from .operate import python

EXAMPLES = os.path.join(ROOT, "examples")


def run(argv, **o):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, **o)
    if done.returncode:
        raise Failure(f"{' '.join(argv)}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")
    return done.stdout


@functools.cache
def library(where):
    """libcanvas-api, shared and static, in a directory of the session."""
    run([os.path.join(ROOT, "api/build"), where, where])
    os.chmod(where, 0o755)
    return where


@functools.cache
def bindings(where, which):
    run([os.path.join(ROOT, "bindings/build"), where, which], env={**os.environ, "PYTHON": python()})
    os.chmod(where, 0o755)
    return where


def linked(r, source, name, static=False):
    """A C program that calls canvas.h."""
    where = library(os.path.join(r.session.dir, "api"))
    target = r.path(name)
    how = [os.path.join(where, "libcanvas-api.a"), "-ldl"] if static else ["-L", where, f"-Wl,-rpath,{where}",
                                                                          "-lcanvas-api"]
    run(["gcc", "-O2", "-g", "-Wall", "-pthread", "-I", os.path.join(ROOT, "api"), "-I", os.path.join(ROOT, "tests/c"),
         "-o", target, source, *how])
    return target


def right(r, c, timeout_s=60):
    r.wait(c, timeout_s=timeout_s)
    stats = r.load_stats(c)
    r.same([canvas.find(stats, key) for key in ("verify_failures", "anomalies")], [0, 0], "verify failures, anomalies")
    return stats


def example(r, name, argv, plain=None, env=None, **o):
    """Runs an example with and without canvas: its answer is the same, and its hints bring in some pages."""
    c = r.start(argv, tag=f"{name}-plain", canvas_on=False, env=env)
    r.wait(c, timeout_s=60)
    want = c.out()
    r.require("sum " in want, f"{name} says {want}")
    c = r.start(argv, tag=name, pool=256 * MIB, env=env, **o)
    stats = right(r, c)
    r.same(c.out(), want, f"{name}: its answer under canvas, and without")
    came = canvas.find(stats, "hint_pages_in")
    r.require(came > 0, f"{name}: no page came in by a hint: {stats['counters']}\n{c.tail()}")
    r.note(f"{name}: {came} pages by hints, {canvas.find(stats, 'faults_far')} far faults, "
           f"{canvas.find(stats, 'hints_dropped')} hints dropped")
    return stats


@check("api-calls", normal=ONCE, timeout_s=120)
def api_calls(r):
    """Each call does what canvas.h documents, or returns an error; without canvas it returns -ENOSYS."""
    if not r.managed:
        return
    source = os.path.join(ROOT, "tests/c/api_calls.c")
    for static in (False, True):
        program = linked(r, source, f"api-calls-{static}", static)
        argv = [program, r.size(48, 64), int(r.mode == "thread")]
        c = r.start(argv, tag=f"plain{static}", canvas_on=False)
        r.wait(c)
        r.same(c.out(), "without canvas\n", "without canvas")
        # Without a limit canvas does not manage the program, so the calls act as without canvas.
        c = r.start(argv, tag=f"aside{static}", local=0, extra=["--allow-unmanaged"])
        r.wait(c)
        r.same(c.out(), "without canvas\n", "without a limit")
        c = r.start(argv, tag=f"told{static}", local=24 * MIB, pool=256 * MIB, extra=["-o", "proactive-threshold=off"])
        right(r, c)
        r.same(c.out(), "right\n", "under canvas")


@check("api-example-c", timeout_s=120, normal=ONCE)
def api_example_c(r):
    """A scan of a B+ tree and a walk through a graph, which hint their next nodes."""
    if not r.managed:
        return
    program = linked(r, os.path.join(EXAMPLES, "btree_scan.c"), "btree_scan")
    example(r, "btree_scan", [program, r.size(32, 64), 2], local=16 * MIB)
    program = linked(r, os.path.join(EXAMPLES, "graph_walk.c"), "graph_walk")
    # Long enough that the processor on which the reclaim thread starts does not matter.
    argv = [program, *r.size((40, 2000), (96, 6000))]
    local = r.size(16, 32) * MIB
    told = example(r, "graph_walk", argv, local=local)
    c = r.start([*argv, "plain"], tag="untold", local=local, pool=256 * MIB)
    untold = right(r, c)
    faults = [canvas.find(s, "faults_far") for s in (told, untold)]
    r.require(faults[0] < faults[1] // 2, f"{faults[0]} far faults with hints, {faults[1]} without")
    r.note(f"{faults[0]} far faults with hints, {faults[1]} without")


@check("api-example-python", timeout_s=120, normal=ONCE)
def api_example_python(r):
    """The Python package builds offline; sums an array with it, and without it."""
    if not r.managed:
        return
    where = bindings(os.path.join(r.session.dir, "python"), "python")
    wheel, = glob.glob(os.path.join(where, "*.whl"))
    target = r.path("site")
    run([python(), "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", target, wheel])
    script = os.path.join(EXAMPLES, "array_sum.py")
    example(r, "array_sum", [python(), script, 32], env={"PYTHONPATH": target}, local=24 * MIB)
    c = r.start([python(), script, 4], tag="no-package", canvas_on=False)
    r.wait(c)
    wrong = ("import canvas\n"
             "for call in (lambda: canvas.prefetch(b'abc', 4), lambda: canvas.prefetch(b'abc', 0, 4),\n"
             "             lambda: canvas.prefetch(b'abc', -1), lambda: canvas.prefetchv([(b'abc', 1, 3)]),\n"
             "             lambda: canvas.prefetchv([(b'a', 0, 1)] * 65), lambda: canvas.prefetch(3),\n"
             "             lambda: canvas.prefetchv([3]), lambda: canvas.prefetchv(3), lambda: canvas.faults_next(0)):\n"
             "    try:\n"
             "        call()\n"
             "    except (ValueError, TypeError):\n"
             "        continue\n"
             "    raise SystemExit('no error')\n"
             "print(canvas.version(), canvas.prefetchv([(b'abc', 1, 2)]), canvas.stats() and sorted(canvas.stats())[0],\n"
             "      canvas.region(bytearray(9), canvas.REGION_NORMAL) if not canvas.version() else 0)\n"
             "try:\n"
             "    print(canvas.thread_kind(9))\n"
             "except OSError as e:\n"
             "    print(e.errno)\n")
    said = []
    for on in (False, True):
        c = r.start([python(), "-c", wrong], tag=f"wrong{on}", canvas_on=on, env={"PYTHONPATH": target},
                    local=32 * MIB)
        r.wait(c)
        said.append(c.out().splitlines())
    r.same(said[0], ["None None None None", "None"], "without canvas")
    r.same(said[1], ["65536 0 far_bytes 0", "22"], "under canvas")


@check("api-example-java", timeout_s=150, normal=ONCE)
def api_example_java(r):
    """One jar, without JVM flags; sums a direct buffer with it."""
    if not r.managed:
        return
    where = bindings(os.path.join(r.session.dir, "java"), "java")
    jar = os.path.join(where, "canvas.jar")
    classes = r.path("classes")
    run(["javac", "-cp", jar, "-d", classes, os.path.join(EXAMPLES, "ArraySum.java")])
    example(r, "ArraySum", ["java", "-cp", f"{jar}:{classes}", "ArraySum", 96], local=96 * MIB)
