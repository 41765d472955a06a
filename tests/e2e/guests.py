"""Guests in other ways than on a canvas disk alone: `canvas swap-in` in a guest, qemu under `canvas run`,
KVM, and a kernel that swaps onto a disk of its own host."""

import json
import os
import subprocess

from lib import canvas
from lib.harness import MIB, Failure, Skip, check
from vm import guest

from .command import canvas_only, cli
from .disk import attached, disk, ends, settled, shared, vm_missing
from .reserve import Group
from .vm import boot

# The limit of its group swaps a program's memory out, and then the group has room again. `touch_all HOW`: the program
# touches its pages, which came back by HOW; its answer goes to /out/HOW.
ASLEEP = r"""
    modprobe virtio_blk
    echo 0 > /sys/block/vda/queue/rotational
    mkswap /dev/vda > /dev/null || exit 10
    swapon -d /dev/vda || exit 11
    echo +memory > /sys/fs/cgroup/cgroup.subtree_control
    group=/sys/fs/cgroup/sleeper
    mkdir $group
    mkfifo /root/go
    sh -c "echo \$\$ > $group/cgroup.procs; exec dormant $mib" < /root/go > /root/said &
    sleeper=$!
    exec 3> /root/go
    until grep -q ready /root/said; do sleep 0.2; done
    swap_out() {
        for _ in 1 2 3 4 5 6; do
            echo ${mib}M > $group/memory.reclaim
            swapped=$(sed -n 's/^VmSwap:[^0-9]*\([0-9]*\).*/\1/p' /proc/$sleeper/status)
            [ "$swapped" -gt $((mib * 930)) ] && return
        done
        echo "only $swapped KiB are swapped out"
        exit 12
    }
    touch_all() {
        lines=$(wc -l < /root/said)
        echo go >&3
        until [ "$(wc -l < /root/said)" -gt "$lines" ]; do sleep 0.1; done
        tail -n 1 /root/said > /out/$1
    }
"""
SLEEPER = "mib=64\n" + ASLEEP + r"""
    swap_out
    touch_all alone
    swap_out
    canvas swap-in --free 1T --json > /out/no-room.json || exit 13
    canvas swap-in --pid $sleeper --batch 10M --free 16M --json > /out/pid.json || exit 14
    touch_all pid
    swap_out
    canvas swap-in --cgroup sleeper --free 16M > /out/group.txt || exit 15
    touch_all group
    echo 20M > $group/memory.max
    canvas swap-in --free 16M --json > /out/full.json || exit 16
    echo max > $group/memory.max
    touch_all full
    canvas swap-in --watch --interval 200ms --free 16M --json > /out/watch.json &
    watch=$!
    swap_out
    n=0
    until grep -q 'nothing is left' /out/watch.json; do
        sleep 0.5
        n=$((n + 1))
        [ $n -lt 80 ] || exit 17
    done
    sleep 1
    touch_all watch
    kill -TERM $watch
    wait $watch
    [ $? -eq 143 ] || exit 18
    swap_out
    /usr/bin/setpriv --reuid 65534 --clear-groups canvas swap-in --pid $sleeper --free 16M 2> /out/refused.txt
    code=$?
    [ $code -eq 2 ] || { echo "code $code as nobody"; cat /out/refused.txt; exit 19; }
    exec 3>&-
    wait $sleeper || exit 20
    swapoff /dev/vda
"""


def waits(result, name):
    """Number of faults that waited for the disk; checks that all data was right."""
    words = result.files[name].decode().split()
    if words[:2] != ["right", "after"]:
        raise Failure(f"{name}: {words}\n{result.tail()}")
    return int(words[2])


# In one guest, as its boot takes most of the time: a program with little memory swaps onto the disk, and another one's
# pages are brought back. `canvas run` is not in it: an emulated processor needs most of a minute for that (vm-run).
SHORT = "mib=12\n" + ASLEEP + r"""
    mkdir /sys/fs/cgroup/little
    echo 12M > /sys/fs/cgroup/little/memory.max
    sh -c 'echo $$ > /sys/fs/cgroup/little/cgroup.procs; exec swapped 24 2' || exit 32
    swap_out
    touch_all alone
    swap_out
    canvas swap-in --pid $sleeper --batch 10M --free 16M --json > /out/pid.json || exit 33
    touch_all pid
    exec 3>&-
    wait $sleeper || exit 34
    grep -E 'pswp(in|out) ' /proc/vmstat
    swapoff /dev/vda || exit 35
    blkdiscard /dev/vda || exit 36
"""


