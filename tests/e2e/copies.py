"""`canvas set RUN copies=...`: far memory moves to other places while a program runs, without interruption."""

import json
import os
import signal
import stat
import subprocess
import time

from lib.harness import MIB, ONCE, check

from . import slo
from .charged import agent_of, donor
from .deep import wait_for_agent
from .hostile import seeds
from .operate import ask, python, wait_until
from .suite import closed_missing

# Incompressible data, of which a page at a time is checked, and now and then written, until the file `end` exists;
# then all of them are checked. A line has the duration of the slowest step.
WORKER = """
import hashlib, mmap, os, random, sys, time
SIZE, PAGES, PAUSE_S = 4096, int(sys.argv[3]) << 8, float(sys.argv[4])
m = mmap.mmap(-1, SIZE * PAGES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
versions = [0] * PAGES
def page(i):
    return hashlib.shake_128(b"%d,%d" % (i, versions[i])).digest(2048)
for i in range(PAGES):
    m[i * SIZE:i * SIZE + 2048] = page(i)
print("filled", flush=True)
rng, slowest, steps = random.Random(int(sys.argv[2])), 0, 0
while not os.path.exists(sys.argv[1]):
    i = rng.randrange(PAGES)
    before = time.monotonic()
    seen = m[i * SIZE:i * SIZE + 2048]
    assert seen == page(i), i
    if i % 3 == 0:
        versions[i] += 1
        m[i * SIZE:i * SIZE + 2048] = page(i)
    slowest = max(slowest, time.monotonic() - before)
    steps += 1
    time.sleep(PAUSE_S)
for i in range(PAGES):
    assert m[i * SIZE:i * SIZE + 2048] == page(i), i
print("right", flush=True)
print(f"{steps} steps, the slowest {slowest * 1e3:.1f} ms", file=sys.stderr)
"""


# Fills so many MiB of incompressible data, then keeps every seventh mapped, then none.
FREES = """
import hashlib, mmap, os, sys
MIB = 1 << 20
parts = [mmap.mmap(-1, MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(int(sys.argv[1]))]
sums = []
for m in parts:
    data = os.urandom(MIB)
    m[:] = data
    sums.append(hashlib.md5(data).digest())
print("filled", flush=True)
sys.stdin.readline()
kept = [(m, s) for i, (m, s) in enumerate(zip(parts, sums)) if i % 7 == 0]
for i, m in enumerate(parts):
    if i % 7:
        m.close()
del parts, m
print("freed", flush=True)
sys.stdin.readline()
assert all(hashlib.md5(m[:]).digest() == s for m, s in kept)
for m, _ in kept:
    m.close()
del kept, m
print("right", flush=True)
sys.stdin.readline()
"""
SLAB = 64 * MIB


def lenders(r, n):
    """Starts `count` donors on this host; returns them and their addresses."""
    addresses = [donor(r) for _ in range(n)]
    return r.children[-n:], addresses


def where(r, name):
    """The tenant's status, and the number of slabs at each donor."""
    status = json.loads(ask(r, "status", name, "--json"))
    slabs = {d["address"]: d["slabs"] for d in status["donors"]}
    return status, slabs


