"""Memory of a family of processes, measured from outside while all of them are stopped."""

import contextlib
import json
import os
import resource
import signal
import statistics
import time

from lib import procs
from lib.harness import MIB, ONCE, Failure, Skip, check

from .operate import ask, python

LOCAL = 48 * MIB
# Allowed difference between canvas's accounting and the true memory.
DIFFERENCE = LOCAL // 10
# Four processes inherit 60 MiB, read it, and fill 20 MiB each, repeatedly; sums are compared.
FAMILY = """
import hashlib, multiprocessing, os
data = [os.urandom(1 << 20) for _ in range(60)]
want = [hashlib.md5(p).digest() for p in data]
def work(n):
    own = [os.urandom(1 << 20) for _ in range(20)]
    sums = [hashlib.md5(p).digest() for p in own]
    for _ in range(2):
        assert [hashlib.md5(p).digest() for p in data] == want
        assert [hashlib.md5(p).digest() for p in own] == sums
    return len(own)
with multiprocessing.Pool(4) as pool:
    print(sum(pool.map(work, range(6), 1)))
"""


# Eight processes inherit 48 MiB while there is room; then all read them at once and fill 6 MiB each.
CHILDREN = 8
AT_ONCE = f"""
import hashlib, os
data = [os.urandom(1 << 20) for _ in range(60)]
del data[48:]
want = [hashlib.md5(p).digest() for p in data[-4:]]
go, start = os.pipe()
for _ in range({CHILDREN}):
    if os.fork() == 0:
        os.close(start)
        os.read(go, 1)
        own = [os.urandom(1 << 20) for _ in range(6)]
        for p in data + own:
            hashlib.md5(p).digest()
        os._exit([hashlib.md5(p).digest() for p in data[-4:]] != want)
os.close(start)
print(*[os.waitstatus_to_exitcode(os.wait()[1]) for _ in range({CHILDREN})])
"""


# Three processes with half of --local each, which lock and unlock it on command.
LOCKERS = """
import ctypes, errno, hashlib, mmap, os, sys
libc, size = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
def process(go, done):
    m = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    m[:] = os.urandom(size)
    want, at = hashlib.md5(m).digest(), ctypes.addressof(ctypes.c_char.from_buffer(m))
    at, length = ctypes.c_void_p(at), ctypes.c_size_t(size)
    while (order := os.read(go, 1)) != b"e":
        call = libc.mlock if order == b"l" else libc.munlock
        said = errno.errorcode[ctypes.get_errno()] if call(at, length) else "0"
        os.write(done, said.encode().ljust(8))
    os._exit(hashlib.md5(m).digest() != want)
pipes = []
for _ in range(3):
    go, done = os.pipe(), os.pipe()
    if os.fork() == 0:
        process(go[0], done[1])
    pipes.append((go[1], done[0]))
def tells(i, order):
    os.write(pipes[i][0], order)
    return os.read(pipes[i][1], 8).decode().strip()
said = [tells(i, b"l") for i in range(3)] + [tells(0, b"u"), tells(2, b"l"), tells(1, b"l"), tells(0, b"l")]
for go, _ in pipes:
    os.write(go, b"e")
print(*said, *[os.waitstatus_to_exitcode(os.wait()[1]) for _ in pipes])
"""


def send(pids, number):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def all_stopped(root):
    """Stops all descendants of `root` for the block, including new forks."""
    stopped = set()
    while new := set(procs.tree(root, False)) - stopped:
        send(new, signal.SIGSTOP)
        stopped |= new
    try:
        yield stopped
    finally:
        send(stopped, signal.SIGCONT)


def snapshot(r, name, root):
    """Bytes of local memory of a run: true, by its accounting, and by the parts of that; None when a process
    started or ended."""
    with all_stopped(root) as stopped:
        there = procs.anon_bytes(stopped) - procs.pool_bytes(stopped)
        try:
            run = json.loads(ask(r, "status", name, "--json"))
        except Failure:
            # A process starts or ends.
            return None
        if len(run.get("processes", ())) != len(stopped) or set(procs.tree(root, False)) != stopped:
            return None
        used = run["used"]
        parts = sum(used[part] for part in ("resident_bytes", "cache_bytes", "native_bytes"))
        return there, used["local_bytes"], parts


@check("forks-books", timeout_s=300, normal=ONCE)
def forks_books(r):
    """The accounting of a family whose memory is a multiple of --local is true (beyond --local: G14)."""
    name = f"family-{os.getpid()}-{r.mode}"
    c = r.start([python(), "-c", FAMILY], local=LOCAL, pool="1G", extra=("--tenant", name))
    seen = []
    while r.managed and c.alive():
        time.sleep(0.01)
        found = c.alive() and snapshot(r, name, c.pid)
        if found:
            seen.append(found)
    r.wait(c)
    r.same(c.out().strip(), "120", "MiB of their own")
    if not r.managed:
        return None
    r.require(len(seen) > 5, f"{len(seen)} instants were seen")
    # Without peaks that last for a single sample only.
    lasting = max(min(a[0], b[0]) for a, b in zip(seen, seen[1:]))
    differences = [abs(books - there) for there, books, _ in seen]
    r.same([s for s in seen if abs(s[1] - s[2]) > MIB], [], "instants at which the parts of local memory do not add up")
    typical = statistics.quantiles(differences, n=4)[2]
    said = f"{lasting / MIB:.1f} MiB at most, books off by {typical / MIB:.1f} MiB or less in three of four instants"
    r.require(typical <= DIFFERENCE, said)
    # Memory charged to no process, as when a fork met a measurement, lets a family grow by as much.
    missing = max(there - books for there, books, _ in seen)
    r.require(missing <= LOCAL // 4, f"{missing / MIB:.1f} MiB are in no book")
    return said


@check("forks-cache", normal=ONCE, timeout_s=120)
def forks_cache(r):
    """Related processes that reclaim share one swap cache: a sixteenth of --local, and up to three times as
    much until its pages are written out; one per process would be nine sixteenths."""
    c = r.start([python(), "-c", AT_ONCE], local=LOCAL, pool="1G", extra=("--tenant", f"cache-{os.getpid()}-{r.mode}"))
    most = seen = 0
    while r.managed and c.alive():
        time.sleep(0.005)
        with all_stopped(c.pid) as stopped:
            most = max(most, procs.cache_bytes(stopped))
            seen += len(stopped) > CHILDREN
    r.wait(c)
    r.same(c.out().split(), ["0"] * CHILDREN, "exit codes")
    if not r.managed:
        return None
    said = f"{most / MIB:.1f} MiB of swap cache at most, at {seen} instants with all children"
    r.require(seen > 0 and MIB < most <= LOCAL // 4, said)
    return said


@check("locked-by-several", normal=ONCE, timeout_s=120)
def locked_by_several(r):
    """Several processes may lock three quarters of --local in total: more is refused, and no page is lost."""
    if not r.managed:
        return
    most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if os.geteuid() and most != resource.RLIM_INFINITY and most < LOCAL:
        raise Skip("RLIMIT_MEMLOCK is less than --local")
    unlimited = 'ulimit -l unlimited 2>/dev/null || ulimit -l "$(ulimit -H -l)"; exec "$@"'
    argv = ["sh", "-c", unlimited, "sh", python(), "-c", LOCKERS, str(LOCAL // 2)]
    c = r.call(argv, local=LOCAL, pool="1G", timeout_s=100)
    want = "0 ENOMEM ENOMEM 0 0 ENOMEM ENOMEM 0 0 0"
    r.same(c.out().strip(), want, "answers of mlock (three, after an munlock three more), and exit codes")
