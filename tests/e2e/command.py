"""`canvas run` itself: exit codes, signals, errors, doctor, the stats file."""

import json
import os
import signal
import subprocess
import time

from lib import canvas
from lib.harness import MIB, ONCE, Failure, Skip, check


def canvas_only(r):
    if not r.managed:
        raise Skip("says nothing without canvas")


def cli(r, *argv, timeout_s=30):
    return subprocess.run([*r._user_prefix(), r.session.canvas, *[str(a) for a in argv]], cwd=r.dir,
                          env=r._environment({}), capture_output=True, text=True, timeout=timeout_s)


@check("exit-codes", normal=ONCE, as_user=True, timeout_s=60)
def exit_codes(r):
    """The program's exit code passes through; 125, 126 and 127 are canvas's own."""
    canvas_only(r)
    run = ["run", "--local", "64M", "--mode", r.mode]
    for argv, code in (
        (["true"], 0),
        (["false"], 1),
        (["sh", "-c", "exit 42"], 42),
        (["sh", "-c", "exit 200"], 200),
        (["sh", "-c", "kill -9 $$"], -9),
        (["sh", "-c", "kill -15 $$"], -15),
        (["sh", "-c", "kill -11 $$"], -11),
        (["/nonexistent/program"], 127),
        (["no-such-program-anywhere"], 127),
        (["/etc/passwd"], 126),
    ):
        p = cli(r, *run, "--", *argv)
        r.same(p.returncode, code, f"exit code of {' '.join(argv)} ({p.stderr.strip()[:200]})")
        r.same(p.stdout, "", f"stdout of {' '.join(argv)}")
        if code < 125 or code == 200:
            r.same(p.stderr, "", f"stderr of {' '.join(argv)}")
        elif code in (126, 127):
            r.same(len(p.stderr.splitlines()), 1, f"lines on stderr of {' '.join(argv)} ({p.stderr!r})")
    for argv in (["run"], ["run", "--local", "zebra", "--", "true"], ["run", "--local", "150%", "--", "true"],
                 ["run", "--no-such-option", "--", "true"], ["run", "--mode", "magic", "--", "true"]):
        p = cli(r, *argv)
        r.require(p.returncode in (2, 125), f"canvas {' '.join(argv)}: exit code {p.returncode}")
        r.require(p.stderr.strip(), f"canvas {' '.join(argv)} said nothing")


@check("signals-pass", as_user=True, timeout_s=60)
def signals_pass(r):
    """Signals sent to `canvas run` reach the program."""
    canvas_only(r)
    for sig, code in ((signal.SIGTERM, 31), (signal.SIGINT, 32), (signal.SIGHUP, 33), (signal.SIGUSR1, 34)):
        name = sig.name[3:]
        script = f"trap 'exit {code}' {name}; echo ready; while :; do sleep 0.05; done"
        c = r.start(["sh", "-c", script], tag=name, local=64 * MIB)
        end = time.monotonic() + 15
        while "ready" not in c.out():
            if time.monotonic() > end or not c.alive():
                raise Failure(f"not ready\n{c.tail()}")
            time.sleep(0.02)
        os.kill(c.pid, sig)
        r.wait(c, expect=code, timeout_s=15)
    # When the runner is killed, the program may end, but must not continue with damaged memory.
    c = r.start(["sleep", "30"], tag="sleep", local=64 * MIB)
    time.sleep(0.3)
    c.signal(signal.SIGTERM)
    r.wait(c, expect=128 + 15, timeout_s=15)


@check("doctor", as_user=True, modes=("signal",), timeout_s=30)
def doctor(r):
    """`canvas doctor` reports the mode that will be chosen, as text and as JSON."""
    canvas_only(r)
    p = cli(r, "doctor")
    r.require(p.returncode in (0, 1) and p.stdout.strip(), f"doctor: {p.returncode} {p.stdout[:200]}{p.stderr[:200]}")
    p = cli(r, "doctor", "--json")
    try:
        d = json.loads(p.stdout)
    except ValueError:
        raise Failure(f"doctor --json: not JSON: {p.stdout[:300]}") from None
    r.require(isinstance(d, dict) and "mode" in json.dumps(d), f"doctor --json names no mode: {p.stdout[:300]}")


