"""Far memory over RDMA, in a virtual machine (tests/vm) with the kernel's software device, rdma_rxe."""

import glob
import json
import os
import re
import subprocess

from lib import canvas
from lib.harness import MIB, ROOT, check, example
from vm import guest
from vm.initramfs import libraries

from .hostile import C
from .vm import UNTIL, boot, text

MODULES = ("crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm")
LIBRARY = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"
DRIVER = "/etc/libibverbs.d/rxe.driver"
LOADER = "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
PROVIDERS = "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so"
# A device over the loopback interface; waits until its port is up.
DEVICE = """
rdma link add rxe0 type rxe netdev lo || exit 20
for i in 1 2 3 4 5 6 7 8 9 10; do
    grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state && break
    sleep 0.1
done
ulimit -l unlimited
"""
# Starts and ends a donor; runs a program that checks what it reads until `finish`. Words of its status file
# (tests/c/far_pages.c): 0 ready, 1 pages read, 4 stop.
COMMANDS = """
donor() {
    : > /run/donor
    canvas serve --rdma --listen 127.0.0.1:7070 --memory 256M --reserve 0 --state-json /out/donor.json 2> /run/donor &
    donor=$!
    until_true 20 grep -q "listening on" /run/donor || { cat /run/donor; exit 21; }
}
program() {
    canvas run --local 10M --pool 4M --far 256M --to rdma://127.0.0.1:7070 --to disk:/disk/vda -o far-wait=300s "$@" --require \
        --stats /out/stats.json -- far_pages 32 /run/status 1 > /out/said 2> /out/complaints &
    program=$!
    until_true 90 ready || { cat /out/complaints; exit 22; }
}
word() { dd if=/run/status bs=8 skip=$1 count=1 2> /dev/null | od -A n -t u8 | tr -d ' '; }
ready() { [ -s /run/status ] && [ "$(word 0)" = 1 ]; }
has_read() { [ "$(word 1)" -gt "$1" ]; }
# Pages that it reads from here on.
reads() { has_read $(($(word 1) + $1)) || until_true 60 has_read $(($(word 1) + $1)) || { echo "it stands still"; exit 23; }; }
finish() {
    printf '\\001' | dd of=/run/status bs=1 seek=32 conv=notrunc 2> /dev/null
    wait $program || { echo "its code is $?"; cat /out/said /out/complaints; exit 24; }
}
"""


def missing():
    reason = guest.missing()
    if reason:
        return reason
    for path, package in ((LIBRARY, "libibverbs1"), (DRIVER, "ibverbs-providers")):
        if not os.path.exists(path):
            return f"no {path} (Debian package {package})"
    return None


def verbs():
    """Files that verbs need in a guest: {path in the guest: path here}."""
    found = [os.path.realpath(LIBRARY), *glob.glob(PROVIDERS)]
    files = {path: path for path in found}
    for path in found:
        files.update(libraries(path))
    # The loader is among the libraries when some of them are loaded separately.
    return {**files, LIBRARY: os.path.realpath(LIBRARY), DRIVER: DRIVER, LOADER: os.path.realpath(LOADER)}


def rdma_boot(r, script, **o):
    files = {**verbs(), **o.pop("files", {})}
    return boot(r, DEVICE + UNTIL + COMMANDS + script, modules=MODULES, programs=("rdma",), files=files, **o)


HEADER = "/usr/include/infiniband/verbs.h"


@check("rdma-layout", modes=("signal",), timeout_s=30,
       needs=lambda: None if os.path.exists(HEADER) else f"no {HEADER} (Debian package libibverbs-dev)")