@check("vm-short", modes=("signal",), timeout_s=120, needs=vm_missing)
def short(r):
    """A guest swaps onto a disk over vhost-user, every byte is right and nothing stays; what `canvas swap-in` brings
    back is not waited for."""
    c, path = disk(r, "--queues", "2", size=64 * MIB, pool=48 * MIB, by="--vhost-user")
    files = {f"/usr/bin/{name}": r.binary(of) for name, of in (("swapped", "swapped-static"), ("dormant", "dormant-static"))}
    result = boot(r, SHORT, with_lab=False, files=files, modules=("virtio_blk",), programs=("mkswap", "swapon", "swapoff"),
                  memory_mib=256, cpus=1, timeout_s=110, qemu=shared(path, queues=2, memory_mib=256))
    r.require("round 1 is right" in result.output and "I/O error" not in result.output + result.log, result.tail())
    moved = {k: int(v) for k, v in (line.split() for line in result.output.splitlines() if line.startswith("pswp"))}
    r.require(moved["pswpout"] > 8000 and moved["pswpin"] > 8000, f"{moved}")
    alone, after, got = waits(result, "alone"), waits(result, "pid"), json.loads(result.files["pid.json"])
    r.require(alone > 60 and after <= 8, f"{after} waits after swap-in, {alone} without")
    r.require(got["pages"] > 2800 and got["end"] == "nothing is left", f"{got}")
    end = settled(r, "the guest is gone, and nothing is left of it", lambda s: s["clients"] == 0 and s["stored_pages"] <= 2)
    r.same([end["counters"][k] for k in ("refused", "damaged")], [0, 0], "refused, damaged")
    r.note(f"{moved['pswpout']} out, {moved['pswpin']} in; {alone} waits alone, {after} after swap-in")
    ends(r, c, path)


@check("vm-swap-in", modes=("signal",), slow_only=True, timeout_s=300, needs=vm_missing)
def swap_in(r):
    """In a stock guest on a disk, `canvas swap-in` brings a program's pages back, so that its next touches
    wait for none."""
    canvas_only(r)
    c, path = disk(r, size=256 * MIB, pool=128 * MIB)
    result = boot(r, SLEEPER, with_lab=False, files={"/usr/bin/dormant": r.binary("dormant-static")}, modules=("virtio_blk",),
                  programs=("mkswap", "swapon", "swapoff", "setpriv"), memory_mib=512, timeout_s=260, qemu=attached(path))
    told = lambda name: [json.loads(line) for line in result.files[name].decode().splitlines()]
    alone = waits(result, "alone")
    r.require(alone > 300, f"alone it waited {alone} times only")
    for name in ("pid", "group", "watch"):
        n = waits(result, name)
        r.require(n <= 8, f"{n} waits after swap-in ({name}), {alone} without")
    one, = told("pid.json")
    r.require(one["pages"] > 15_000 and one["processes"] == 1 and one["end"] == "nothing is left", f"{one}")
    r.require(one["read_pages"] > 15_000 and one["us_per_page"] > 0, f"{one}")
    none, = told("no-room.json")
    r.same((none["pages"], none["end"]), (0, "the rest has no room"), "with nothing to spare")
    full, = told("full.json")
    r.require(full["pages"] < 8_000 and full["full_groups"] == 1, f"past the group's limit: {full}")
    waits(result, "full")
    seen = told("watch.json")
    r.require(1 <= len(seen) <= 40 and sum(s["pages"] for s in seen) > 10_000, f"{seen}")
    said = result.files["group.txt"].decode()
    r.require("of 1 processes" in said and said.endswith("nothing is left\n"), said)
    said = result.files["refused.txt"].decode()
    r.require("may not be touched by this user" in said and len(said.splitlines()) == 1, said)
    r.note(f"{alone} waits alone; {one['pages']} pages in {one['seconds']} s, {one['us_per_page']} us a page")
    ends(r, c, path)


