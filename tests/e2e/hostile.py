"""C programs that do everything to their memory, and know what every byte must be."""

import os
import random
import shutil
import time

from lib import canvas
from lib.harness import MIB, Failure, check, program


def no_compiler():
    return None if shutil.which("gcc") else "gcc is not installed (tests/packages.txt)"


C = {"needs": no_compiler, "as_user": True}


def seeds(r, count):
    """Fixed seeds in the normal suite, one new one besides in the slow suite; all printed."""
    given = os.environ.get("CANVAS_TEST_SEED")
    if given:
        return [int(given)]
    base = list(range(1, count + 1))
    return base + [random.SystemRandom().randrange(1 << 32)] if r.slow else base


def hammer(r, threads, extra=(), env=None):
    for seed in seeds(r, r.size(2, 6)):
        began = time.monotonic()
        c = r.call([r.binary("hammer"), seed, threads, r.size(6000, 40_000), r.size(160, 512), *extra],
                   tag=f"hammer-{seed}", env=env)
        if not c.out().startswith(f"hammer seed {seed}: "):
            raise Failure(f"seed {seed}: no closing line\n{c.tail()}")
        r.note(f"seed {seed} {time.monotonic() - began:.1f} s")
    return "every byte right"


@program("hammer", timeout_s=150, normal=(("signal", 25), ("thread", 25)), **C)
def hammer_all(r):
    """4 threads: mapping calls, forks, execs, faults of its own, system calls with far buffers."""
    return hammer(r, 4)


@program("hammer-no-fork", timeout_s=120, normal=(("signal", 25),), **C)
def hammer_no_fork(r):
    """The same without forks: nothing is ever shared."""
    return hammer(r, 2, ["no-fork"])


@program("window-model", timeout_s=150, normal=(("signal", 25), ("thread", 50)), **C)
def window_model(r):
    """Mapping calls against an oracle; all results the same as in a plain run."""
    answers = []
    ops = r.size(50_000, 2_500_000)
    for seed in (1, 2, 3, 4) if r.slow else (1, 2):
        c = r.call([r.binary("window_model"), seed, ops, 32], tag=f"model-{seed}")
        answers.append(c.out())
    return answers


def sigs(part):
    @program(f"signals-{part}", timeout_s=60, shares=(25,), normal=(("signal", 25), ("thread", 25)),
             footprint_mib=96, **C)
    def test(r):
        env = dict(os.environ)
        if r.mode == "signal":
            env["CANVAS_TEST_NO_RAW_MASK"] = "1"
        return r.call([r.binary("sigs"), part, 96 * r.size(1, 3)], tag=part, env=env).out()

    return test


for _part in ("segv", "blockall", "sigbus", "waits"):
    sigs(_part)


def mem(part, mib=96, more=(), normal=(("signal", 25), ("thread", 25)), **o):
    @program(f"memory-{part}", timeout_s=90, shares=(25,), normal=normal,
             footprint_mib=mib, **C, **o)
    def test(r):
        return r.call([r.binary("mem"), part, mib * r.size(1, 3), *more], tag=part).out()

    return test


mem("lock", normal=(("signal", 25),))
mem("rlimit", normal=(("signal", 25),))
mem("brk", normal=(("signal", 25),))
mem("threads", 64)
mem("vectors", 64)
mem("waiters", 64, normal=(("signal", 25),))
# In signal mode a signal that is delivered on a far stack ends the program (known gap G3).
mem("stacks", 64, normal=(("thread", 25),), modes=("thread",))
mem("forks", 64)
mem("dontfork", 64, normal=(("signal", 25),))
mem("closes", 64)


@check("far-limit", timeout_s=90, normal=(("signal", None),), **C)
def far_limit(r):
    """--pool used up: mmap says ENOMEM, everything stored is right, freed memory can be had again."""
    c = r.call([r.binary("mem"), "enomem", "1024"], tag="enomem", local="64M", pool="64M")
    granted = int(c.out().split()[1]) if c.out().startswith("chunks") else -1
    if not r.managed:
        return
    r.require(96 <= granted <= 200,
              f"{granted} MiB were granted with 64 MiB local and 64 MiB of pool: expected about 128")
    stats = r.load_stats(c)
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
    r.require(canvas.find(stats, "mmaps_refused", default=0) > 0, "stats: mmaps_refused = 0")
    r.note(f"granted {granted} MiB; {canvas.summary(stats)}")