def layout(r):
    """The bindings' sizes, offsets and numbers agree with the C header, as compiled."""
    with open(os.path.join(ROOT, "crates", "canvas-rdma", "src", "abi.rs"), encoding="utf-8") as f:
        source = f.read()
    claims = [f"{name} == {value}" for name, value in re.findall(r"pub const (IBV_\w+): \w+ = ([\d <]+);", source)]
    table = re.findall(r"^    \w+ is (\w+), (\d+): (.*);$", source, re.MULTILINE)
    for name, size, fields in table:
        kind = "union" if name == "ibv_gid" else "struct"
        if int(size):
            claims.append(f"sizeof({kind} {name}) == {size}")
        offsets = re.findall(r'\w+ (\d+) \("([\w.]+)"\)', fields)
        r.same(len(offsets), fields.count("(") , f"fields of {name} that were understood")
        claims += [f"offsetof({kind} {name}, {path}) == {offset}" for offset, path in offsets]
    r.same(len(table), source.count(" is ibv_"), "structures that were understood")
    r.require(len(claims) > 80, f"only {len(claims)} claims were found")

    def compiles(claims):
        lines = ["#include <stddef.h>", "#include <infiniband/verbs.h>"]
        lines += [f'_Static_assert({claim}, "{claim}");' for claim in claims]
        return subprocess.run(["gcc", "-fsyntax-only", "-x", "c", "-"], input="\n".join(lines), capture_output=True,
                              text=True)

    p = compiles(claims)
    r.require(p.returncode == 0, p.stderr[-2000:])
    r.require(compiles(["sizeof(struct ibv_wc) == 49"]).returncode != 0, "a wrong claim was believed")
    r.note(f"{len(claims)} claims hold")


@check("rdma-rights", modes=("signal",), slow_only=True, timeout_s=400, needs=missing)
def rights(r):
    """Keys allow access only to their range and as long as it is lent; reads are timed against TCP."""
    result = rdma_boot(r, "rdma_check 127.0.0.1 1000 > /out/check.json || exit 10\n",
                       files={"/usr/bin/rdma_check": example("rdma_check")}, timeout_s=300)
    for turn in json.loads(text(result, "check.json"))["latency"]:
        ratio = turn["rdma_p50_us"] / turn["tcp_p50_us"]
        r.note(f"4 KiB read, RDMA {turn['rdma_p50_us']:.0f} us, TCP {turn['tcp_p50_us']:.0f} us: "
               f"{ratio:.2f} times")


def judged(r, result):
    """Report of the program, which was right; and the donor's last state."""
    r.require(text(result, "said").startswith("every byte right"), text(result, "said"))
    stats = json.loads(text(result, "stats.json"))
    far = stats["far"]
    r.same(far["corrupt"], 0, "copies that did not verify")
    r.same(canvas.find(stats, "verify_failures"), 0, "pages that did not verify")
    r.require(far["extents_out"] > 0 and far["reads"] > 0, f"nothing went far: {far}")
    r.note(f"{far['extents_out']} extents out, {far['reads']} reads, {far['lane_reads']} over lanes, "
           f"{far['lane_pair_reads']} of them by queue pairs; {far['failovers']} failovers; "
           f"{text(result, 'said').strip()}")
    return stats, json.loads(text(result, "donor.json"))["counters"]


@check("rdma-run", modes=("signal",), slow_only=True, timeout_s=240, needs=missing)
def run(r):
    """A program pages over RDMA, without another copy: every byte is right, and the donor's processor is not
    involved."""
    result = rdma_boot(r, """
        donor
        program --copies 1
        reads 2000
        # The state file is a second old at most.
        sleep 1.2
        cp /out/donor.json /out/under-load.json
        finish
        kill $donor
        wait $donor || exit 25
    """, files={"/usr/bin/far_pages": r.binary("far_pages")}, disks=(512,), timeout_s=r.size(220, 220))
    stats, counters = judged(r, result)
    r.require(counters["exposed_slabs"] > 0, f"no slab was exposed: {counters}")
    # Only reads before the slab was exposed went over the session.
    r.require(counters["reads"] < stats["far"]["reads"] / 4,
              f"{counters['reads']} of {stats['far']['reads']} reads went over the session")
    # Its threads read over their own queue pairs, once these were connected.
    r.require(stats["far"]["lane_pair_reads"] > 100, f"reads by queue pairs: {stats['far']}")
    r.same(counters["refused"], 0, "requests that the donor refused")


