"""In a virtual machine (tests/vm): Linux 6.12 with only cgroup v2.

Hosts differ in their control groups; the bench's kernel variants must work with either version, and canvas on the
oldest kernel with long-term support of distributions.
"""

import json
import os
import subprocess

from lib import canvas, lab
from lib.harness import MIB, Failure, check
from vm import guest

from .bench import kind, skipped
from .command import canvas_only

# State that a bench must restore, as one text. $1: where to write it.
STATE = r"""
state() {
    {
        cat /proc/swaps
        find /sys/fs/cgroup -type d
        echo "groups have: $(cat /sys/fs/cgroup/cgroup.subtree_control)"
        ls /sys/block /dev | grep zram
        lsmod | grep -w zram
        grep . /sys/module/zswap/parameters/*
        find /run /tmp /var/tmp /disk | grep -vxE '/tmp/now|/run/canvas(/run)?'
    } > "$1" 2>&1
}
"""
# Ends when the command succeeds or after $1 seconds: until_true 20 some command.
UNTIL = r"""
until_true() {
    left=$(($1 * 5)); shift
    until "$@"; do
        left=$((left - 1))
        [ $left -gt 0 ] || return 1
        sleep 0.2
    done
}
"""
# Records limits and usage of the groups while the bench runs.
WATCH = r"""
watch() {
    while :; do
        for group in /sys/fs/cgroup/canvas-bench-*; do
            read -r max < $group/memory.max && read -r peak < $group/memory.peak &&
                read -r swap_max < $group/memory.swap.max && read -r swap < $group/memory.swap.peak &&
                read -r zswap < $group/memory.zswap.current &&
                echo "${group##*/} $max $peak $swap_max $swap $zswap"
        done 2>/dev/null
        sleep 0.3
    done
}
"""
# A program in a control group is swapped to zram; compares the state with the one before.
SWAPPING = r"""
swapping() {
    grep -q zram /proc/swaps && [ "$(cat /sys/fs/cgroup/canvas-bench-*/memory.swap.current)" -gt 0 ]
}
undone() {
    state /tmp/now
    cmp -s /tmp/now /out/before
}
step() {
    read -r up idle < /proc/uptime
    echo "== $1 at $up s"
}
"""
BENCH = "--scale 0.04 --ratios 50 --out /out/%s.jsonl --cache /disk/vda/cache"


def stripped(r, program):
    """A copy without debug information, most of the file, which the emulated processor would unpack."""
    copy = r.path(os.path.basename(program))
    subprocess.run(["strip", "-o", copy, program], check=True)
    return copy


def boot(r, script, with_lab=True, **o):
    """Runs a script with canvas, and lab, in its PATH; returns the result, whose code must be 0."""
    canvas_only(r)
    programs = [r.session.canvas, *([lab.path(r)] if with_lab else [])]
    files = {f"/usr/bin/{os.path.basename(p)}": stripped(r, p) for p in programs}
    result = guest.run("set -u\n" + script, files={**files, **o.pop("files", {})}, work=r.dir, **o)
    r.note(f"{result.seconds:.0f} s in the guest" + (f", after {result.boots} boots" if result.boots > 1 else ""))
    if result.code != 0:
        raise Failure(f"code {result.code} of the script\n{result.tail()}")
    return result


def text(result, name):
    """A file that the script left in /out."""
    if name not in result.files:
        raise Failure(f"the script left no {name}\n{result.tail()}")
    return result.files[name].decode()


def same_state(r, result, name, when):
    """Checks that the (virtual) host is unchanged."""
    before, after = text(result, "before").splitlines(), text(result, name).splitlines()
    changed = [f"-{x}" for x in before if x not in after] + [f"+{x}" for x in after if x not in before]
    r.same(changed, [], f"the host {when}")


@check("vm-run", timeout_s=240, needs=guest.missing, slow_only=True)
def run(r):
    """`canvas doctor` and a program that pages, on Linux 6.12."""
    limit = 16 * MIB
    work = "lab workload sequential --mib 24 --seconds 0.2"
    result = boot(r, f"""
        canvas doctor --json > /out/doctor.json || exit 10
        {work} > /out/plain || exit 11
        canvas run --local {limit} --mode {r.mode} --require --stats /out/stats.json -- {work} > /out/managed || exit 12
    """, timeout_s=220)
    doctor = json.loads(text(result, "doctor.json"))
    r.require(doctor["kernel"].startswith("6.12."), f"kernel of the guest: {doctor['kernel']}")
    answers = [json.loads(text(result, name))["answer"] for name in ("plain", "managed")]
    r.same(answers[1], answers[0], "answer under canvas")
    stats = json.loads(text(result, "stats.json"))
    r.same(stats["mode"], r.mode, "mode")
    r.same(canvas.check_stats(stats, limit), [], "what is wrong with the report")
    r.note(canvas.summary(stats))


