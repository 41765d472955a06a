"""Memory that forks share (`canvas run --shared`): evicted for all processes at once, right for each, whichever is
killed."""

import json
import os
import signal
import subprocess
import sys
import time

from e2e.charged import donor
from e2e.hostile import C, crafted, seeds
from e2e.operate import ask, python, replaced_and_killed, wait_until
from e2e.servers import pg_bin, pg_missing
from lib import canvas, procs
from lib.harness import MIB, PATIENCE, Failure, check

SIGNAL = {"modes": ("signal",)}


def judge_shared(r, child, bound_bytes, threads, least_out=1000):
    """Checks the report's figures of shared pages: they were evicted, within the limit, and none was damaged."""
    stats = r.load_stats(child)
    shared, counters = stats["shared"], stats["counters"]
    r.require(shared["limit_bytes"] == bound_bytes, f"limit: {shared}")
    # At most one page in flight per thread.
    most = bound_bytes + (threads + 1) * 4096
    r.require(shared["resident_bytes"]["peak"] <= most, f"over the bound: {shared}")
    r.require(counters["shared_pages_out"] >= least_out, f"hardly anything was evicted: {counters}")
    r.require(counters["shared_pages_in"] > 0, "nothing came back")
    for what in ("verify_failures", "anomalies", "shared_mappings_native"):
        r.require(counters[what] == 0, f"{what}: {counters[what]}")
    r.note(f"out {counters['shared_pages_out']} (clean {counters['shared_pages_out_clean']}), "
           f"in {counters['shared_pages_in']}")
    return stats


def judge_beyond(r, child):
    """Checks the report's figures of shared pages beyond the pool: they went there and came back without failures."""
    stats = r.load_stats(child)
    counters = stats["counters"]
    for what in ("shared_pages_demoted", "shared_pages_in_beyond_pool"):
        r.require(counters[what] > 100, f"{what}: {counters}")
    r.note(f"sunk {counters['shared_pages_demoted']}, in from beyond {counters['shared_pages_in_beyond_pool']}, "
           f"{stats['shared']['beyond_bytes'] >> 10} KiB there in the end")
    return stats


def counting(r, workers, kill_every_us, bound=2, **o):
    """Runs the workload with each seed; returns the children, which were right."""
    extra, children = o.pop("extra", ()), []
    for seed in seeds(r, r.size(1, 4)):
        c = r.call([r.binary("shared"), seed, workers, 2000, r.size(3, 30), kill_every_us],
                   tag=f"shared-{seed}", local=64 * MIB, extra=("--shared", f"{bound}M", *extra), **o)
        r.same(c.out(), f"shared seed {seed}: every byte right\n", "answer")
        r.note(f"seed {seed}: {c.err().strip().splitlines()[-1]}")
        judge_shared(r, c, bound * MIB, workers + 1)
        children.append(c)
    return children


@check("shared", timeout_s=400, paged=False, **SIGNAL, **C)
def shared(r):
    """Four processes write and check 8 MiB under a limit of 2 MiB, by stores and by system calls."""
    counting(r, 4, 0)


@check("shared-kill", timeout_s=400, paged=False, **SIGNAL, **C)
def shared_kill(r):
    """Seven processes, of which a random one is killed every 5 ms."""
    counting(r, 7, 5000)


def beyond(r):
    """A pool from which shared pages are soon demoted, and their destination."""
    return {"bound": 1, "pool": MIB, "extra": ("--far", "512M", "--to", f"disk:{r.dir}")}


@check("shared-far", timeout_s=400, paged=False, **SIGNAL, **C)
def shared_far(r):
    """Four processes' shared pages, most of them on disk, beyond a pool of 1 MiB, without failures."""
    for c in counting(r, 4, 0, **beyond(r)):
        counters = judge_beyond(r, c)["counters"]
        r.same(counters["beyond_pool_failures"], 0, "beyond_pool_failures")


@check("shared-far-kill", timeout_s=400, paged=False, **SIGNAL, **C)
def shared_far_kill(r):
    """Shared pages on disk, with a random one of seven processes killed every 5 ms: while reading, writing, or
    completing another's write."""
    for c in counting(r, 7, 5000, **beyond(r)):
        judge_beyond(r, c)