@check("rdma-lanes", modes=("signal",), slow_only=True, timeout_s=500, needs=missing)
def rdma_lanes(r):
    """Programs read over their own queue pairs, and go on without them whatever they do to their descriptors."""
    whats = ("nothing", "fork", "close", "replace", "unshare", "filter")
    result = rdma_boot(r, f"""
        donor
        # By this name, at this server: does $3.
        reader() {{
            name=$1; server=$2; what=$3; shift 3
            canvas run --local 8M --pool 2M --far 256M --to $server --copies 1 -o prefetch=none -o unit=4K \\
                -o far-wait=300s --require --stats /out/$name.json "$@" -- far_devices 24 $what 4 1 > /out/$name \\
                2> /out/$name.err || {{ echo "$name: code $?"; cat /out/$name /out/$name.err; exit 30; }}
        }}
        for what in {" ".join(whats)}; do
            reader $what rdma://127.0.0.1:7070 $what
        done
        reader connections 127.0.0.1:7070 nothing
        reader agent rdma://127.0.0.1:7070 nothing -o lanes=off
        sleep 1.2
    """, files={"/usr/bin/far_devices": r.binary("far_devices")}, timeout_s=480)
    for what in whats:
        r.require(text(result, what).startswith("every byte right"), text(result, what))
        far = json.loads(text(result, what + ".json"))["far"]
        r.same(far["corrupt"], 0, "copies that did not verify")
        by_pair = far["lane_pair_reads"]
        r.note(f"{what}: {far['reads']} reads, {far['lane_reads']} over lanes, {by_pair} by queue pairs; "
               + "; ".join(text(result, what + ".err").splitlines()))
        r.require(by_pair > far["reads"] / (2 if what == "nothing" else 20), f"{what}: {far}")
    # In an emulated machine the note only shows which way needs less processor time.
    for name in ("nothing", "connections", "agent"):
        far = json.loads(text(result, name + ".json"))["far"]
        r.note(f"{name}: a page after {far['fault_read_ns'] / far['fault_reads'] / 1000:.0f} us on average, "
               f"{far['lane_reads']} of {far['reads']} over lanes, {far['lane_pair_reads']} by queue pairs")
    counters = json.loads(text(result, "donor.json"))["counters"]
    r.require(counters["lane_pairs"] >= len(whats), f"queue pairs at the donor: {counters}")


@check("rdma-lanes-turns", modes=("signal",), slow_only=True, timeout_s=400, needs=missing)
def turns(r):
    """Two tenants of one agent: one alone reads over queue pairs, next to another one over connections, and then
    over queue pairs again."""
    result = rdma_boot(r, """
        donor
        mkdir -p /run/canvas
        canvas agent --to rdma://127.0.0.1:7070 --copies 1 \\
            2> /out/agent.log &
        agent=$!
        until_true 20 [ -S /run/canvas/agent.sock ] || { cat /out/agent.log; exit 26; }
        # A tenant of this name, with this status file, which reads until its status file says stop.
        tenant() {
            canvas run --tenant $1 --to agent --local 8M --pool 2M --far 256M -o prefetch=none -o unit=4K \\
                -o far-wait=300s --require --stats /out/$1.json -- far_pages 24 /run/$1 1 > /out/$1.said 2> /out/$1.err &
        }
        status() { dd if=/run/$1 bs=8 skip=$2 count=1 2> /dev/null | od -A n -t u8 | tr -d ' '; }
        is_ready() { [ -s /run/$1 ] && [ "$(status $1 0)" = 1 ]; }
        far() { canvas status $1 --json 2> /dev/null | sed -n "s/.*\\"$2\\": *\\([0-9]*\\).*/\\1/p" | head -n 1; }
        more() { [ "$(far $1 $2)" -gt $3 ]; }
        # Waits for this number of further reads of this kind.
        grow() {
            was=$(far $1 $2)
            until_true 100 more $1 $2 $((was + $3)) || { echo "$1: $2 stays $was"; canvas status $1 --json; exit 27; }
        }
        stop() { printf '\\001' | dd of=/run/$1 bs=1 seek=32 conv=notrunc 2> /dev/null; }
        tenant a; a=$!
        until_true 90 is_ready a || { cat /out/a.err /out/agent.log; exit 22; }
        grow a lane_pair_reads 300
        tenant b; b=$!
        until_true 90 is_ready b || { cat /out/b.err; exit 22; }
        grow b fault_reads 300
        # Both use the links: what was begun ends within a second.
        sleep 1
        before=$(far a lane_pair_reads)
        grow a fault_reads 300
        echo $(($(far a lane_pair_reads) - before)) > /out/beside
        stop b; wait $b || { cat /out/b.said /out/b.err; exit 24; }
        grow a lane_pair_reads 300
        stop a; wait $a || { cat /out/a.said /out/a.err; exit 24; }
        sleep 1.2
        kill $agent
        wait $agent
    """, files={"/usr/bin/far_pages": r.binary("far_pages")}, timeout_s=380)
    for name in "ab":
        r.require(text(result, name + ".said").startswith("every byte right"), text(result, name + ".said"))
        far = json.loads(text(result, name + ".json"))["far"]
        r.note(f"{name}: {far['reads']} reads, {far['lane_reads']} over lanes, {far['lane_pair_reads']} by queue pairs")
    r.same(text(result, "beside").strip(), "0", "reads by queue pairs beside another tenant")


