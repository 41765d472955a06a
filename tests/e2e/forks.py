"""Memory of a family of processes, counted from outside while all of them stand still."""

import json
import os
import signal
import statistics
import time

from lib import procs
from lib.harness import MIB, Failure, check

from .operate import ask, python

LOCAL = 48 * MIB
# How much the books may differ from what is there.
DIFFERENCE = LOCAL // 10
# Four processes inherit 60 MiB, read it, and make 20 MiB of their own each, again and again; sums are compared.
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


def all_stopped(root):
    """Stops what `root` has started, also what is forked meanwhile."""
    stopped = set()
    while new := set(procs.tree(root, False)) - stopped:
        for pid in new:
            try:
                os.kill(pid, signal.SIGSTOP)
            except ProcessLookupError:
                pass
        stopped |= new
    return stopped


def snapshot(r, name, root):
    """Bytes of local memory that a run really has, has by its books, and by their parts; None when a process came or
    went."""
    stopped = all_stopped(root)
    try:
        there = procs.anon_bytes(stopped) - procs.pool_bytes(stopped)
        try:
            run = json.loads(ask(r, "status", name, "--json"))
        except Failure:
            # It begins, or is over.
            return None
        if len(run.get("processes", ())) != len(stopped) or set(procs.tree(root, False)) != stopped:
            return None
        used = run["used"]
        parts = sum(used[part] for part in ("resident_bytes", "cache_bytes", "native_bytes"))
        return there, used["local_bytes"], parts
    finally:
        for pid in stopped:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass


@check("forks-books", timeout_s=300)
def forks_books(r):
    """The books of a family whose memory is a multiple of --local say what is there (how far it passes --local: G14)."""
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
    # Without what lasts no longer than from one instant to the next.
    lasting = max(min(a[0], b[0]) for a, b in zip(seen, seen[1:]))
    differences = [abs(books - there) for there, books, _ in seen]
    r.same([s for s in seen if abs(s[1] - s[2]) > MIB], [], "instants at which the parts of local memory do not add up")
    typical = statistics.quantiles(differences, n=4)[2]
    said = f"{lasting / MIB:.1f} MiB at most, books off by {typical / MIB:.1f} MiB or less in three of four instants"
    r.require(typical <= DIFFERENCE, said)
    return said