def judge(r, samples, variants):
    """Each variant ran each program right, within its limit, and paged where it must."""
    for s in samples:
        what = f"{s['workload']} on {s['variant']}"
        r.same(s["outcome"], "ok", what)
        if kind(s) == "local":
            continue
        r.require(s["swap_out_pages"] > 0 and s["faults"] > 0, f"{what} did not page: {s['swap_out_pages']} out")
        r.require(s["far_peak_bytes"] > 0, f"{what}: nothing was far")
        # The control group, and canvas, hold it exactly; a polled value may be a moment old.
        r.require(s["memory_peak_bytes"] <= s["limit_bytes"] * 1.01 + 4 * MIB,
                  f"{what}: {s['memory_peak_bytes']} B of {s['limit_bytes']}")
    for name in {s["workload"] for s in samples}:
        own = [s for s in samples if s["workload"] == name]
        r.same(sorted(kind(s) for s in own), sorted(variants), f"variants of {name}")
        r.same(len({s["answer"] for s in own}), 1, f"answers of {name}: {[s['answer'] for s in own]}")


@check("vm-cgroup2-bench", modes=("signal",), slow_only=True, timeout_s=240, needs=guest.missing)
def bench(r):
    """The kernel's variants on cgroup v2: limits in force, right answers, the host unchanged."""
    names = r.size(("zipf",), ("zipf", "quicksort"))
    variants = r.size(("local", "canvas", "zram"), ("local", "canvas", "zram", "zswap", "disk"))
    script = STATE + UNTIL + WATCH + SWAPPING + f"""
        mkdir /disk/vda/cache
        state /out/before
        watch > /out/groups & watcher=$!
        step "the bench"
        lab run {' '.join(names)} --repeats 1 --variants {','.join(variants)} {BENCH % 'whole'} || exit 10
        kill $watcher
        state /out/after

        # Interrupted, then killed, while its program is swapped out.
        for signal in INT KILL; do
            step $signal
            lab run zipf --repeats 9 --variants zram {BENCH % 'cut'} &
            until_true 60 swapping || exit 11
            kill -$signal $!
            wait $!
            echo "$signal $?" >> /out/codes
            # After a kill its guardian undoes, in its own time.
            until_true 30 undone
            state /out/after-$signal
        done
        step end
    """
    result = boot(r, script, loadable=("zram", "lz4"), programs=("mkswap", "swapon", "swapoff"), disks=(2048,),
                  timeout_s=r.size(220, 900))

    got = [json.loads(line) for line in text(result, "whole.jsonl").splitlines()]
    r.same(skipped(got), {}, "skipped variants")
    r.same(got[0]["machine"]["cgroup_version"], 2, "version of control groups")
    samples = [x for x in got if x["kind"] == "sample"]
    r.same({s["workload"] for s in samples}, set(names), "programs")
    judge(r, samples, variants)

    limits = {s["limit_bytes"] for s in samples if kind(s) not in ("local", "canvas")}
    groups = [line.split() for line in text(result, "groups").splitlines()]
    # A group may be seen before its limit is written; it cannot use memory then.
    limited = [g for g in groups if g[1] != "max" and int(g[1]) in limits]
    r.same({int(g[1]) for g in limited}, limits, "limits of the groups")
    behind_zswap = {g[0] for g in limited if int(g[5]) > 0}
    for name, limit, peak, *_ in limited:
        # Reclaim's own memory is charged beyond the limit for a moment; with zswap it needs its pool.
        slack = int(limit) // 2 if name in behind_zswap else MIB
        r.require(int(peak) <= int(limit) + slack, f"{name} used {peak} B of {limit}")
    r.require(max(int(g[4]) for g in limited) > MIB, "no group was swapped out")
    r.same(len(behind_zswap), len(names) if "zswap" in variants else 0, "groups with pages in zswap")
    r.require(any(g[3] == "0" for g in groups), "no group of canvas's without swap was seen")

    same_state(r, result, "after", "after the bench")
    for signal, code in (("INT", "130"), ("KILL", "137")):
        r.require(f"{signal} {code}" in text(result, "codes").splitlines(), f"codes: {text(result, 'codes')}")
        same_state(r, result, f"after-{signal}", f"after SIG{signal}")
    r.note(", ".join(line[3:] for line in result.output.splitlines() if line.startswith("== ")))
    for s in samples:
        if kind(s) != "local":
            r.note(f"{s['workload']} {kind(s)} {s['swap_out_pages']} out")