@check("rdma-evicted", modes=("signal",), slow_only=True, timeout_s=240, needs=missing)
def evicted(r):
    """A donor takes back its memory, with the only copy in it: all of it moves to the other donor, over RDMA."""
    result = rdma_boot(r, """
        # What the host of donor $1 says of its memory, in MiB; in one step, or half of it could be read.
        available() {
            printf 'MemTotal: 67108864 kB\\nMemAvailable: %s kB\\n' $(($2 << 10)) > /run/$1/new
            mv /run/$1/new /run/$1/meminfo
        }
        lender() {
            mkdir /run/$1
            available $1 32768
            canvas serve --rdma --listen 127.0.0.1:$2 --memory 256M --reserve 1000M -o evict-within=180s \\
                -o procfs=/run/$1 --state-json /out/$1.json 2> /out/$1.log &
            until_true 20 grep -q "listening on" /out/$1.log || { cat /out/$1.log; exit 21; }
        }
        lends() { grep -Eq '"lent_bytes": ?[1-9]' /out/$1.json; }
        lends_nothing() { grep -Eq '"lent_bytes": ?0' /out/$1.json; }
        lender a 7070; a=$!
        lender b 7071; b=$!
        program --copies 1 --to rdma://127.0.0.1:7071
        reads 1000
        # The state files are a second old at most.
        sleep 1.2
        if lends a; then from=a to=b; else from=b to=a; a=$b; fi
        echo "$from $to" > /out/way
        cp /out/$from.json /out/from-before.json
        available $from 500
        until_true 100 lends_nothing $from || { cat /out/$from.json /out/$from.log; exit 25; }
        # Nothing is there any more that could be read.
        cp /out/$from.json /out/from.json
        kill -9 $a
        reads 1000
        sleep 1.2
        cp /out/$to.json /out/donor.json
        finish
    """, files={"/usr/bin/far_pages": r.binary("far_pages")}, disks=(512,), timeout_s=220)
    stats, to = judged(r, result)
    before, came = (json.loads(text(result, name)) for name in ("from-before.json", "from.json"))
    r.require(before["counters"]["exposed_slabs"] > 0 and to["exposed_slabs"] > 0, f"no slab was exposed: {before} {to}")
    r.same(came["counters"]["evicted_slabs"], before["slabs"], "slabs that went")
    r.same(came["counters"]["evicted_late_slabs"], 0, "slabs that were freed before they were moved")
    r.same(to["evicted_slabs"], 0, "slabs that the other donor told to go")
    # Only reads before a slab was exposed went over the session.
    over_session = came["counters"]["reads"] + to["reads"]
    r.require(over_session < stats["far"]["reads"] / 4,
              f"{over_session} of {stats['far']['reads']} reads went over the session")
    r.note(f"{before['slabs']} slabs, {before['touched_bytes'] / MIB:.0f} MiB, went from {text(result, 'way').strip()}; "
           f"{to['written_bytes'] / MIB:.0f} MiB of it over the session")


@check("rdma-donor-killed", modes=("signal",), slow_only=True, timeout_s=400, needs=missing)
def donor_killed(r):
    """The donor is killed under load, repeatedly: the disk has all data, and the donor is used again."""
    kills = 5
    result = rdma_boot(r, f"""
        donor
        program --copies 1+disk
        for i in $(seq {kills}); do
            reads 500
            kill -9 $donor
            reads 500
            donor
            reads 500
        done
        sleep 1.2
        finish
    """, files={"/usr/bin/far_pages": r.binary("far_pages")}, disks=(512,), timeout_s=360)
    stats, counters = judged(r, result)
    r.require(counters["exposed_slabs"] > 0, f"the last donor was not used by RDMA: {counters}")
    told = text(result, "complaints")
    r.require(told.count("it serves again") >= 1, f"no word of a donor that came back:\n{told}")
    r.same(stats["far"]["agents"], 1, "agents")
