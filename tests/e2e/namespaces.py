"""Processes whose pids differ between namespaces, and reports of how many there are."""

import json
import os
import shutil
import subprocess
import sys
import time

from lib import procs
from lib.harness import MIB, ONCE, Failure, Skip, check

from .operate import wait_until

# Fills N MiB that do not repeat, and compares all of them later: after a moment, or with a name, once the file NAME
# says that they are filled and NAME.end exists.
HOLD = """
import hashlib, os, sys, time
pages = [os.urandom(1 << 20) for _ in range(int(sys.argv[1]))]
sums = [hashlib.md5(p).digest() for p in pages]
if len(sys.argv) > 2:
    open(sys.argv[2], "w").close()
    while not os.path.exists(sys.argv[2] + ".end"):
        time.sleep(0.05)
else:
    time.sleep(0.2)
print("bad", sum(hashlib.md5(p).digest() != s for p, s in zip(pages, sums)), flush=True)
"""

# A namespace's program has filled its memory before others begin; `read` ends when the processes were compared.
WAITS = "waits() { until [ -e $1 ]; do sleep 0.05; done; }; "
IN_NAMESPACES = {
    # The pid of a process in its namespace belongs to another process outside, or to none.
    "beside": ("unshare -pf --mount-proc {hold} 32 a & waits a; {hold} 32; {hold} 32; echo ready; read; touch a.end; wait", 3),
    # Two processes with pid 1.
    "two": ("unshare -pf --mount-proc {hold} 24 a & unshare -pf --mount-proc {hold} 24 b & waits a; waits b; "
            "{hold} 24; echo ready; read; touch a.end b.end; wait", 3),
    # /proc is not that of the namespace.
    "outer-proc": ("unshare -pf {hold} 24 a & waits a; {hold} 24; {hold} 24; echo ready; read; touch a.end; wait", 3),
}


def missing():
    if not shutil.which("unshare"):
        return "unshare is not installed"
    if subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True).returncode:
        return "no PID namespace can be made here"
    return None


def lives(tree):
    """Pids of the managed processes below `tree`, as /proc shows them: each maps the file of its identity."""
    managed = set()
    for pid in procs.tree(tree):
        try:
            with open(f"/proc/{pid}/maps") as f:
                if any("---s" in line and "/memfd:canvas-segment" in line for line in f):
                    managed.add(pid)
        except OSError:
            pass
    return managed


def status(r, env):
    p = subprocess.run([r.session.canvas, "status", "--json"], env={**os.environ, **env}, capture_output=True,
                       text=True, timeout=30)
    return json.loads(p.stdout) if p.stdout.strip() else None


def told_as_seen(r, child, env, least):
    """Waits until at least `least` processes exist, then compares the command's list with the kernel's."""
    end, differs = time.monotonic() + 60, ""
    while time.monotonic() < end and child.alive():
        before = lives(child.pid)
        told = status(r, env)
        if told and len(before) >= least and before == lives(child.pid):
            # One that has just begun, or ended, may be there for the one and not yet for the other.
            if sorted(told["processes"]) == sorted(before):
                return
            differs = f": canvas status names {sorted(told['processes'])}, there are {sorted(before)}"
        time.sleep(0.05)
    raise Failure(f"never {least} processes at one time{differs}\n{child.tail()}")


@check("pid-namespaces", normal=ONCE, timeout_s=240, needs=missing)
def pid_namespaces(r):
    """Programs in their own PID namespaces keep their memory, as do those outside."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    hold = f"{sys.executable} {r.write('hold.py', HOLD)}"
    for name, (script, programs) in IN_NAMESPACES.items():
        env = {"CANVAS_RUN_DIR": r.path(f"run-{name}")}
        far = ["--far", "512M", "--to", f"disk:{r.dir}", "-o", "far-wait=20s"]
        os.mkdir(r.path(name))
        child = r.start(["bash", "-c", WAITS + script.format(hold=hold)], tag=name, env=env, local=24 * MIB,
                        pool=8 * MIB, extra=far, cwd=r.path(name), stdin=subprocess.PIPE)
        if name != "outer-proc":
            # In that one, they are compared while the outer ones work: at rest there are fewer than three.
            wait_until(r, "they are ready", lambda: "ready" in child.out() or not child.alive(), 120)
        told_as_seen(r, child, env, 3)
        child.p.stdin.close()
        r.wait(child, timeout_s=180)
        r.same(sorted(child.out().splitlines()), ["bad 0"] * programs + ["ready"], f"{name}: what the programs found")


# Steps of sandboxes before they run a program; the kernel allows them in single-threaded programs.
SANDBOXES = {
    "sandbox-user": ["unshare", "-r"],
    "sandbox-rootless": ["unshare", "-Urmpf", "--mount-proc"],
    "sandbox-bubblewrap": ["bwrap", "--unshare-all", "--uid", "0", "--dev-bind", "/", "/", "--proc", "/proc",
                           "--die-with-parent"],
}


def sandbox(name, words):
    def run(r):
        """Programs in their own sandbox, with more memory than the limit, keep it."""
        if r.wait(r.start([*words, "true"], tag="plain", canvas_on=False), expect=None):
            raise Skip(f"{words[0]} cannot make a sandbox here")
        who = r.call([*words, "id", "-u"], tag="id", local=24 * MIB)
        r.same(who.out().strip(), "0", "the user that a program is there")
        hold = r.call([*words, "python3", r.write("hold.py", HOLD), "32"], tag="hold", local=24 * MIB)
        r.same(hold.out().strip(), "bad 0", "what the program found")
        r.judge(paged=True)

    def missing_here():
        return None if shutil.which(words[0]) else f"{words[0]} is not installed"

    check(name, timeout_s=120, needs=missing_here, as_user=True)(run)


for each in SANDBOXES.items():
    sandbox(*each)
