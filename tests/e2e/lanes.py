"""`-o lanes`: threads read their pages directly from donors. Whatever happens to a direct read channel, the read
goes to the agent's mailbox, and never returns wrong data: every byte is checked."""

import json
import os
import signal
import subprocess
import time

from lib import canvas, lab, procs
from lib.harness import MIB, ONCE, WantOfRoot, check

from . import slo
from .charged import agent_of
from .copies import lenders
from .hostile import seeds
from .operate import ask, python, wait_until

# Incompressible data, read at random until the file `end` exists; then all of it. The third argument names what is
# done at the same time, the fourth the size in MiB, and the last line says how often.
READER = """
import ctypes, hashlib, mmap, os, random, struct, sys, threading, time
SIZE, PAGES = 4096, int(sys.argv[4]) << 8
libc = ctypes.CDLL(None, use_errno=True)
m = mmap.mmap(-1, SIZE * PAGES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
page = lambda i: hashlib.shake_128(b"%d" % i).digest(2048)
for i in range(PAGES):
    m[i * SIZE:i * SIZE + 2048] = page(i)
print("filled", flush=True)
end, seed, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def read(i):
    if m[i * SIZE:i * SIZE + 2048] != page(i):
        print(f"seed {seed}: page {i} is wrong", file=sys.stderr, flush=True)
        os._exit(1)

def read_some(rng, n):
    for _ in range(n):
        read(rng.randrange(PAGES))

def sockets():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                found.append(int(fd))
        except OSError:
            pass
    return found

# A raw system call, which no hook sees.
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("4889f84889f74889d64889ca0f05c3"))
raw = ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_long] * 4)(
    ctypes.addressof(ctypes.c_char.from_buffer(code)))
CLOSE, DUP2 = 3, 33

def fork(rng):
    child = os.fork()
    if child == 0:
        read_some(random.Random(seed + 1), 300)
        os._exit(0)
    read_some(rng, 300)
    return os.waitpid(child, 0)[1] == 0

def close(rng):
    # By libc, where ours are not the program's to close, and behind its back.
    for fd in sockets():
        try:
            os.close(fd)
        except OSError:
            pass
        raw(CLOSE, fd, 0, 0)
    read_some(rng, 300)
    return True

stranger, told = os.pipe()

def replace(rng):
    # What lay there is a pipe now, and must get none of what is asked of a donor.
    for fd in sockets():
        raw(DUP2, told, fd, 0)
    read_some(rng, 300)
    os.set_blocking(stranger, False)
    try:
        return not os.read(stranger, 1)
    except BlockingIOError:
        return True

def unshare(rng):
    # A thread with a table of descriptors of its own, in which the numbers mean other files.
    well = []
    def inside():
        if libc.unshare(0x400):
            return
        for fd in sockets():
            raw(DUP2, told, fd, 0)
        read_some(random.Random(seed + 2), 300)
        well.append(True)
    t = threading.Thread(target=inside)
    t.start()
    read_some(rng, 100)
    t.join()
    os.set_blocking(stranger, False)
    try:
        return bool(well) and not os.read(stranger, 1)
    except BlockingIOError:
        return bool(well)

def nothing(rng):
    read_some(rng, 300)
    return True

def forbid():
    # connect: EACCES; all else is let through.
    ops = [(0x20, 0, 0, 0), (0x15, 0, 1, 42), (6, 0, 0, 0x50000 | 13), (6, 0, 0, 0x7fff0000)]
    filter = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *op) for op in ops))
    prog = struct.pack("HxxxxxxP", len(ops), ctypes.addressof(filter))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, prog):
        sys.exit("seccomp")

rng, times = random.Random(seed), 0
if what == "filter":
    forbid()
acts = [{"fork": fork, "close": close, "replace": replace, "unshare": unshare}.get(w, nothing) for w in what.split("-")]
while times < len(acts) or not os.path.exists(end):
    act = acts[times % len(acts)]
    if not act(rng):
        sys.exit(f"{act.__name__} went wrong")
    times += 1
for i in range(PAGES):
    read(i)
print(f"right, {times} times", flush=True)
"""


