"""Python, Java and Spark: the same output as without canvas."""

import functools
import os
import shutil
import subprocess
import sys
import time

from e2e.operate import wait_until
from lib import procs
from lib.harness import MIB, TESTS, Failure, Skip, check, program
from lib.venv import python_with


@functools.cache
def science_python():
    """An interpreter with numpy and scikit-learn."""
    for exe in ("/usr/bin/python3", sys.executable, shutil.which("python3")):
        if exe and subprocess.run([exe, "-c", "import numpy, sklearn"], capture_output=True,
                                  cwd="/").returncode == 0:
            return exe
    return None


def python_missing():
    if science_python():
        return None
    return "no python3 with numpy and scikit-learn (tests/packages.txt)"


@program("python", as_user=True, timeout_s=150, needs=python_missing,
         normal=(("signal", 50),), shares=(25, 50, "50%"))
def python(r):
    """numpy and scikit-learn: digests of arrays and models."""
    c = r.call([science_python(), r.source("py/model.py"),
                r.size(20_000, 600_000), r.size(4, 40)], tag="model",
               env={"OPENBLAS_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"})
    return c.out()


@program("python-fork", as_user=True, timeout_s=120, needs=lambda: None,
         normal=(("signal", 25), ("thread", 50)))
def python_fork(r):
    """multiprocessing over fork, subprocess with close_fds."""
    exe = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    c = r.call([exe, r.source("py/pool.py"), r.size(240_000, 4_000_000)], tag="pool")
    return c.out()


SPAWNER = """
import os, sys
kept = os.urandom(1 << 20) * 48
# Until its exec, for which it waits here, the child has its parent's memory and no more.
wait = [(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)]
child = os.posix_spawn("/bin/true", ["true"], {}, file_actions=wait)
ended = os.waitpid(child, 0)[1]
print("right" if ended == 0 and kept == kept[: 1 << 20] * 48 else "wrong")
"""


@check("spawn", timeout_s=60, needs=lambda: None)
def spawn(r):
    """A slow child of posix_spawn: its parent's memory is not counted twice."""
    if not r.managed:
        return
    fifo = r.path("fifo")
    os.mkfifo(fifo)
    c = r.start([sys.executable, "-c", SPAWNER, fifo], tag="spawn", local=24 * MIB)

    def is_one_memory():
        pids = procs.tree(c.pid, False)
        return not c.alive() or len(procs.memories(pids)) < len(pids)

    wait_until(r, "the child waits with its parent's memory", is_one_memory, timeout_s=30)
    time.sleep(0.5)  # The harness samples every 20 ms in this time.
    open(fifo, "w").close()
    r.wait(c)
    r.same(c.out(), "right\n", "what the program says")
    r.judge(paged=True)


@functools.cache
def java_classes(session_dir):
    target = os.path.join(session_dir, "classes")
    r = subprocess.run(["javac", "-d", target, os.path.join(TESTS, "java", "Work.java")],
                       capture_output=True, text=True)
    if r.returncode:
        raise Failure(f"javac: {r.stdout}{r.stderr}")
    return target


def java_missing():
    if not shutil.which("javac") or not shutil.which("java"):
        return "no JDK (tests/packages.txt)"
    return None


def java(r, collector):
    classes = java_classes(r.session.dir)
    heap = r.size(96, 1024)
    c = r.call(["java", "-Xshare:auto", "-XX:-UsePerfData", f"-XX:+Use{collector}GC",
                f"-Xmx{heap}m", f"-Xms{heap}m", "-cp", classes, "Work",
                r.size(250_000, 4_000_000), r.size(2, 12), "4", "11"], tag="java")
    out = c.out()
    if not out.startswith("sum "):
        raise Failure(f"no checksum:\n{c.tail()}")
    return out


def register_java(name, collector, normal, **o):
    @program(f"java-{name}", as_user=True, timeout_s=120, needs=java_missing, normal=normal, **o)
    def test(r):
        return java(r, collector)

    return test


register_java("serial", "Serial", None, slow_only=True)
register_java("parallel", "Parallel", None, slow_only=True)
register_java("g1", "G1", (("signal", 50),))
# ZGC's heap is shared memory, which canvas leaves to the kernel. Half of its 40 MiB of anonymous memory is native
# (the class archive, a private file mapping): shares are of these and a part of the heap.
register_java("zgc", "Z", (("signal", 25),), paged=False, footprint_mib=112)


@program("pyspark", slow_only=True, timeout_s=200, needs=java_missing)
def pyspark(r):
    """LogisticRegression and KMeans on local[2]: the JVM's children and Python together."""
    exe = python_with("pyspark")
    if exe is None:
        raise Skip("pyspark cannot be installed here (needs pip and PyPI)")
    c = r.call([exe, r.source("py/spark.py"), 1_500_000, "1g"], tag="spark",
               env={"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": r.dir})
    return c.out()