def moved(r, name, copies, servers, donors):
    """Waits until all slabs have their copies: this number of each at donors."""
    def is_there():
        status, slabs = where(r, name)
        used = -(-status["used"]["far_bytes"] // (64 * MIB))
        at = sum(slabs.get(s, 0) for s in servers)
        whole = status["far"]["degraded_slabs"] == 0
        return whole and status["limits"]["copies"] == copies and at == donors * used and at >= donors

    began = time.monotonic()
    wait_until(r, f"copies are {copies}", is_there, 60, state=lambda: where(r, name))
    r.note(f"{copies} after {time.monotonic() - began:.1f} s")


def set_copies(r, name, copies):
    subprocess.run([r.session.canvas, "set", name, f"copies={copies}"], check=True, timeout=30)


def works(end, seed, mib=64, pause_s=0.001):
    """The command of the program above."""
    return [python(), "-c", WORKER, end, seed, mib, pause_s]


def worker(r, servers, flags=(), keeper=None, **o):
    """The program above (`works`), with its far memory kept by its own agent or by `keeper`."""
    name, end = f"copies{os.getpid()}", r.path("end")
    seed = seeds(r, 1)[0]
    places = [*(["--to", ",".join(servers)] if servers else []), "--to", f"disk:{r.dir}"]
    c = r.start(works(end, seed, **o), tag="worker", local=16 * MIB, pool=o.get("mib", 64) * MIB // 8,
                extra=["--tenant", name, "--far", "256M", *flags, *([f"--to=agent:{keeper}"] if keeper else places)])
    wait_until(r, "the program is ready", lambda: "filled" in c.out() or not c.alive(), 60)
    return c, name, end


def ends_right(r, c, end):
    stats = slo.ends_right(r, c, end)
    r.note(c.err().strip().splitlines()[-1])
    r.same(stats["far"]["corrupt"], 0, "copies that did not verify")


@check("far-given-back", modes=("signal",), timeout_s=300)
def far_given_back(r):
    """Memory that a program frees beyond the pool is freed by donors and the disk, and its other memory stays
    right."""
    if not r.managed:
        return
    servers = lenders(r, r.size(1, 4))[1]
    disk, donors = ["--to", f"disk:{r.dir}"], ["--to", ",".join(servers)]
    for copies, each, place in (("2", 2, donors), ("disk", 0, disk)) if r.slow else (("1", 1, donors),):
        name = f"freed{os.getpid()}-{each}"
        c = r.start([python(), "-c", FREES, r.size(160, 256)], tag=name, stdin=subprocess.PIPE, local=16 * MIB,
                    pool=8 * MIB,
                    extra=["--tenant", name, "--far", "512M", "--copies", copies, *place])

        def comes_to(word):
            wait_until(r, f"the program has {word}", lambda: word in c.out() or not c.alive(), 60)

        def goes_on():
            c.p.stdin.write(b"\n")
            c.p.stdin.flush()

        def slabs():
            status, at = where(r, name)
            return status["used"]["far_bytes"] // SLAB, sum(at.get(s, 0) for s in servers)

        def most(n):
            kept, lent = slabs()
            return kept <= n and lent <= n * each

        comes_to("filled")
        before = slabs()
        least = r.size(3, 4)
        r.require(before[0] >= least and before[1] >= least * each, f"{before} slabs")
        goes_on()
        comes_to("freed")
        # At most 37 MiB are left: one slab, and one more.
        wait_until(r, "slabs are given back", lambda: most(2), 60, state=slabs)
        goes_on()
        comes_to("right")
        # The interpreter's pages are left.
        wait_until(r, "more slabs are given back", lambda: most(1), 60, state=slabs)
        c.p.stdin.close()
        r.wait(c, timeout_s=60)
        r.same(r.load_stats(c)["far"]["corrupt"], 0, "copies that did not verify")


@check("copies-move", timeout_s=200, normal=ONCE)
def copies_move(r):
    """From a disk to donors, to more of them, and back, while each byte is checked."""
    if not r.managed:
        return
    lending, servers = lenders(r, 3)
    c, name, end = worker(r, servers, flags=("--copies", "disk"), mib=r.size(32, 64))
    moved(r, name, "disk", servers, 0)
    ways = (("1+disk", 1), ("2", 2), ("disk", 0), ("3", 3), ("1+disk-async", 1))
    for copies, donors in ways if r.slow else (("2", 2), ("disk", 0), ("1+disk-async", 1)):
        set_copies(r, name, copies)
        moved(r, name, copies, servers, donors)
    # The disk is slightly behind, and catches up when nothing is written.
    behind = lambda: where(r, name)[0]["far"]["disk_behind_bytes"]
    r.require(behind() <= 64 * MIB, f"{behind()} bytes behind")
    wait_until(r, "the disk has nearly all", lambda: behind() < 4 * MIB, 30, state=behind)
    ends_right(r, c, end)
    for s in lending:
        r.stop(s, signal.SIGTERM, expect={0})


@check("copies-move-on", modes=("signal",), timeout_s=200)
def copies_move_on(r):
    """The agent is killed while copies move, and then a donor that has one; the move completes nevertheless."""
    if not r.managed:
        return
    lending, servers = lenders(r, 3)
    c, name, end = worker(r, servers, flags=("--copies", "disk"), mib=r.size(32, 64))
    # The next agent knows the disk's contents, and moves them.
    os.kill(agent_of(c.pid), signal.SIGKILL)
    set_copies(r, name, "1+disk")
    moved(r, name, "1+disk", servers, 1)
    set_copies(r, name, "2")
    os.kill(agent_of(c.pid), signal.SIGKILL)
    moved(r, name, "2", servers, 2)
    _, slabs = where(r, name)
    lending[servers.index(max(slabs, key=slabs.get))].signal(signal.SIGKILL)
    set_copies(r, name, "disk")
    moved(r, name, "disk", servers, 0)
    ends_right(r, c, end)


@check("copies-move-agent", modes=("signal",), timeout_s=200, slow_only=True)
def copies_move_agent(r):
    """Copies move at the host's agent, which is replaced and then killed meanwhile."""
    if not r.managed:
        return
    lending, servers = lenders(r, 3)
    socket = r.path("agent.sock")
    os.mkdir(r.path("second"))

    def agent(*more):
        dirs = f"{r.dir},disk:{r.path('second')}"
        return r.start([r.session.canvas, "agent", "--socket", socket, "--to", f"disk:{dirs}", "--to", ",".join(servers),
                        *more], tag=f"agent{len(r.children)}", canvas_on=False)

    first = agent()
    wait_until(r, "the agent listens", lambda: os.path.exists(socket))
    c, name, end = worker(r, servers, flags=("--copies", "disk"), keeper=socket, mib=r.size(32, 64))
    moved(r, name, "disk", servers, 0)
    set_copies(r, name, "2")
    second = agent("--replace")
    r.wait(first, expect=0, timeout_s=20)
    moved(r, name, "2", servers, 2)
    set_copies(r, name, "1+disk")
    second.signal(signal.SIGKILL)
    r.wait(second, expect=-9, timeout_s=20)
    third = agent()
    moved(r, name, "1+disk", servers, 1)
    ends_right(r, c, end)
    r.stop(third, signal.SIGTERM, expect={0})
    for s in lending:
        r.stop(s, signal.SIGTERM, expect={0})


@check("copies-erasure", modes=("signal",), timeout_s=200)
def copies_erasure(r):
    """Pages in shards at donors: the agent is killed, then as many of the donors as the code allows, while each
    byte is checked; the lost shards are rebuilt at other donors, and one more donor dies."""
    if not r.managed:
        return
    # Enough donors for the deaths below.
    data, more = r.size((2, 1), (4, 2))
    code, parts = f"{data}+{more}", data + more
    lending, servers = lenders(r, parts + more + 1)
    c, name, end = worker(r, servers, flags=("--copies", code), mib=r.size(32, 64))
    moved(r, name, code, servers, parts)
    # Shards of half a slab or of a quarter: one and a half times the data.
    status, slabs = where(r, name)
    r.same(sum(slabs.values()), parts * -(-status["used"]["far_bytes"] // (64 * MIB)), "parts of slabs")
    os.kill(agent_of(c.pid), signal.SIGKILL)
    moved(r, name, code, servers, parts)
    alive = list(servers)
    for turn, dies in enumerate((more, 1)):
        _, slabs = where(r, name)
        for address in sorted(alive, key=lambda a: -slabs.get(a, 0))[:dies]:
            alive.remove(address)
            lending[servers.index(address)].signal(signal.SIGKILL)
        if turn == 0:
            moved(r, name, code, alive, parts)
    # One donor is left for each shard, so writes continue; shards of the last dead one are computed.
    time.sleep(0.5)
    ends_right_of(r, c, end)


def ends_right_of(r, c, end):
    stats = slo.ends_right(r, c, end)
    r.note(c.err().strip().splitlines()[-1])
    r.same(stats["far"]["corrupt"], 0, "shards that did not verify")
    r.require(stats["far"]["decoded"] > 0, f"nothing was computed: {stats['far']}")


@check("copies-refused", modes=("signal",), timeout_s=60)
def copies_refused(r):
    """A request that cannot be met changes nothing, and gets one sentence."""
    if not r.managed:
        return
    (lender,), (server,) = lenders(r, 1)
    c, name, end = worker(r, [server], mib=32)
    for copies, why in (("2", "copies=2: it needs 2 donors and this run knows 1"), ("4", "write one of 1+disk, 1+disk-async, 2"),
                        ("4+2", "copies=4+2: it needs 6 donors and this run knows 1"),
                        ("4+3", "or a code from 2+1 to 8+2")):
        done = subprocess.run([r.session.canvas, "set", name, f"copies={copies}"], capture_output=True, text=True,
                              timeout=30)
        r.same(done.returncode, 2, f"exit code of {copies}")
        r.require(why in done.stderr and done.stderr.count("\n") == 1, f"{copies}: {done.stderr!r}")
    status, _ = where(r, name)
    r.same(status["limits"]["copies"], "1+disk", "copies")
    ends_right(r, c, end)
    r.stop(lender, signal.SIGTERM, expect={0})


def lines_of(r, name, *flags, enough=lambda: True):
    """Output of `canvas tune` for a run over one interval, and over more until that is `enough`."""
    p = subprocess.Popen([r.session.canvas, "tune", name, "--json", "-i", "0.25", *flags], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    said = [json.loads(p.stdout.readline())]
    while not enough():
        said.append(json.loads(p.stdout.readline()))
    if "--once" not in flags:
        p.send_signal(signal.SIGTERM)
    p.communicate(timeout=30)
    r.same(p.returncode, 0 if "--once" in flags else 128 + signal.SIGTERM, "exit code")
    return said


@check("tune", modes=("signal",), timeout_s=120)
def tune(r):
    """The pool of a run that reads beyond it grows; --dry-run only reports."""
    if not r.managed:
        return
    c, name, end = worker(r, [], flags=("--copies", "disk"), pause_s=0)
    limit = lambda: json.loads(ask(r, "status", name, "--json"))["limits"]["pool_bytes"]
    (dry,) = lines_of(r, name, "--dry-run", "--once")
    r.require(dry["change"] == "pool=10M" and not dry["is_done"], f"{dry}")
    r.require(dry["reads_per_s"] > 0 and dry["read_us_mean"] > 1 and "to spare" in dry["why"], f"{dry}")
    r.same(limit(), 8 * MIB, "the pool after --dry-run")
    said = lines_of(r, name, enough=lambda: limit() > 24 * MIB)
    r.require(said[0]["change"] == "pool=10M" and said[0]["is_done"], f"{said[0]}")
    r.note(f"{limit() >> 20} MiB after {len(said)} intervals")
    # Text output.
    text = ask(r, "tune", name, "--once", "-i", "0.2")
    r.require(text.startswith("------tenant------") and name in text, text)
    ends_right(r, c, end)


# A small directory in memory.
SMALL = 'mkdir -p "$0" && mount -t tmpfs -o size=14m canvas-test "$0" && exec "$@"'


def kept_bytes(pid, directory):
    """Size of an agent's file in a directory."""
    device, kept = os.stat(directory).st_dev, 0
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            s = os.stat(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if stat.S_ISREG(s.st_mode) and s.st_dev == device and s.st_nlink == 0:
            kept += s.st_blocks * 512
    return kept


@check("far-dirs", modes=("signal",), timeout_s=120, needs=closed_missing)
def far_dirs(r):
    """Two far directories, one of them small: both are used, the next agent finds their contents, and all
    bytes are right."""
    if not r.managed:
        return
    name, end, small = f"dirs{os.getpid()}", r.path("end"), r.path("small")
    c = r.start(works(end, seeds(r, 1)[0]), tag="worker", local=16 * MIB, pool=8 * MIB,
                prefix=["unshare", "--mount", "sh", "-c", SMALL, small],
                extra=["--tenant", name, "--far", "256M", "-o", "far-reserve=0", "--to", f"disk:{small},disk:{r.dir}"])
    wait_until(r, "the program is ready", lambda: "filled" in c.out() or not c.alive(), 60)
    agent = wait_for_agent(r, c)

    def kept(agent):
        return [kept_bytes(agent, f"/proc/{agent}/root{place}") for place in (small, r.dir)]

    wait_until(r, "the small one is full", lambda: min(kept(agent)) > 12 * MIB, 30, state=lambda: kept(agent))
    os.kill(agent, signal.SIGKILL)
    agent = wait_for_agent(r, c, not_pid=agent)
    time.sleep(1)
    r.require(min(kept(agent)) > 12 * MIB, f"the next agent has both: {kept(agent)}")
    r.note(" and ".join(f"{n >> 20} MiB" for n in kept(agent)))
    ends_right(r, c, end)


@check("far-dirs-refused", modes=("signal",), timeout_s=30)
def far_dirs_refused(r):
    """A missing directory, or one too many, gets one sentence, and CMD is not started."""
    if not r.managed:
        return
    for dirs, why in ((f"{r.dir},disk:{r.path('none')}", "none: No such file or directory"),
                      (",disk:".join([r.dir] * 9), "it names 9 directories; write 8 at most")):
        done = subprocess.run([r.session.canvas, "run", "--local", "16M", "--far", "64M", "--to", f"disk:{dirs}", "--",
                               "echo", "started"], capture_output=True, text=True, timeout=30)
        r.same((done.returncode, done.stdout, done.stderr.count("\n")), (125, "", 1), f"{dirs}: {done.stderr}")
        r.require(why in done.stderr, f"{dirs}: {done.stderr}")