@check("swap-in-refused", modes=("signal",), timeout_s=30)
def swap_in_refused(r):
    """Bad input is refused in one sentence; if nothing is swapped out, the command says so."""
    canvas_only(r)
    for flags, sentence in ((("--pid", "4194303"), "--pid 4194303: there is no such process"),
                            (("--cgroup", "no/such"), "--cgroup no/such: there is no such control group"),
                            (("--batch", "1"), "--batch 1 is less than a page; write 4K or more"),
                            (("--pid", "1", "--cgroup", "x"), "exclude each other"),
                            (("--interval", "2"), "--watch")):
        p = cli(r, "swap-in", *flags)
        r.same((p.returncode, p.stdout), (2, ""), f"{flags}: {p.stderr}")
        r.require(sentence in p.stderr, f"{flags}: {p.stderr}")
    sleeper = r.start(["sleep", "60"], canvas_on=False)
    p = cli(r, "swap-in", "--pid", sleeper.pid, "--json")
    r.same((p.returncode, p.stderr), (0, ""), "a process that is in memory")
    r.same(json.loads(p.stdout)["pages"], 0, p.stdout)


UNDER = "swapped 160 2 || exit 10\ngrep -E 'MemTotal|SwapTotal' /proc/meminfo\n"


@check("vm-under-canvas", modes=("signal",), slow_only=True, timeout_s=240, needs=guest.missing)
def under_canvas(r):
    """Unmodified qemu under `canvas run`, with less local memory than its guest has RAM: the guest's program
    finds every byte, and the guest notices nothing."""
    canvas_only(r)
    local = 112 * MIB
    report = r.path("qemu.json")
    result = guest.run("set -u\n" + UNDER, files={"/usr/bin/swapped": r.binary("swapped-static")}, memory_mib=256,
                       timeout_s=220, work=r.dir,
                       under=(r.session.canvas, "run", "--local", str(local), "--require", "--stats", report, "--"))
    r.same(result.code, 0, f"the guest's script\n{result.tail()}")
    r.require("round 1 is right" in result.output and "SwapTotal:             0 kB" in result.output, result.output)
    stats = canvas.load_stats(report)
    r.same((stats["mode"], canvas.check_stats(stats, local)), ("signal", []), "mode and report of an emulated guest")
    out, far = canvas.find(stats, "pages_out"), canvas.find(stats, "faults_far")
    r.require(out > 20_000 and far > 500, f"{out} pages out, {far} far faults")
    r.note(f"{result.seconds:.0f} s; {canvas.summary(stats)}, {far} far faults, footprint of "
           f"{canvas.memory(stats, 'footprint_bytes') >> 20} MiB")


def kvm_missing():
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "no /dev/kvm that this user may open"
    return None


@check("kvm-guest", modes=("signal",), timeout_s=120, needs=kvm_missing)
def kvm(r):
    """A monitor that uses KVM gets thread mode automatically, and its guest finds every page; in signal mode
    KVM is refused in one line, and qemu falls back to emulation."""
    canvas_only(r)
    program = r.binary("kvm")
    plain = subprocess.run([program, "4", "1"], capture_output=True, text=True, timeout=60)
    if plain.returncode:
        raise Skip(f"KVM does not work here: {plain.stdout.strip()}")
    said = "KVM is refused to this program, because signal mode cannot serve a guest's processors"
    run = ["run", "--local", "16M", "--stats", r.path("kvm.json")]

    def stats():
        return canvas.load_stats(r.path("kvm.json"))

    if cli(r, "run", "--mode", "thread", "--local", "64M", "--", "true").returncode == 0:
        p = cli(r, *run, "--require", "--", program, "64", "3", timeout_s=60)
        r.same((p.returncode, p.stdout, p.stderr), (0, "3 rounds of 16382 pages are right\n", ""), "by itself")
        r.same(stats()["mode"], "thread", "the mode")
        r.require(canvas.find(stats(), "pages_out") > 30_000, canvas.summary(stats()))
        fallback = [qemu(r, run, words)[0] for words in (("kvm",), ("kvm", "tcg"))]
        r.same(fallback, ["kvm support: enabled"] * 2, "qemu with KVM")
        r.same(stats()["mode"], "thread", "the mode of qemu with KVM")
    r.same(qemu(r, run, ("tcg",)), ("kvm support: disabled", ""), "qemu without KVM")
    r.same(stats()["mode"], "signal", "the mode of qemu without KVM")
    for words in (["--mode", "signal", "--", program], ["--", "sh", "-c", f"{program} 64 3; exit $?"]):
        p = cli(r, *run, *words)
        r.same((p.returncode, p.stdout), (3, "KVM_CREATE_VM: Permission denied\n"), f"{words}: {p.stderr}")
        r.require(p.stderr.startswith("canvas: " + said) and len(p.stderr.splitlines()) == 1, p.stderr)
    state, err = qemu(r, [*run, "--mode", "signal"], ("kvm", "tcg"))
    r.same(state, "kvm support: disabled", f"qemu with both in signal mode: {err}")
    r.require(said in err and "falling back to tcg" in err, err)