def reader(r, servers, what, flags=()):
    """Starts the program above; returns it, its name, and the file that ends it."""
    name, end = f"lanes-{what}-{r.mode}-{os.getpid()}-{time.time_ns() % 1_000_000}", r.path(f"{what}{len(r.children)}.end")
    seed = seeds(r, 1)[0]
    mib, local, pool = r.size((24, 12, 2), (48, 16, 8))
    at = [] if any(f.startswith("--to=agent") for f in flags) else ["--to", ",".join(servers)]
    copies = [] if "--copies" in flags else ["--copies", "1"]
    c = r.start([python(), "-c", READER, end, seed, what, mib], tag=f"{what}{len(r.children)}", local=local * MIB,
                pool=pool * MIB, extra=["--tenant", name, "--far", "256M", "-o", "prefetch=none", "-o", "unit=4K", *at,
                                        *copies, *flags])
    wait_until(r, "the program is ready", lambda: "filled" in c.out() or not c.alive(), 60)
    return c, name, end


def far_of(r, name):
    """Status of its far memory; asks again if the run did not answer in time."""
    told = lambda: json.loads(ask(r, "status", name, "--json")).get("far")
    return told() or wait_until(r, f"{name} answers", told, 30)


def grow(r, name, what="lane_reads", by=100, timeout_s=60):
    """Waits until `by` more reads went over channels; returns the status of its far memory."""
    before = far_of(r, name)[what]
    return wait_until(r, f"{what} grow", lambda: (f := far_of(r, name))[what] >= before + by and f, timeout_s,
                      state=lambda: far_of(r, name))


def agent_reads(r, name, why):
    """Checks that all reads of the program go to the agent now."""
    time.sleep(0.5)
    still = far_of(r, name)["lane_reads"]
    grow(r, name, "reads")
    r.same(far_of(r, name)["lane_reads"], still, why)


def ends_right(r, c, end):
    """Ends the program; returns what its report has about far memory."""
    far = slo.ends_right(r, c, end)["far"]
    r.same(far["corrupt"], 0, "copies that did not verify")
    r.note(f"{c.out().strip().splitlines()[-1]}: {far['lane_reads']} of {far['reads']} reads over {far['lanes_opened']} "
           "lanes")
    return far


@check("lanes", timeout_s=200, normal=ONCE)
def lanes(r):
    """Nearly all reads go over channels; none when they are switched off, and again when they are on."""
    if not r.managed:
        return
    _, servers = lenders(r, 1)
    c, name, end = reader(r, servers, "read")
    before = far_of(r, name)
    after = grow(r, name, by=1000)
    share = (after["lane_reads"] - before["lane_reads"]) / (after["reads"] - before["reads"])
    subprocess.run([r.session.canvas, "set", name, "lanes=off"], check=True, timeout=30)
    r.same(json.loads(ask(r, "status", name, "--json"))["limits"]["lanes"], False, "limits.lanes")
    agent_reads(r, name, "reads over lanes that nobody wants")
    subprocess.run([r.session.canvas, "set", name, "lanes=on"], check=True, timeout=30)
    grow(r, name)
    # A limit must hold for the program's own reads.
    subprocess.run([r.session.canvas, "set", name, "swap-in-limit=64M/s"], check=True, timeout=30)
    agent_reads(r, name, "reads that no limit holds")
    subprocess.run([r.session.canvas, "set", name, "swap-in-limit=none"], check=True, timeout=30)
    grow(r, name)
    ends_right(r, c, end)
    r.require(share > 0.85, f"{share:.0%} of the reads went over lanes: {before} {after}")
    # Off from the start.
    c, name, end = reader(r, servers, "off", flags=["-o", "lanes=off"])
    grow(r, name, "reads")
    r.same(ends_right(r, c, end)["lanes_opened"], 0, "lanes that nobody wanted")


@check("lanes-hostile", timeout_s=300, normal=ONCE)
def lanes_hostile(r):
    """Forks, threads with other descriptors, and programs that close or replace descriptors not their own; every
    byte is right."""
    if not r.managed:
        return
    _, servers = lenders(r, 1)
    # In the quick suite one program does all of it in turn.
    for what in ("fork", "close", "replace", "unshare") if r.slow else ("fork-close-replace-unshare",):
        c, name, end = reader(r, servers, what)
        grow(r, name)
        grow(r, name, "reads", 1000)
        if what.startswith("fork"):
            wait_until(r, "children have lanes", lambda: far_of(r, name)["lanes_opened"] > 2)
        ends_right(r, c, end)