@check("shared-far-agents", timeout_s=200, paged=False, **SIGNAL, **C)
def shared_far_agents(r):
    """Shared pages at the host's agent, which is replaced and killed while it reads and writes; processes are
    killed as well."""
    if not r.managed:
        return
    socket = r.path("agent.sock")

    def agent(*more):
        a = r.start([r.session.canvas, "agent", "--socket", socket, "--to", f"disk:{r.dir}", *more],
                    tag=f"agent{len(r.children)}", canvas_on=False)
        wait_until(r, "the agent listens", lambda: os.path.exists(socket))
        return a

    first = agent()
    c = r.start([r.binary("shared"), 5, 5, 2000, r.size(5, 8), 20_000], tag="shared", local=64 * MIB, pool=MIB,
                extra=("--shared", "1M", "--far", "512M", f"--to=agent:{socket}"))
    time.sleep(r.size(1, 2))
    third = replaced_and_killed(r, first, agent)
    r.wait(c, timeout_s=90)
    r.same(c.out(), "shared seed 5: every byte right\n", "answer")
    judge_shared(r, c, MIB, 6)
    judge_beyond(r, c)
    r.stop(third, expect=0)


# 24 MiB that its child shares, then none; the program waits for a file before and after.
FREER = """
import mmap, os, random, sys, time
PAGES = 6144
shared = mmap.mmap(-1, PAGES * 4096)
child = os.fork()
if child == 0:
    for i in range(PAGES):
        shared[i * 4096:(i + 1) * 4096] = random.Random(i).randbytes(4096)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
def wait(i):
    print(i, flush=True)
    while not os.path.exists(sys.argv[i]):
        time.sleep(0.02)
wait(1)
for i in range(PAGES):
    assert shared[i * 4096:(i + 1) * 4096] == random.Random(i).randbytes(4096), i
shared.close()
wait(2)
"""


@check("shared-far-freed", timeout_s=120, paged=False, **SIGNAL)
def shared_far_freed(r):
    """Pages written by a process that has ended are there, beyond the pool; slabs are freed when all is unmapped."""
    if not r.managed:
        return
    name, ends = f"freer{os.getpid()}", [r.path("first"), r.path("second")]
    c = r.start([sys.executable, "-c", FREER, *ends], tag="freer", local=64 * MIB, pool=4 * MIB,
                extra=("--shared", "4M", "--tenant", name, "--far", "512M", "--to", f"disk:{r.dir}"))

    def far():
        return json.loads(ask(r, "status", name, "--json"))["used"]["far_bytes"]

    wait_until(r, "all is written", lambda: "1\n" in c.out() or not c.alive())
    r.require(far() == 64 * MIB, f"{far()} bytes are used beyond the pool")
    open(ends[0], "w").close()
    wait_until(r, "all is read", lambda: "2\n" in c.out() or not c.alive())
    wait_until(r, "the slab is given back", lambda: far() == 0)
    open(ends[1], "w").close()
    r.wait(c, timeout_s=30)
    judge_shared(r, c, 4 * MIB, 4)
    r.same(judge_beyond(r, c)["shared"]["beyond_bytes"], 0, "beyond_bytes")


# So many pages that its child shares, read in order by both, or at random.
READER = """
import mmap, os, random, sys
PAGES = int(sys.argv[2])
shared = mmap.mmap(-1, PAGES * 4096)
page = lambda i: random.Random(i).randbytes(4096)
def read(i):
    assert shared[i * 4096:(i + 1) * 4096] == page(i), i
for i in range(PAGES):
    shared[i * 4096:(i + 1) * 4096] = page(i)
child = os.fork()
if sys.argv[1] == "order":
    for _ in range(2):
        for i in range(PAGES):
            read(i)
else:
    draw = random.Random(os.getpid())
    for _ in range(PAGES):
        read(draw.randrange(PAGES))
assert child == 0 or os.waitpid(child, 0)[1] == 0
"""