def qemu(r, run, accelerators):
    """Starts qemu without a guest, and asks it whether it uses KVM: returns its answer and its stderr."""
    words = [w for a in accelerators for w in ("-accel", a)]
    argv = [guest.QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-S", "-m", "64", *words, "-monitor",
            "stdio"]
    p = subprocess.run([r.session.canvas, *run, "--", *argv], input="info kvm\nquit\n", capture_output=True, text=True,
                       timeout=60, cwd=r.dir)
    r.same(p.returncode, 0, f"{argv}: {p.stdout}{p.stderr}")
    answer, = [line for line in p.stdout.splitlines() if line.startswith("kvm support")]
    return answer, p.stderr


# A kernel that swaps onto a disk of its own host: two programs that need more than all memory, and a third
# that writes and frees files in memory, so that the kernel itself has hardly any memory most of the time.
HOST = r"""
    ends() {
        wait $disk || exit 11
    }
    try() {
        canvas disk --size 384M --swap-host "$@" 2>> /out/wrong.txt && exit 13
        [ $? -eq 2 ] || exit 14
    }
    try --pool 8M
    modprobe ublk_drv || exit 12
    try --pool 4G
    try --pool 8M --far 64M
    /usr/bin/setpriv --reuid 65534 --clear-groups canvas disk --size 4M --swap-host 2>> /out/wrong.txt
    [ $? -eq 2 ] || exit 15
    echo +memory > /sys/fs/cgroup/cgroup.subtree_control
    mkdir /sys/fs/cgroup/little
    echo 128M > /sys/fs/cgroup/little/memory.max
    sh -c 'echo $$ > /sys/fs/cgroup/little/cgroup.procs
           exec canvas disk --size 64M --pool 8M --swap-host' 2>> /out/wrong.txt
    [ $? -eq 2 ] || exit 16
    ls /dev/ublk* > /out/left
    canvas disk --size 152M --pool 104M --swap-host --state-json /run/host.json 2> /out/host.txt &
    disk=$!
    until [ -b /dev/ublkb0 ]; do
        kill -0 $disk || exit 10
        sleep 0.2
    done
    cat /proc/$disk/oom_score_adj > /out/score
    grep -E 'VmLck|VmRSS' /proc/$disk/status > /out/locked
    mkswap /dev/ublkb0 > /dev/null || exit 17
    swapon -d /dev/ublkb0 || exit 18
    available=$(sed -n 's/^MemAvailable:[^0-9]*\([0-9]*\).*/\1/p' /proc/meminfo)
    while :; do
        dd if=/dev/zero of=/run/junk bs=64k count=100 2> /dev/null
        rm /run/junk
    done &
    junk=$!
    half=$(((available / 1024 + 80) / 2))
    swapped $half 3 &
    one=$!
    swapped $half 3 || exit 19
    wait $one || exit 19
    kill $junk
    grep -E 'pswp(in|out) ' /proc/vmstat
    sleep 2
    cp /run/host.json /out/
    kill -TERM $disk
    until grep -q 'ends after: swapoff' /out/host.txt; do sleep 0.2; done
    sleep 2
    kill -0 $disk || exit 20
    swapoff /dev/ublkb0 || exit 21
    ends
    ls /dev/ublk* >> /out/left
"""