@check("lanes-filter", timeout_s=120, normal=ONCE)
def lanes_filter(r):
    """A program's own filter that forbids connections: the agent reads, and the program gets no message."""
    if not r.managed:
        return
    _, servers = lenders(r, 1)
    c, name, end = reader(r, servers, "filter")
    # Before the filter is installed there may be some.
    before = grow(r, name, "reads", 500)["lane_reads"]
    grow(r, name, "reads", 500)
    after = far_of(r, name)["lane_reads"]
    ends_right(r, c, end)
    r.same(after, before, "reads over lanes")


@check("lanes-shards", normal=ONCE, timeout_s=300)
def lanes_shards(r):
    """Shards are read directly from their donor; when that dies the agent computes them, and every byte is right."""
    if not r.managed:
        return
    donors, servers = lenders(r, 4)
    c, name, end = reader(r, servers, "shards", flags=["--copies", "2+1"])
    before = far_of(r, name)
    after = grow(r, name)
    share = (after["lane_reads"] - before["lane_reads"]) / (after["reads"] - before["reads"])
    donors[0].signal(signal.SIGKILL)
    grow(r, name, "reads")
    grow(r, name)
    os.kill(agent_of(c.pid), signal.SIGKILL)
    grow(r, name, timeout_s=30)
    ends_right(r, c, end)
    r.note(f"{share:.0%} of the reads over lanes")


@check("lanes-killed", timeout_s=300, modes=("signal",))
def lanes_killed(r):
    """The agent is killed, a donor is stopped, and another one is killed: reads go on, and use channels again."""
    if not r.managed:
        return
    donors, servers = lenders(r, 3)
    c, name, end = reader(r, servers, "killed", flags=["--copies", "2"])
    grow(r, name)
    os.kill(agent_of(c.pid), signal.SIGKILL)
    grow(r, name, timeout_s=30)
    donors[0].signal(signal.SIGSTOP)
    time.sleep(1.5)
    grow(r, name, "reads")
    donors[0].signal(signal.SIGCONT)
    grow(r, name)
    donors[1].signal(signal.SIGKILL)
    grow(r, name)
    ends_right(r, c, end)


def agent_for(r, servers, *more):
    """Starts an agent that uses these donors; returns it and its socket."""
    socket = r.path("agent.sock")
    agent = r.start([r.session.canvas, "agent", "--socket", socket, "--to", ",".join(servers), "--to", f"disk:{r.dir}", *more],
                    tag="agent", canvas_on=False)
    wait_until(r, "the agent listens", lambda: os.path.exists(socket))
    return agent, socket


def answers(r, name):
    """Waits until the run answers."""
    told = lambda: subprocess.run([r.session.canvas, "status", name], capture_output=True).returncode < 2
    wait_until(r, "the run answers", told)


def taken_turns(r, *more):
    """Two tenants of one agent: one alone reads over channels, and so do both, each its share of what the link
    moves. Returns the processor time of each of the agent's threads (`serving_s`)."""
    _, servers = lenders(r, 1)
    agent, socket = agent_for(r, servers, "--pool", "64M", *more)
    flags = [f"--to=agent:{socket}", "--copies", "1"]
    c, name, end = reader(r, servers, "first", flags=flags)
    grow(r, name)
    other, others, ends = reader(r, servers, "second", flags=flags)
    for n in (name, others, name):
        grow(r, n)
    # A tenant whose reads must go through the agent does not keep the other from its channels.
    subprocess.run([r.session.canvas, "set", others, "swap-in-limit=64M/s"], check=True, timeout=30)
    time.sleep(0.5)
    still = far_of(r, others)["lane_reads"]
    grow(r, others, "reads")
    grow(r, name)
    r.same(far_of(r, others)["lane_reads"], still, "reads over lanes of who has a limit")
    worked = serving_s(agent)
    ends_right(r, other, ends)
    grow(r, name)
    ends_right(r, c, end)
    return worked


