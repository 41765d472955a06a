"""`canvas advise`: the local memory that a program needs for a given speed."""

import json
import signal
import subprocess

from lib.harness import MIB, Skip, check

from . import slo
from .operate import ask, python, wait_until

# 80 MiB, of which 12 are in constant use; all of them are checked at the end.
WORK = """
import mmap, random, sys
SIZE, PAGES, HOT, STEPS = 4096, 80 << 8, 12 << 8, 600_000
m = mmap.mmap(-1, SIZE * PAGES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for i in range(PAGES):
    m[i * SIZE:i * SIZE + 8] = i.to_bytes(8, "little")
draw = random.Random(7)
for _ in range(STEPS):
    i = int(HOT * draw.random())
    if m[i * SIZE:i * SIZE + 8] != i.to_bytes(8, "little"):
        sys.exit(f"page {i} is wrong")
for i in range(PAGES):
    if m[i * SIZE:i * SIZE + 8] != i.to_bytes(8, "little"):
        sys.exit(f"page {i} is wrong")
"""


def advise(r, *words, expect=0, timeout_s=120):
    done = subprocess.run([r.session.canvas, "advise", *map(str, words)], capture_output=True, text=True,
                          timeout=timeout_s)
    r.same(done.returncode, expect, f"exit code of {words}: {done.stderr}")
    return done


# Slow: beside other tests the program is slow for more reasons than its memory.
@check("advise-new", as_user=True, modes=("signal",), slow_only=True, alone=True, timeout_s=240)
def advise_new(r):
    """A new program: the advised size holds its hot pages, was tried, and is much less than all of it."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    done = advise(r, "--json", "--speed", "60", "--tries", 10, "--", python(), "-c", WORK)
    told = json.loads(done.stdout)
    all_bytes = told["footprint_bytes"]
    r.require(80 * MIB < all_bytes < 140 * MIB, f"all of 80 MiB and an interpreter: {told}")
    r.require(told["alone_s"] > 0.1, f"{told}")
    (got,) = told["advice"]
    r.require(got["is_measured"] and got["speed"] >= 0.6, f"{told}")
    # 12 MiB are hot, and some of the interpreter. A slow host hides a part of the cost of paging.
    r.require(8 * MIB < got["local_bytes"] < 60 * MIB, f"{told}")
    sizes = [row["local_bytes"] for row in told["sizes"]]
    r.same(sizes, sorted(sizes), "sizes in order")
    r.note(f"{got['local_bytes'] >> 20} of {all_bytes >> 20} MiB give {got['speed']:.2f}")


@check("advise-once", as_user=True, modes=("signal",), timeout_s=60)
def advise_once(r):
    """A new program that is tried once: its footprint is known, and each requested speed has its line."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    short = [python(), "-c", WORK.replace("80 << 8", "32 << 8").replace("600_000", "60_000")]
    told = json.loads(advise(r, "--json", "--tries", 1, "--", *short).stdout)
    r.require(32 * MIB < told["footprint_bytes"] < 92 * MIB and told["alone_s"] > 0, f"{told}")
    r.require(any(row["is_measured"] and row["local_bytes"] < told["footprint_bytes"] for row in told["sizes"]), f"{told}")
    # Text output: a line for each requested speed.
    text = advise(r, "--speed", "60,50", "--tries", 1, "--", *short).stdout
    r.require("  measured\n" in text, text)
    r.same(text.count("of full speed: "), 2, text)


@check("advise-run", as_user=True, timeout_s=240, normal=(("signal", None),))
def advise_run(r):
    """A running program: advises what more memory would gain; --check tries smaller and larger sizes, and
    restores the first one."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    c, name, end, _ = slo.cold(r, local=24 * MIB)
    told = json.loads(advise(r, name, "--json", "-i", "1").stdout)
    r.require(told["alone_s"] is None and told["footprint_bytes"] > 60 * MIB, f"{told}")
    measured = [row for row in told["sizes"] if row["is_measured"]]
    r.same(len(measured), 1, "only the size that it has was measured")
    r.require(told["sizes"][-1]["local_bytes"] >= told["footprint_bytes"] * 0.9, f"{told}")
    speeds = [row["speed"] for row in told["sizes"]]
    r.require(speeds == sorted(speeds), f"more memory is not slower: {told}")

    checked = json.loads(advise(r, name, "--json", "-i", "1", "--check", "--tries", 4, "--speed", "80").stdout)
    measured = [row for row in checked["sizes"] if row["is_measured"]]
    r.require(len(measured) > 1, f"{checked}")
    limits = json.loads(ask(r, "status", name, "--json"))["limits"]
    r.same(limits["local_bytes"], 24 * MIB, "local is put back")
    # Interrupted while another size is set.
    p = subprocess.Popen([r.session.canvas, "advise", name, "--check", "-i", "20"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    p2 = subprocess.run([r.session.canvas, "stat", name, "-i", "1", "-n", "1"], capture_output=True, timeout=30)
    r.same(p2.returncode, 0, "another one looks at the run")
    p.send_signal(signal.SIGINT)
    _, err = p.communicate(timeout=30)
    r.same((p.returncode, err.count("\n")), (130, 1), f"stopped: {err}")
    limits = json.loads(ask(r, "status", name, "--json"))["limits"]
    r.same(limits["local_bytes"], 24 * MIB, "local after a signal")
    slo.ends_right(r, c, end)


@check("advise-refused", as_user=True, modes=("signal",), timeout_s=120)
def advise_refused(r):
    """Requests that cannot be advised on get one sentence and the right exit code."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    for words, code, why in (
        (["no-such-run"], 2, "there is no run no-such-run"),
        (["--speed", "120", "x"], 2, "write 50 to 99"),
        (["--", "/no/such/program"], 2, "cannot be run"),
        (["--", python(), "-c", "raise SystemExit(3)"], 1, "CMD failed with all memory local"),
    ):
        err = advise(r, *words, expect=code).stderr
        r.require(why in err.splitlines()[-1], f"{words}: {err}")
    c, name, end, _ = slo.cold(r, "--slo", "5%")
    err = advise(r, name, "--check", "-i", "1", expect=2).stderr
    r.require("--local" in err or "--slo" in err, err)
    wait_until(r, "the run goes on", lambda: c.alive(), 1)
    slo.ends_right(r, c, end)
