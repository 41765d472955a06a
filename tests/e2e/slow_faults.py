"""The report of a slow fault names what it waited for."""

import json
import os
import signal
import subprocess
import time

from lib.harness import MIB, ONCE, check

from . import hostile
from .deep import FAR, wait_for_agent
from .operate import ask


@check("slow-faults", normal=ONCE, timeout_s=120, modes=("signal", "thread"), **hostile.C)
def slow_faults(r):
    """Four causes of slow faults, each reported by name in the status, the metrics and the report."""
    if not r.managed:
        return
    name = f"slow-{r.mode}"
    c = r.start([r.binary("slow_faults"), 48], tag="slow", local=16 * MIB, pool=4 * MIB, stdin=subprocess.PIPE,
                extra=[*FAR, "--to", f"disk:{r.dir}", "-o", "far-wait=20s", "--tenant", name])
    agent = wait_for_agent(r, c)
    r.require(agent, f"it ended too soon\n{c.tail()}")
    wanted, said = {"far-read", "busy-page", "fork-gate", "elsewhere"}, {}
    end = time.monotonic() + 90
    while "ready" not in c.out():
        r.require(c.alive() and time.monotonic() < end, f"it is not ready\n{c.tail()}")
        time.sleep(0.01)
    program = min(json.loads(ask(r, "status", name, "--json"))["processes"])
    while not wanted <= set(said):
        r.require(c.alive() and time.monotonic() < end, f"of {wanted} only {said}\n{c.tail()}")
        # A thread waits for the agent, others for its page; then the program is stopped in its faults.
        for pid in (agent, program):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.02)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.02)
        said = json.loads(ask(r, "status", name, "--json"))["slow_faults"]["causes"]
    status = json.loads(ask(r, "status", name, "--json"))["slow_faults"]
    for fault in status["last"]:
        r.require(fault["ns"] >= 1_000_000 and int(fault["page"], 16) % 4096 == 0 and fault["cause"] in status["causes"],
                  f"a slow fault {fault}")
    text = ask(r, "status", name)
    r.require("faults over 1 ms" in text and all(cause in text for cause in wanted), f"status says\n{text}")
    c.p.stdin.close()
    r.wait(c, timeout_s=60)
    r.same(c.out(), "ready\nright\n", "output")
    report = r.load_stats(c)["slow_faults"]
    r.same(len(report["last"]), min(64, sum(s["faults"] for s in report["causes"].values())), "faults that are kept")
    r.require(all(report["causes"][cause]["ns"] >= 1_000_000 for cause in wanted), f"the report says {report['causes']}")
