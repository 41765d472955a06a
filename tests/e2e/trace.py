"""`canvas run -o trace` and `lab replay`: a program with known touches, and the table."""

import os
import re
import struct
import sys

from lib import canvas, lab
from lib.harness import MIB, ONCE, Failure, Skip, check

HEADER_BYTES, RECORD = 64, struct.Struct("<IIHBBHH")
FIRST_TOUCH, DEMAND, SECOND_CHANCE, SAMPLED_TOUCH, DISCARD = 1, 2, 3, 4, 7
TOUCHES = {FIRST_TOUCH, DEMAND, SECOND_CHANCE, SAMPLED_TOUCH, 6}

# Touches `hot` MiB repeatedly and the rest only once, then frees `cold` MiB; a child forked in between touches the
# same number of pages. Three seconds are many rounds of the sampler.
PROGRAM = """
import mmap, os, sys, time
cold, hot = (int(a) << 20 for a in sys.argv[1:3])
a, b = mmap.mmap(-1, cold, mmap.MAP_PRIVATE), mmap.mmap(-1, hot, mmap.MAP_PRIVATE)
def sweep(m, n, byte):
    for at in range(0, n, 4096):
        m[at] = byte
sweep(a, cold, 1)
sweep(b, hot, 1)
pid = os.fork()
end = time.monotonic() + 3
while time.monotonic() < end:
    sweep(b, hot, 2 if pid else 3)
if pid == 0:
    sys.stdout.flush()
    sys.exit(0 if b[0] == 3 and a[0] == 1 else 1)
code = os.waitpid(pid, 0)[1]
a.close()
print("right" if code == 0 and b[hot - 4096] == 2 else "wrong")
"""


def records(path):
    """(header's rate, records as tuples: us, page, thread, kind, flags, process, detail)."""
    with open(path, "rb") as f:
        data = f.read()
    if data[:7] != b"CANVTRC":
        raise Failure(f"not a trace: {data[:16]!r}")
    rate = struct.unpack_from("<I", data, 8)[0] / 2**32
    if (len(data) - HEADER_BYTES) % RECORD.size:
        raise Failure(f"{len(data)} bytes: the last record is cut short")
    return rate, list(RECORD.iter_unpack(data[HEADER_BYTES:]))


def rows(text):
    """percent -> (LRU, FIFO, S3-FIFO, SIEVE, OPT, canvas) of the replay's table."""
    found = {}
    for line in text.splitlines():
        m = re.match(r"\s*(\d+)% \|(.*)", line)
        if m:
            found[int(m[1])] = [float(x) for x in re.findall(r"\d+\.\d+", m[2])][:6]
    return found


def record(r, local, extra=()):
    """Runs the program with a trace; returns its records, the replay's table, the stats."""
    script, path = r.write("touch.py", PROGRAM), r.path("touch.trace")
    exe = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    c = r.call([exe, script, 96, 24], tag="touch", local=local, extra=["-o", f"trace={path}", *extra])
    r.same(c.out(), "right\n", "output")
    stats = r.load_stats(c)
    r.same(canvas.find(stats, "trace_records_dropped"), 0, "trace_records_dropped")
    p = lab.call(r, "replay", path, timeout_s=180)
    r.same(p.returncode, 0, f"exit code of lab replay ({p.stderr.strip()[:300]})")
    rate, found = records(path)
    r.note(f"{len(found)} records")
    return rate, found, rows(p.stdout), stats


def judge(r, rate, found, table):
    by_kind = {}
    for rec in found:
        by_kind.setdefault(rec[3], []).append(rec)
    pages = lambda kind: {(x[5], x[1]) for x in by_kind.get(kind, ())}
    # The parent's 120 MiB, sampled, and the interpreter's own pages; within chance.
    want = 120 * MIB / 4096 * rate
    got = len(pages(FIRST_TOUCH))
    r.require(0.8 * want <= got <= 1.6 * want, f"{got} pages touched first, expected about {want:.0f}")
    again = {}
    for kind in TOUCHES - {FIRST_TOUCH}:
        for x in by_kind.get(kind, ()):
            again.setdefault(x[5], {}).setdefault(x[1], []).append(x[0])
    hot = 24 * MIB / 4096 * rate
    busy = {p: sum(len(t) >= 3 for t in touched.values()) for p, touched in again.items()}
    r.require(len(busy) >= 2, f"touches of {len(busy)} processes, expected parent and child")
    for process, n in sorted(busy.items()):
        r.require(0.6 * hot <= n <= 2 * hot, f"process {process}: {n} pages touched often, expected about {hot:.0f}")
    gone = len(pages(DISCARD))
    r.require(gone >= 0.7 * 96 * MIB / 4096 * rate, f"only {gone} pages discarded")
    for percent, (lru, fifo, s3, sieve, opt, ours) in table.items():
        r.require(opt <= min(lru, fifo, s3, sieve, ours), f"at {percent} %: OPT {opt} is not the least")
        r.require(max(lru, fifo, s3, sieve, ours) <= 100, f"at {percent} %: more than 100 % missed")
    # The hot pages of both fit in half of the footprint, so there are hardly any misses.
    r.same(sorted(table), list(range(10, 100, 10)), "percentages")
    r.require(table[90][5] <= 15 and table[90][0] <= 15, f"at 90 % local: {table[90]}")
    r.require(table[10][4] > table[90][4], f"OPT misses no more at 10 % than at 90 %: {table[10]} {table[90]}")


@check("trace", as_user=True, timeout_s=60, normal=ONCE)
def trace(r):
    """Without a limit: the whole working set, nothing evicted."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    rate, found, table, stats = record(r, None)
    judge(r, rate, found, table)
    r.same(canvas.find(stats, "pages_out"), 0, "pages_out")
    kinds = {x[3] for x in found}
    r.require(SAMPLED_TOUCH in kinds, f"no sampled touch among the kinds {sorted(kinds)}")


@check("trace-limit", as_user=True, timeout_s=60, normal=ONCE)
def trace_limit(r):
    """Under a limit: reclaim and the sampler share the swap cache, and the data is right."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    _, found, table, stats = record(r, 64 * MIB)
    kinds = {x[3] for x in found}
    r.require({FIRST_TOUCH, DEMAND, 8} <= kinds, f"kinds {sorted(kinds)}")
    r.require(canvas.find(stats, "pages_out") > 0, "pages_out = 0")
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
    r.same(canvas.find(stats, "anomalies"), 0, "anomalies")
    r.require(table, "no table")