@check("damaged-copies", timeout_s=60, modes=("signal",), **C)
def damaged_copies(r):
    """Stored pages with flipped bits: the program sees SIGBUS or the right page, never another."""
    if not r.managed:
        return
    c = r.call([r.binary("mem"), "damage", 64], tag="damage", local="16M")
    words = c.out().split()
    r.require(words[:2] == ["pages", "right"] and int(words[4]) > 1000, f"unexpected answer: {c.out()!r}")
    refused = canvas.find(r.load_stats(c), "verify_failures")
    r.require(refused > 1000, f"stats: verify_failures = {refused}")
    r.require("does not verify" in c.err(), "no line on stderr tells of the damage")
    r.require(c.err().count("\n") < 30, "the damage is told of again and again")
    r.note(c.out().strip())


@check("both-full", timeout_s=60, **C)
def both_full(r):
    """Local and far memory both used up by mapped memory: SIGBUS and one clear line."""
    c = r.call([r.binary("mem"), "overfull", 256], tag="overfull", local="32M", pool="32M",
               expect={-7, 135} if r.managed else 0)
    if not r.managed:
        return
    r.same(c.out(), "mapped\n", "output")
    r.require("far limit is reached" in c.err(), "no line on stderr tells why")


@check("shared-budget", timeout_s=120, **C)
def shared_budget(r):
    """Five processes of one exec tree stay within one budget together, seen from outside."""
    mib, children = r.size(40, 120), 4
    limit = (mib * (children + 1)) * MIB // 4
    r.limit_bytes = limit
    c = r.call([r.binary("mem"), "tree", mib, children], tag="tree", local=limit)
    r.same(c.out().count("right"), children + 1, "closing lines")
    if not r.managed:
        return
    stats = r.load_stats(c)
    r.require(c.sampler.samples > 3, "too few memory samples to judge by")
    r.require(canvas.find(stats, "execs", default=0) >= children, "stats: children were not managed")
    r.judge()


@check("empty-environment", timeout_s=60, modes=("signal", "thread"), **C)
def empty_environment(r):
    """`env -i CMD` inside the program: the child stays managed and in the same budget."""
    binary = r.binary("mem")
    for i, argv in enumerate((["sh", "-c", f"env -i {binary} leaf 96"],
                              ["sh", "-c", f"LD_PRELOAD= exec {binary} leaf 96"],
                              ["sh", "-c", f"unset LD_PRELOAD CANVAS_SEGMENT_FD CANVAS_PRELOAD_FD; {binary} leaf 96"])):
        c = r.call(argv, tag=f"env{i}", local=24 * MIB)
        r.same(c.out(), "mem leaf: right\n", "output")
        if r.managed:
            out = canvas.find(r.load_stats(c), "pages_out", default=0)
            r.require(out > 10_000, f"{' '.join(argv)}: pages_out = {out}: the child was not managed")
    r.judge()


@check("static-program", timeout_s=60, modes=("signal",), **C)
def static_program(r):
    """Static programs run unmanaged with one line of warning; with --require they are refused."""
    binary = r.binary("mem-static")
    c = r.call([binary, "leaf", "32"], tag="static", local=16 * MIB, extra=["--allow-unmanaged"])
    r.same(c.out(), "mem leaf: right\n", "output")
    if r.managed:
        r.same(len(c.err().splitlines()), 1, f"lines on stderr ({c.err()!r})")
        c = r.call([binary, "leaf", "32"], tag="required", local=16 * MIB, expect=125)
        r.same(c.out(), "", "output of the refused program")
        c = r.call(["sh", "-c", f"{binary} leaf 32"], tag="child", local=16 * MIB, extra=["--allow-unmanaged"])
        r.same(c.out(), "mem leaf: right\n", "output as a child")


@check("orphan", timeout_s=60, **C)
def orphan(r):
    """A process that outlives `canvas run` keeps its memory."""
    flag = r.path("flag")
    script = f"({r.binary('mem')} leaf 96 > {flag} 2>&1; echo $? >> {flag}) & sleep 0.2"
    r.call(["sh", "-c", script], tag="orphan", local=24 * MIB, expect={0})
    end = time.monotonic() + 40
    while time.monotonic() < end:
        if os.path.exists(flag):
            with open(flag) as f:
                text = f.read()
            if text == "mem leaf: right\n0\n":
                return
            if len(text.splitlines()) >= 2:
                raise Failure(f"the orphan said: {text[:500]}")
        time.sleep(0.1)
    raise Failure("the orphan did not finish within 40 s")