@check("shared-ahead", timeout_s=200, paged=False, **SIGNAL)
def shared_ahead(r):
    """A sequential reader has most of its pages prefetched, from the pool and from beyond it; others have none."""
    if not r.managed:
        return
    far, shared_mib = ("--far", "512M", "--to", f"disk:{r.dir}"), r.size(4, 8)
    for what, order, pool, extra in (("pool", "order", 64, ()), ("beyond", "order", 4, far),
                                     ("random", "random", 4, far)):
        c = r.call([sys.executable, "-c", READER, order, r.size(4096, 8192)], tag=what, local=64 * MIB, pool=pool * MIB,
                   extra=("--shared", f"{shared_mib}M", *extra))
        counters = judge_shared(r, c, shared_mib * MIB, 4)["counters"]
        come, ahead = counters["shared_pages_in"], counters["shared_pages_ahead"]
        hits, deep = counters["shared_pages_ahead_hits"], counters["shared_pages_in_beyond_pool"]
        r.note(f"{what}: in {come}, ahead {ahead}, hits {hits}, from beyond {deep}")
        if order == "order":
            r.require(ahead > come // 3 and hits > ahead // 2, f"{what}: {counters}")
            r.require(not extra or deep > come // 2, f"{what}: {counters}")
        else:
            r.require(ahead < come // 20, f"{what}: {counters}")


@check("shared-crafted", timeout_s=60, paged=False, **SIGNAL, **C)
def shared_crafted(r):
    """Writes of two processes to one page, one of which hides the other from a hash without a key."""
    crafted(r, "shared", "shared", "shared_pages_out_clean", local=64 * MIB, extra=("--shared", "4M"))


@check("shared-off", timeout_s=60, paged=False, **SIGNAL, **C)
def shared_off(r):
    """Without --shared such memory is left to the kernel."""
    c = r.call([r.binary("shared"), 1, 2, 500, 1, 0], local=64 * MIB)
    r.same(c.out(), "shared seed 1: every byte right\n", "answer")
    stats = r.load_stats(c)
    r.require(stats["shared"] is None, f"{stats['shared']}")
    for name, n in stats["counters"].items():
        r.require(n == 0 or not name.startswith("shared_"), f"{name}: {n}")


# 16 MiB that its child shares, all pages different; both check all of them at the end.
HOLDER = """
import hashlib, mmap, os, sys, time
PAGES = 4096
shared = mmap.mmap(-1, PAGES * 4096)
page = lambda i: hashlib.sha512(b"%d" % i).digest() * 64
for i in range(PAGES):
    shared[i * 4096:(i + 1) * 4096] = page(i)
child = os.fork()
if child:
    print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
for i in range(PAGES):
    assert shared[i * 4096:(i + 1) * 4096] == page(i), i
if child:
    assert os.waitpid(child, 0)[1] == 0
    print("right", flush=True)
"""


@check("shared-set", timeout_s=60, **SIGNAL)
def shared_set(r):
    """`canvas set NAME shared=`: lowered, pages are evicted from all processes; `status` shows it."""
    if not r.managed:
        return
    name, end = f"shared{os.getpid()}", r.path("end")
    c = r.start([sys.executable, "-c", HOLDER, end], tag="holder", local=64 * MIB,
                extra=("--shared", "24M", "--tenant", name))
    wait_until(r, "the program is ready", lambda: "ready" in c.out() or not c.alive())

    def told():
        status = json.loads(ask(r, "status", name, "--json"))
        return (status["limits"]["shared_bytes"], status["used"]["shared_bytes"],
                status["used"]["shared_store_bytes"])

    r.same(told(), (24 * MIB, 16 * MIB, 0), "status")
    ask(r, "set", name, "shared=2M")
    wait_until(r, "pages leave", lambda: told()[1] <= 2 * MIB)
    limit, _, store = told()
    r.require(limit == 2 * MIB and store > 0, f"status: {told()}")
    r.require("  shared " in ask(r, "status", name), "status has no line")
    open(end, "w").close()
    r.wait(c)
    r.same(c.out(), "ready\nright\n", "what the program says")
    stats = r.load_stats(c)
    r.same(stats["shared"]["limit_bytes"], 2 * MIB, "the report's limit")
    r.require(stats["counters"]["shared_pages_in"] >= 3000, f"{stats['counters']}")
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
    r.note(f"in {stats['counters']['shared_pages_in']}, store {store >> 10} KiB")


# The holder with incompressible pages.
NOISE = "import random\n" + HOLDER.replace('hashlib.sha512(b"%d" % i).digest() * 64', "random.Random(i).randbytes(4096)")

# The holder with 16 MiB of private memory as well.
BOTH = """
import random
own = [random.Random(-i).randbytes(4096) for i in range(4096)]
""" + NOISE + """
for i, p in enumerate(own):
    assert p == random.Random(-i).randbytes(4096), i
print("all right", flush=True)
"""


@check("shared-descriptors", timeout_s=120, **SIGNAL)
def shared_descriptors(r):
    """The reclaim thread has all descriptors of shared memory, also in programs that start on a busy host."""
    if not r.managed:
        return
    end = r.path("end")
    idle = f"import os, time\nprint('ready', flush=True)\nwhile not os.path.exists({end!r}): time.sleep(0.05)"
    started = [r.start([sys.executable, "-c", idle], tag=f"idle{i}", local=16 * MIB, extra=("--shared", "4M"))
               for i in range(r.size(6, 16))]
    for c in started:
        wait_until(r, "the program is ready", lambda: "ready" in c.out() or not c.alive())
        program = procs.tree(c.pid, include_root=False)[0]
        numbers = lambda task: {int(fd) for fd in os.listdir(f"/proc/{program}/task/{task}/fd")}
        tasks = wait_until(r, "there is a reclaim thread", lambda: len(t := os.listdir(f"/proc/{program}/task")) > 1 and t)
        # Without those of the program, which the thread closes when it starts.
        ours = {fd for fd in numbers(program) if fd > 100}
        r.require(len(ours) > 5, f"descriptors of ours: {ours}")
        for task in tasks:
            wait_until(r, "it has left the program's", lambda: 1 not in numbers(task) or int(task) == program)
            r.same(sorted(ours - numbers(task)), [], f"what thread {task} of {program} has not got")
    open(end, "w").close()
    for c in started:
        r.wait(c, timeout_s=60)


@check("shared-agent", timeout_s=150, **SIGNAL)
def shared_agent(r):
    """With the host's agent: both kinds of memory are evicted into one pool, also when the agent makes it smaller."""
    if not r.managed:
        return
    socket, name, end = r.path("agent.sock"), f"both{os.getpid()}", r.path("end")
    r.start([r.session.canvas, "agent", "--socket", socket, "--to", f"disk:{r.dir}", "--pool", "48M"], tag="agent",
            canvas_on=False)
    wait_until(r, "the agent listens", lambda: os.path.exists(socket))
    flags = ("--far", "512M", f"--to=agent:{socket}")
    c = r.start([sys.executable, "-c", BOTH, end], tag="both", local=16 * MIB, pool=64 * MIB,
                extra=(*flags, "--shared", "4M", "--tenant", name))
    wait_until(r, "the program is ready", lambda: "ready" in c.out() or not c.alive(), timeout_s=90)

    def status():
        return json.loads(ask(r, "status", name, "--json"))

    def pool():
        used = status()["used"]
        return used["pool_bytes"] + used["shared_store_bytes"]

    r.require(status()["used"]["shared_store_bytes"] > 0, f"no shared page is in the pool: {status()}")
    # A run that joins shares nothing with the first: its shared memory is native, and a larger limit is refused
    # with a message.
    joins = [r.session.canvas, "run", "--local", "16M", *flags, "--tenant", name]
    small = "import mmap, os; m = mmap.mmap(-1, 4096); os.fork() and os.wait() or m.write(b'x'); print(m[0])"
    done = subprocess.run([*joins, "--", sys.executable, "-c", small], capture_output=True, text=True,
                          timeout=60 * PATIENCE)
    r.require((done.returncode, done.stdout) == (0, "120\n120\n"), f"{done.returncode}: {done.stdout}{done.stderr}")
    r.same(done.stderr, "", "what the run that joins is told")
    done = subprocess.run([*joins, "--shared", "4M", "--", "true"], capture_output=True, text=True, timeout=60 * PATIENCE)
    r.require(done.returncode == 125 and "leave --shared out" in done.stderr, f"{done.returncode}: {done.stderr}")
    # The agent gives the part of the pool that this tenant does not use to another.
    whole = status()["limits"]["pool_grant_bytes"]
    other = r.start([sys.executable, "-c", NOISE.replace("PAGES * 4096)", "PAGES * 4096, flags=mmap.MAP_PRIVATE)"), end], tag="other", local=8 * MIB,
                    pool=64 * MIB, extra=flags)
    wait_until(r, "the other is ready", lambda: "ready" in other.out() or not other.alive(), timeout_s=90)
    grant = wait_until(r, "the pool is divided", lambda: (g := status()["limits"]["pool_grant_bytes"]) < whole and g)
    wait_until(r, "what is above it leaves", lambda: pool() <= status()["limits"]["pool_grant_bytes"],
               state=lambda: (status()["used"], status()["limits"], status()["far"]))
    open(end, "w").close()
    r.wait(c, timeout_s=90)
    r.same(c.out(), "ready\nall right\nright\nall right\n", "what the program says")
    stats = r.load_stats(c)
    r.require(stats["counters"]["pages_demoted"] > 0, "nothing went to the agent")
    r.require(stats["counters"]["shared_pages_in"] >= 3000, f"{stats['counters']}")
    for what in ("verify_failures", "anomalies", "beyond_pool_failures"):
        r.same(canvas.find(stats, what), 0, what)
    r.note(f"pool {whole >> 20} MiB, then {grant >> 20} MiB")


# 48 MiB that its child shares; both read all of it repeatedly while one file exists, until another one does.
WORKER = """
import hashlib, mmap, os, sys, time
PAGES = 12288
busy, end = sys.argv[1:]
shared = mmap.mmap(-1, PAGES * 4096)
page = lambda i: hashlib.sha512(b"%d" % i).digest() * 64
for i in range(PAGES):
    shared[i * 4096:(i + 1) * 4096] = page(i)
child = os.fork()
if child:
    print("ready", flush=True)
def check_all():
    for i in range(PAGES):
        assert shared[i * 4096:(i + 1) * 4096] == page(i), i
while not os.path.exists(end):
    check_all() if os.path.exists(busy) else time.sleep(0.05)
check_all()
if child:
    assert os.waitpid(child, 0)[1] == 0
    print("right", flush=True)
"""


class Section:
    """A host's agent with a limit on all shared memory, and programs that share some."""

    def __init__(self, r):
        self.r, self.socket, self.file, self.runs = r, r.path("agent.sock"), r.path("canvas.toml"), {}
        self.bound, self.agent_run = 0, None

    def agent(self, mib, *more):
        """Starts the agent, or the next one, with this number of MiB for all."""
        with open(self.file, "w") as f:
            f.write(f'[shared]\nlocal = "{mib}M"\n')
        before, r = self.agent_run, self.r
        self.agent_run = r.start([r.session.canvas, "agent", "--socket", self.socket, "--to", f"disk:{r.dir}", "--config",
                                  self.file, *more], tag=f"agent{len(r.children)}", canvas_on=False)
        if before and before.alive():
            r.wait(before, expect=0, timeout_s=20)
        wait_until(r, "the agent listens", lambda: "listening at" in self.agent_run.err())
        self.bound = mib * MIB

    def start(self, what):
        """Starts a program with 48 MiB that its processes share, all of which may be in memory."""
        r, name = self.r, f"{what}{os.getpid()}"
        files = [r.path(f"{what}.busy"), r.path(f"{what}.end")]
        c = r.start([python(), "-c", WORKER, *files], tag=what, local=64 * MIB, pool=64 * MIB,
                    extra=("--shared", "256M", "--tenant", name, "--far", "512M", f"--to=agent:{self.socket}"))
        wait_until(r, f"{what} is ready", lambda: "ready" in c.out() or not c.alive(), timeout_s=90)
        self.runs[name] = (c, files)
        return name

    def status(self, name):
        return json.loads(ask(self.r, "status", name, "--json"))

    def looks(self, first, second, judged=True):
        """Grants and uses of both, whose sums stay within the limit (`judged`)."""
        def look(name):
            s = self.status(name)
            return s["limits"]["shared_grant_bytes"], s["used"]["shared_bytes"]

        # Between two samples of one, the other may grow by what the first one loses. A thread may populate one page
        # more, and readahead the pages that were free at that moment.
        before, other, after = look(first), look(second), look(first)
        if not judged:
            return after, other
        for what, i in (("granted", 0), ("in memory", 1)):
            total = min(before[i], after[i]) + other[i]
            self.r.require(total <= self.bound + MIB, f"{total} bytes are {what} of {self.bound}: {before} {other}")
        return after, other

    def work(self, name, is_busy):
        busy = self.runs[name][1][0]
        open(busy, "w").close() if is_busy else os.unlink(busy)

    def end(self, name):
        """Its report, when it has found every byte right."""
        c, (_, end) = self.runs[name]
        open(end, "w").close()
        self.r.wait(c, timeout_s=90)
        self.r.same(c.out(), "ready\nright\n", "what the program says")
        stats = self.r.load_stats(c)
        for what in ("verify_failures", "anomalies", "beyond_pool_failures"):
            self.r.same(canvas.find(stats, what), 0, what)
        return stats


@check("shared-section", timeout_s=300, paged=False, **SIGNAL)
def shared_section(r):
    """One limit for two programs' shared memory: it follows their alternating loads, and a new configuration of the
    agent."""
    if not r.managed:
        return
    s = Section(r)
    s.agent(64)
    names = s.start("one"), s.start("other")
    notes = []
    for turn in range(r.size(2, 4)):
        busy, idle = names[turn % 2], names[1 - turn % 2]
        s.work(busy, True)
        began = time.monotonic()

        def moved():
            (most, used), (least, left) = s.looks(busy, idle)
            return most >= 44 * MIB and used >= 40 * MIB and least <= 16 * MIB and left <= 16 * MIB

        wait_until(r, f"memory goes to {busy}", moved, timeout_s=60, state=lambda: s.looks(busy, idle))
        notes.append(f"{time.monotonic() - began:.1f}")
        r.require(s.looks(busy, idle)[1][0] >= 8 * MIB, "the idle one is below its floor")
        s.work(busy, False)
    # Halves the limit for all while they run.
    before = s.looks(*names)
    s.agent(32, "--replace")
    wait_until(r, "grants are those of the new file", lambda: sum(s.status(n)["limits"]["shared_grant_bytes"]
                                                                   for n in names) <= 32 * MIB)
    # Pages above the limit are evicted within a moment.
    wait_until(r, "both keep to it", lambda: sum(used for _, used in s.looks(*names, judged=False)) <= 33 * MIB)
    for name in names:
        s.work(name, True)

    def halved():
        (a, used), (b, others) = s.looks(*names)
        return abs(a - b) <= 4 * MIB and a + b >= 28 * MIB and used > 10 * MIB and others > 10 * MIB

    wait_until(r, "both have half of the new bound", halved, timeout_s=60, state=lambda: s.looks(*names))
    r.require(" granted of 256M" in ask(r, "status", names[0]), "status does not say what is granted")
    for name in names:
        stats = s.end(name)
        shared, counters = stats["shared"], stats["counters"]
        r.same(shared["limit_bytes"], 256 * MIB, "the report's limit")
        r.require(shared["grant_bytes"] <= 32 * MIB, f"the report's grant: {shared}")
        r.require(shared["resident_bytes"]["peak"] <= 65 * MIB, f"over the bound: {shared}")
        r.require(counters["shared_pages_in"] > r.size(5000, 10_000), f"hardly anything came back: {counters}")
    r.note(f"memory was the other one's after {', '.join(notes)} s; before the new file {before}")


@check("shared-section-kill", timeout_s=150, slow_only=True, paged=False, **SIGNAL, **C)
def shared_section_kill(r):
    """Processes that share memory are killed while their part of the agent's limit grows and shrinks; so is the
    agent."""
    if not r.managed:
        return
    s = Section(r)
    s.agent(32)
    beside, killed = s.start("beside"), f"killed{os.getpid()}"
    c = r.start([r.binary("shared"), 6, 5, 6000, 24, 5000], tag="shared", local=64 * MIB, pool=64 * MIB,
                extra=("--shared", "256M", "--tenant", killed, "--far", "512M", f"--to=agent:{s.socket}"))
    wait_until(r, "it is granted its part", lambda: "killed" in ask(r, "status"))
    parts, began = [], time.monotonic()
    for turn in range(6):
        s.work(beside, turn % 2 == 0)
        if turn == 3:
            s.agent_run.signal(signal.SIGKILL)
            r.wait(s.agent_run, expect=-9, timeout_s=20)
            s.agent(32)
        while c.alive() and time.monotonic() < began + 3.5 * (turn + 1):
            parts.append(s.looks(beside, killed)[1][0])
            time.sleep(0.1)
    r.wait(c, timeout_s=90)
    r.same(c.out(), "shared seed 6: every byte right\n", "answer")
    low, high = min(parts), max(parts)
    r.require(low >= 4 * MIB and high >= low + 4 * MIB, f"its part went from {low} to {high}")
    stats = judge_shared(r, c, 256 * MIB, 6)
    r.require(stats["shared"]["resident_bytes"]["peak"] <= 33 * MIB, f"over the bound: {stats['shared']}")
    s.end(beside)
    r.note(f"{low >> 20} to {high >> 20} MiB were granted")


@check("shared-file-limit", timeout_s=60, paged=False, **SIGNAL, **C)
def shared_file_limit(r):
    """A limit on the size of files, outside or inside, does not end the program: its shared memory stays native."""
    limited = ["sh", "-c", 'ulimit -f 200000; exec "$0" "$@"']
    workload = [r.binary("shared"), "1", "2", "500", "1", "0"]
    c = r.call([*limited, *workload], tag="inside", local=64 * MIB, extra=("--shared", "2M"))
    r.same(c.out(), "shared seed 1: every byte right\n", "answer")
    r.require("shared memory cannot be managed" in c.err(), f"no line\n{c.tail()}")
    out = subprocess.run([*limited, r.session.canvas, "run", "--local", "64M", "--shared", "2M", "--", *workload],
                         capture_output=True, text=True, timeout=60 * PATIENCE)
    r.same((out.returncode, out.stdout), (0, "shared seed 1: every byte right\n"), "answer")
    r.require("shared memory stays native: the size of files is limited" in out.stderr, f"no line: {out.stderr}")
    limited[2] = limited[2].replace("200000", "100")
    out = subprocess.run([*limited, r.session.canvas, "run", "--local", "64M", "--", "true"],
                         capture_output=True, text=True, timeout=60 * PATIENCE)
    r.require(out.returncode == 125 and out.stderr.endswith("raise it (ulimit -f)\n"),
              f"{out.returncode}: {out.stderr}")


@check("shared-hammer", timeout_s=180, paged=False, **SIGNAL, **C)
def shared_hammer(r):
    """Everything at once in private memory, by four threads, forks and execs, with shared memory as the oracle."""
    c = r.call([r.binary("hammer"), 3, 4, r.size(1000, 20_000), 96], local=48 * MIB,
               extra=("--shared", "1M"))
    r.require(c.out().startswith("hammer seed 3: "), f"no closing line\n{c.tail()}")
    judge_shared(r, c, MIB, 40)


@check("shared-full", timeout_s=120, paged=False, **SIGNAL, **C)
def shared_full(r):
    """With a full pool a worker ends by SIGBUS, or a call fails, with a line; no byte is wrong until then."""
    c = r.call([r.binary("shared"), 1, 2, 2000, 60, 0], expect=1, local=64 * MIB, pool="1M",
               extra=("--shared", "1M"))
    r.require("shared and far memory are both full" in c.err(), f"no line\n{c.tail()}")
    r.require("instead of" not in c.err(), f"wrong bytes\n{c.tail()}")
    counters = r.load_stats(c)["counters"]
    for what in ("verify_failures", "anomalies"):
        r.require(counters[what] == 0, f"{what}: {counters[what]}")


def postgres(r, bound_mib, crashes=1, **o):
    """PostgreSQL, whose shared buffers are far more; its checkpointer is killed meanwhile. All balances must be right."""
    extra = o.pop("extra", ())
    bin_dir, data = pg_bin(), r.path("data")
    who, env = r._user_prefix(), r._environment({})
    server = None

    def tool(name, *args, text=None):
        p = subprocess.run([*who, f"{bin_dir}/{name}", *args], cwd=r.dir, env=env, input=text,
                           capture_output=True, text=True, timeout=200)
        if p.returncode:
            tail = server.tail(30) if server else ""
            raise Failure(f"{name}: {p.stdout[-500:]}{p.stderr[-1500:]}\n{tail}")
        return p.stdout

    tool("initdb", "-D", data, "-U", "canvas", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
    server = r.start(
        [f"{bin_dir}/postgres", "-D", data, "-k", r.dir, "-c", "listen_addresses=",
         "-c", f"shared_buffers={r.size(64, 128)}MB", "-c", "fsync=off", "-c", "autovacuum=off",
         "-c", "max_parallel_workers_per_gather=0"],
        tag="postgres", local=128 * MIB, extra=("--shared", f"{bound_mib}M", *extra), **o)
    at = ["-h", r.dir, "-U", "canvas"]

    def wait_for_server():
        end = time.monotonic() + 90
        while subprocess.run([f"{bin_dir}/pg_isready", *at, "-q"]).returncode:
            if not server.alive() or time.monotonic() > end:
                raise Failure(f"postmaster does not answer\n{server.tail(30)}")
            time.sleep(0.1)

    wait_for_server()
    tool("psql", *at, "-q", "-d", "postgres", "-c", "create database bench")
    tool("pgbench", *at, "-i", "-q", "-s", str(r.size(3, 20)), "bench")
    out = tool("pgbench", *at, "-c", "4", "-j", "2", "-t", str(r.size(100, 5000)), "-n",
               "--random-seed=42", "bench")
    if "number of failed transactions: 0" not in out and "failed" in out:
        raise Failure(out)
    sums = """
      select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history),
             (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history),
             (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history);
      select count(*), sum(aid), count(distinct aid) from pgbench_accounts;
    """
    n = r.size(3, 20) * 100_000
    want = ["t|t|t", f"{n}|{n * (n + 1) // 2}|{n}"]
    got = tool("psql", *at, "-q", "-A", "-t", "-d", "bench", text=sums).split()
    r.same(got, want, "balances and rows")
    # The postmaster restarts all processes with new shared memory, and replays its log into it.
    for what in KILLED[:crashes]:
        backend = subprocess.Popen([*who, f"{bin_dir}/psql", *at, "-q", "-d", "bench", "-c",
                                    "select count(*), pg_sleep(60) from pgbench_accounts"],
                                   cwd=r.dir, env=env, stderr=subprocess.DEVNULL)
        victim = wait_until(r, what, lambda: tool("psql", *at, "-q", "-A", "-t", "-d", "bench", "-c", what).strip())
        os.kill(int(victim), signal.SIGKILL)
        backend.wait(timeout=60)
        time.sleep(1)
        wait_for_server()
        got = tool("psql", *at, "-q", "-A", "-t", "-d", "bench", text=sums).split()
        r.same(got, want, "balances and rows after a crash")
    r.stop(server, signal.SIGINT, expect=0, timeout_s=90)
    judge_shared(r, server, bound_mib * MIB, 40)
    return server


# Queries that find the process to kill.
KILLED = ["select pid from pg_stat_activity where backend_type = 'checkpointer'",
          "select pid from pg_stat_activity where query like '%pg_sleep(60)%' and pid <> pg_backend_pid()"]


@check("shared-postgres", as_user=True, timeout_s=300, needs=pg_missing, paged=False, **SIGNAL)
def shared_postgres(r):
    """PostgreSQL's shared buffers, four times the limit; its checkpointer is killed in the middle."""
    postgres(r, r.size(16, 32))


@check("shared-postgres-far", as_user=True, timeout_s=300, needs=pg_missing, paged=False, slow_only=True, **SIGNAL)
def shared_postgres_far(r):
    """Shared buffers of eight times the limit, most of them on disk; a backend is killed as well."""
    judge_beyond(r, postgres(r, 16, crashes=2, pool=4 * MIB, extra=("--far", "1G", "--to", f"disk:{r.dir}")))


@check("shared-postgres-donor", slow_only=True, as_user=True, timeout_s=400, needs=pg_missing, paged=False, **SIGNAL)
def shared_postgres_donor(r):
    """Shared buffers at a donor, through the host's agent, together with another tenant."""
    socket, end = r.path("agent.sock"), r.path("end")
    r.start([r.session.canvas, "agent", "--socket", socket, "--to", f"disk:{r.dir}", "--to", donor(r)], tag="agent",
            canvas_on=False)
    wait_until(r, "the agent listens", lambda: os.path.exists(socket))
    flags = ("--far", "512M", f"--to=agent:{socket}", "--copies", "1")
    beside = r.start([python(), "-c", NOISE.replace("PAGES * 4096)", "PAGES * 4096, flags=mmap.MAP_PRIVATE)"), end],
                     tag="neighbour", local=8 * MIB, pool=4 * MIB, extra=flags)
    judge_beyond(r, postgres(r, 16, crashes=2, pool=4 * MIB, extra=flags))
    open(end, "w").close()
    r.wait(beside, timeout_s=90)
    r.same(beside.out(), "ready\nright\n", "what the neighbour says")