@check("swap-host-grouped", host=True, modes=("signal",), timeout_s=60)
def swap_host_grouped(r):
    """A disk for its own host's swap is refused in a control group with a limit, of either version: it would
    wait for memory that it must free."""
    canvas_only(r)
    group = Group(1 << 30)
    try:
        done = subprocess.run([*group.prefix(), r.session.canvas, "disk", "--swap-host", "--size", "64M", "--pool", "16M"],
                              capture_output=True, text=True, timeout=30)
        r.same((done.returncode, len(done.stderr.splitlines())), (2, 1), f"what it says: {done.stderr}")
        r.require("in a control group with a limit on memory" in done.stderr, done.stderr)
    finally:
        group.close()


@check("vm-swap-host", modes=("signal",), slow_only=True, timeout_s=400, needs=vm_missing)
def swap_host(r):
    """A kernel swaps onto a disk of its own host by --swap-host, with little memory all the time, and every
    byte is right; settings that cannot work are refused, and the disk does not end under its host."""
    result = boot(r, HOST, files={"/usr/bin/swapped": r.binary("swapped-static")}, loadable=("ublk_drv",),
                  programs=("mkswap", "swapon", "swapoff", "setpriv"), memory_mib=384, timeout_s=360)
    text = lambda name: result.files[name].decode()
    wrong = text("wrong.txt").splitlines()
    r.same(len(wrong), 5, f"lines about what cannot be: {wrong}")
    for line, sentence in zip(wrong, ("write: modprobe ublk_drv", "MiB available; write a smaller --pool",
                                      "excludes far memory", "needs root", "in a control group with a limit")):
        r.require(sentence in line, f"{line!r} lacks {sentence!r}")
    r.same(text("left"), 2 * "/dev/ublk-control\n", "devices after what was refused, and in the end")
    r.same(text("score"), "-1000\n", "oom_score_adj")
    locked = {k: int(v.split()[0]) for k, v in (line.split(":") for line in text("locked").splitlines())}
    r.require(locked["VmRSS"] > 104 << 10 and locked["VmLck"] > 104 << 10, f"{locked}")
    r.same(result.output.count("round 2 is right"), 2, f"programs that are done\n{result.tail()}")
    r.require("I/O error" not in result.log and "Write-error" not in result.log, result.tail())
    moved = {k: int(v) for k, v in (line.split() for line in result.output.splitlines() if line.startswith("pswp"))}
    r.require(moved["pswpout"] > 10_000 and moved["pswpin"] > 3_000, f"{moved}")
    state = json.loads(text("host.json"))
    r.same((state["device"], [state["counters"][k] for k in ("refused", "damaged")]), ("/dev/ublkb0", [0, 0]),
           "device, refused, damaged")
    r.note(f"{moved['pswpout']} out, {moved['pswpin']} in, {state['counters']['writes']} pages written")


# A kernel that attaches a disk of its own host over NBD.
ATTACHED = r"""
    modprobe nbd || exit 12
    canvas disk --size 64M --pool 8M --nbd /run/disk.sock 2> /out/said.txt &
    disk=$!
    until [ -S /run/disk.sock ]; do
        kill -0 $disk || exit 10
        sleep 0.2
    done
    attach /run/disk.sock /dev/nbd0 &
    attached=$!
    until [ "$(cat /sys/block/nbd0/size)" -gt 0 ]; do sleep 0.2; done
    dd if=/dev/nbd0 of=/dev/null bs=4k count=1 && exit 21
    mkswap /dev/nbd0 && exit 22
    until grep -q 'a client is not served' /out/said.txt; do sleep 0.2; done
    kill -TERM $disk
    wait $disk || exit 11
    wait $attached
    exit 0
"""


@check("vm-nbd-host", modes=("signal",), slow_only=True, timeout_s=120, needs=vm_missing)
def nbd_host(r):
    """A kernel that is the NBD client of its own host's disk gets an error for each request, and the disk
    reports the reason."""
    result = boot(r, ATTACHED, files={"/usr/bin/attach": r.binary("attach-static")}, loadable=("nbd",),
                  programs=("mkswap",), memory_mib=384, timeout_s=100)
    said = result.files["said.txt"].decode()
    r.require("it is the kernel of this host (/dev/nbd0)" in said and "start with --swap-host" in said, said)