@check("stdio", normal=ONCE, as_user=True, timeout_s=30)
def stdio(r):
    """stdin, stdout and descriptors pass through; libcanvas writes nothing itself."""
    canvas_only(r)
    data = os.urandom(300_000)
    p = subprocess.run([*r._user_prefix(), r.session.canvas, "run", "--local", "64M", "--mode", r.mode, "--", "cat"],
                       input=data, capture_output=True, timeout=20, cwd=r.dir, env=r._environment({}))
    r.same(p.returncode, 0, "exit code")
    r.require(p.stdout == data, "cat gave back other bytes")
    r.same(p.stderr, b"", "stderr")


@check("no-limit", normal=ONCE, as_user=True, timeout_s=60)
def no_limit(r):
    """Without --local canvas does not manage memory: it handles no faults, and the report has the memory."""
    canvas_only(r)
    stats_path = r.path("stats.json")
    script = ("import os, subprocess, time; b = b'x' * (128 << 20); time.sleep(0.4); "
              "print([k for k in os.environ if k.startswith('CANVAS_SEG') or k == 'LD_PRELOAD']); "
              "print(subprocess.run(['true'], close_fds=True, capture_output=True).stderr)")
    p = cli(r, "run", "--mode", r.mode, "--stats", stats_path, "--", "python3", "-c", script)
    r.same((p.returncode, p.stdout, p.stderr), (0, "[]\nb''\n", ""), "result")
    stats = canvas.load_stats(stats_path)
    r.same(canvas.find(stats, "pages_out"), 0, "pages_out")
    r.same(canvas.find(stats, "faults_first_touch"), 0, "faults_first_touch")
    footprint = canvas.memory(stats, "footprint_bytes")
    r.require(128 * MIB <= footprint <= 160 * MIB, f"footprint {footprint / MIB:.0f} MiB of a 128 MiB program")


@check("roomy", normal=ONCE, as_user=True, timeout_s=60)
def roomy(r):
    """Below its limit a program is managed, and nothing is evicted."""
    canvas_only(r)
    stats_path = r.path("stats.json")
    p = cli(r, "run", "--local", "1G", "--mode", r.mode, "--stats", stats_path, "--", r.binary("mem"), "leaf", "32")
    r.same((p.returncode, p.stdout), (0, "mem leaf: right\n"), f"result ({p.stderr[:200]})")
    stats = canvas.load_stats(stats_path)
    r.same(canvas.find(stats, "pages_out"), 0, "pages_out")
    first = canvas.find(stats, "faults_first_touch")
    r.require(first is not None and 0 < first < 10_000, f"faults_first_touch = {first} for 8192 pages")


@check("percent", as_user=True, timeout_s=60, normal=ONCE)
def percent(r):
    """--local 25% follows the footprint."""
    mib = r.size(80, 200)
    c = r.call([r.binary("mem"), "leaf", mib], tag="percent", local="25%")
    r.same(c.out(), "mem leaf: right\n", "output")
    if r.managed:
        stats = r.load_stats(c)
        footprint = canvas.memory(stats, "footprint_bytes") or 0
        r.require(mib <= footprint / MIB <= mib * 1.2, f"footprint {footprint / MIB:.0f} MiB of a {mib} MiB program")
        r.judge()


@check("nested", as_user=True, modes=("signal",), timeout_s=60)
def nested(r):
    """A `canvas run` within a `canvas run`: the inner limit holds for the inner program."""
    canvas_only(r)
    outer, inner = r.path("outer.json"), r.path("inner.json")
    p = cli(r, "run", "--local", "256M", "--stats", outer, "--", r.session.canvas, "run", "--local", "24M",
            "--stats", inner, "--require", "--", "sh", "-c", f"{r.binary('mem')} leaf 64; exit 7")
    r.same((p.returncode, p.stdout, p.stderr), (7, "mem leaf: right\n", ""), "result")
    stats = canvas.load_stats(inner)
    r.require(canvas.find(stats, "pages_out") > 0, "nothing was paged out within")
    peak = canvas.memory(stats, "local_bytes")
    r.require(peak <= 28 * MIB, f"inner peak {peak / MIB:.1f} MiB")
    r.same(canvas.find(canvas.load_stats(outer), "pages_out"), 0, "pages_out of the outer run")