def serving_s(agent):
    """Processor seconds of each serving thread of an agent."""
    found = {}
    for task in os.listdir(f"/proc/{agent.pid}/task"):
        with open(f"/proc/{agent.pid}/task/{task}/stat") as f:
            before, behind = f.read().rsplit(")", 1)
        name = before.split("(", 1)[1]
        if name.startswith("serve"):
            fields = behind.split()
            found[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


@check("lanes-taken-turns", timeout_s=200, modes=("signal",))
def lanes_taken_turns(r):
    """Tenants of one agent: one alone reads over channels, and so do both, each its share of what the link moves."""
    if r.managed:
        r.same(list(taken_turns(r)), ["serve"], "threads that serve")


def no_root():
    return None if os.geteuid() == 0 else WantOfRoot("who cheats opens its far memory as root")


def sockets_of(root):
    """Largest number of sockets of any process in a tree."""
    def count(pid):
        try:
            links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        except OSError:
            return 0
        return sum(link.startswith("socket:") for link in links)
    return max(count(pid) for pid in procs.tree(root))


@check("lanes-cheat", timeout_s=200, modes=("signal",), needs=no_root, slow_only=True)
def lanes_cheat(r):
    """A cheating tenant that takes all it can of the links, over as many channels as there are, next to an honest
    one: both have their own bytes, and the honest one goes on."""
    if not r.managed:
        return
    _, servers = lenders(r, 2)
    agent, socket = agent_for(r, servers)
    villain = f"cheat-{os.getpid()}"
    # Checks each word that it reads, and all of them at the end.
    cheat = r.start([lab.path(r), "workload", "random-read", "--mib", 40, "--seconds", 20, "--cheat"],
                    tag="cheat", local=16 * MIB, pool=8 * MIB, extra=["--tenant", villain, "--far", "256M", f"--to=agent:{socket}",
                                                         "--copies", "1", "-o", "prefetch=none"])
    answers(r, villain)
    # Alone, the cheat gets what it wants. With another tenant, the one that is ahead gets no more channels.
    open_lanes = wait_until(r, "it has many more lanes than the library", lambda: (n := sockets_of(cheat.pid)) > 24 and n, 20,
                            state=lambda: sockets_of(cheat.pid))
    grow(r, villain, by=2000)
    c, name, end = reader(r, servers, "beside", flags=[f"--to=agent:{socket}"])
    grow(r, name, "reads", r.size(300, 1000))
    r.require(cheat.alive(), "the one that cheats ended before the other one had read")
    taken = far_of(r, villain)
    r.wait(cheat, expect=0, timeout_s=120)
    ends_right(r, c, end)
    r.require(agent.alive(), "the agent is there")
    r.note(f"{open_lanes} sockets; {taken['lane_reads']} of {taken['reads']} reads of who cheats over lanes")


@check("tenants-move", timeout_s=200, modes=("signal",), slow_only=True)
def tenants_move(r):
    """Three tenants on two threads of an agent; when the one that has a thread to itself ends, another one moves
    there in the middle of its work, and loses nothing."""
    if not r.managed:
        return
    _, servers = lenders(r, 1)
    agent, socket = agent_for(r, servers, "-o", "threads=2")
    names = [f"move{n}-{os.getpid()}" for n in range(3)]

    def start(name):
        return r.start([lab.path(r), "workload", "random-read", "--mib", 40, "--seconds", 120], tag=name,
                       local=16 * MIB, pool=8 * MIB, extra=["--tenant", name, "--far", "256M", f"--to=agent:{socket}",
                                                            "--copies", "1", "-o", "lanes=off", "-o", "prefetch=none"])

    def reads(name):
        answers(r, name)
        grow(r, name, "reads", 2000)

    runs = [start(name) for name in names]
    for name in names:
        reads(name)

    def both_work():
        before = serving_s(agent)
        time.sleep(0.3)
        after = serving_s(agent)
        return all(after[k] - before[k] >= 0.02 for k in after) and after

    wait_until(r, "both threads work", both_work)
    # Two of the three share a thread: without the third, one of them moves. Each of the three ends once, and two of
    # these times a tenant moves.
    for n in range(3):
        r.stop(runs[n], signal.SIGTERM, expect=143)
        wait_until(r, "both threads work for two tenants", both_work)
        for name in names[:n] + names[n + 1:]:
            grow(r, name, "reads", 2000)
        runs[n] = start(names[n])
        reads(names[n])
    for c in runs:
        r.stop(c, signal.SIGTERM, expect=143)
        r.same(canvas.find(r.load_stats(c), "verify_failures"), 0, "verify_failures")
    r.note(f"threads: {serving_s(agent)}")


@check("lanes-two-threads", timeout_s=200, modes=("signal",), slow_only=True)
def lanes_two_threads(r):
    """Two tenants with a thread of the agent each share the link as well."""
    if not r.managed:
        return
    worked = taken_turns(r, "-o", "threads=2")
    r.same(sorted(worked), ["serve", "serve-2"], "threads that serve")
    r.require(all(s > 0 for s in worked.values()), f"both have worked: {worked}")
