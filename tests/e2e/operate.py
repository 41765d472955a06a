"""A run that is changed while it runs, and one whose far memory the host's agent keeps."""

import json
import os
import signal
import subprocess
import sys
import time

from lib import canvas
from lib.harness import MIB, check

from . import hostile

# 48 MiB of pages that no two are alike, all of them checked at the end.
HOLDER = """
import hashlib, sys, time
pages = [hashlib.sha512(b"%d" % i).digest() * 64 for i in range(12288)]
print("ready", flush=True)
while not sys.argv[1:] or not __import__("os").path.exists(sys.argv[1]):
    time.sleep(0.05)
for i, p in enumerate(pages):
    assert p == hashlib.sha512(b"%d" % i).digest() * 64, i
print("right", flush=True)
"""


def ask(r, *words):
    """What a command of canvas's answers, as JSON when it is."""
    done = subprocess.run([r.session.canvas, *words], capture_output=True, text=True, timeout=30)
    r.require(done.returncode in (0, 1), f"{words}: {done.stderr}")
    return done.stdout


def wait_until(r, what, probe, timeout_s=60):
    end = time.monotonic() + timeout_s
    while True:
        got = probe()
        if got:
            return got
        r.require(time.monotonic() < end, f"{what}: not after {timeout_s} s")
        time.sleep(0.1)


@check("raise-local", timeout_s=150)
def raise_local(r):
    """`canvas set NAME local=`: raised, pages come back before they are touched; lowered, they leave."""
    if not r.managed:
        return
    name, end = f"holder{os.getpid()}", r.path("end")
    c = r.start([sys.executable, "-c", HOLDER, end], tag="holder", local=24 * MIB, pool=64 * MIB,
                extra=["--tenant", name])
    wait_until(r, "the program is ready", lambda: "ready" in c.out() or not c.alive())

    def local():
        return json.loads(ask(r, "status", name, "--json"))["used"]["local_bytes"]

    r.require(local() <= 24 * MIB, f"{local()} bytes are local at 24 MiB")
    ask(r, "set", name, "local=200M")
    wait_until(r, "pages come back by themselves", lambda: local() > 56 * MIB)
    ask(r, "set", name, "local=24M")
    wait_until(r, "pages leave", lambda: local() <= 24 * MIB)
    open(end, "w").close()
    r.wait(c, timeout_s=60)
    r.require("right" in c.out(), f"no closing line\n{c.tail()}")
    stats = r.load_stats(c)
    came = canvas.find(stats, "pages_in_proactive")
    r.require(came >= 6000, f"stats: pages_in_proactive = {came}")
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
    r.note(f"{came} pages came back")


@check("host-agent", timeout_s=200, modes=("signal",), **hostile.C)
def host_agent(r):
    """Two programs' far memory with one `canvas agent`, which is replaced and killed meanwhile."""
    if not r.managed:
        return
    socket = r.path("agent.sock")

    def agent(*more):
        return r.start([r.session.canvas, "agent", "--socket", socket, "--far-dir", r.dir, *more],
                       tag=f"agent{len(r.children)}", canvas_on=False)

    first = agent()
    wait_until(r, "the agent listens", lambda: os.path.exists(socket))
    flags = ["--far", "1G", f"--agent={socket}"]
    runs = [r.start([r.binary("hammer"), 11, 2, 4000, 96, "no-fork"], tag="hammer", local=16 * MIB, pool=4 * MIB,
                    extra=flags),
            r.start([r.binary("mem"), "leaf", 96], tag="leaf", local=12 * MIB, pool=3 * MIB, extra=flags)]
    time.sleep(1)
    second = agent("--replace")
    r.wait(first, expect=0, timeout_s=20)
    time.sleep(1)
    second.signal(signal.SIGKILL)
    r.wait(second, expect=-9, timeout_s=20)
    third = agent()
    for c in runs:
        r.wait(c, timeout_s=120)
        stats = r.load_stats(c)
        r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
        r.require(canvas.find(stats, "pages_sunk") > 0, f"{c.argv}: nothing went to the agent")
    r.stop(third, expect=0)
