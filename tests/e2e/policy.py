"""`canvas run -o codec`, `-o reservations`, `--prefetch`: the same data, and the report's figures."""

import json
import os
import subprocess
import sys
import time

from e2e import hostile
from e2e.languages import python_missing, science_python
from e2e.workloads import answer_of
from lib import canvas, lab
from lib.harness import MIB, ONCE, Skip, check

find = canvas.find


def paged(r, name, *flags, mib=48, args=(), **limits):
    """Runs a built-in program, which checks its own data, with a quarter of it local; returns its answer and the
    report."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    tag = "-".join([name, *flags]).replace("--", "")
    c = r.call([lab.path(r), "workload", name, "--mib", mib, *args], tag=tag, local="25%",
               extra=flags, **limits)
    stats = r.load_stats(c)
    for key in ("verify_failures", "anomalies"):
        r.same(find(stats, key), 0, f"{tag}: {key}")
    r.require(find(stats, "pages_out") > 1000, f"{tag}: pages_out = {find(stats, 'pages_out')}")
    return answer_of(c, name), stats


def compressed_peak(stats):
    """Bytes in slots that are smaller than a page."""
    return sum(c["peak_bytes"] for c in stats["classes"] if c["slot_bytes"] < 4096)


# Fills memory with data that lz4 would compress, and forks; the child checks its copy, then execs a program that
# does the same in its own heap.
FAMILY = """
import os, sys
def fill(mib):
    return bytearray(b"".join(b"%015d," % i * 256 for i in range(mib << 8)))
def right(data):
    return all(data[i * 4096:(i + 1) * 4096] == b"%015d," % i * 256 for i in range(len(data) >> 12))
data = fill(24)
if len(sys.argv) > 1:
    sys.exit(0 if right(data) else 1)
pid = os.fork()
if pid == 0:
    if not right(data):
        os._exit(1)
    os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
code = os.waitpid(pid, 0)[1]
print("right" if right(data) and code == 0 else "wrong")
"""


@check("codec-none", as_user=True, timeout_s=120, normal=ONCE)
def codec_none(r):
    """Nothing is compressed, pages of one value still store nothing, and the data is right."""
    args = ["--seconds", "1"]
    want, plain = paged(r, "random-write", args=args)
    got, stats = paged(r, "random-write", "-o", "codec=none", args=args)
    r.same(got, want, "answer")
    r.same([plain["policy"]["codec"], stats["policy"]["codec"]], ["lz4", "none"], "policy.codec")
    r.require(compressed_peak(plain) > 0, "lz4 compressed nothing: the test shows nothing")
    r.same(compressed_peak(stats), 0, "bytes in slots of less than a page")
    parts = [find(stats, "pages_out" + p) for p in ("", "_clean", "_zero", "_same_filled", "_raw")]
    r.same(parts[0], sum(parts[1:]), f"pages_out and its parts {parts}")
    pool, far = canvas.memory(stats, "pool_bytes"), canvas.memory(stats, "far_bytes")
    r.require(pool >= 0.95 * far, f"pool {pool / MIB:.0f} MiB for {far / MIB:.0f} MiB far")
    r.require(canvas.memory(plain, "pool_bytes") < 0.8 * pool, "lz4 saved nothing")


@check("codec-none-family", normal=ONCE, as_user=True, timeout_s=120)
def codec_none_family(r):
    """Forked and exec'd processes inherit the setting."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    script = r.write("family.py", FAMILY)
    exe = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    c = r.call([exe, script], tag="family", local=32 * MIB, extra=["-o", "codec=none"])
    r.same(c.out(), "right\n", "output")
    stats = r.load_stats(c)
    r.require(find(stats, "forks") >= 1 and find(stats, "execs") >= 2, "no fork or no exec")
    r.require(find(stats, "pages_out_raw") > 1000, f"pages_out_raw = {find(stats, 'pages_out_raw')}")
    r.same(compressed_peak(stats), 0, "bytes in slots of less than a page")


# Pages of noise and text. In each round a few words of each page change; in the last, all of one page in four. At
# the end each page is compared with its expected contents.
COUNTERS = """
import random, struct
PAGES, WORDS = 4096, (3, 200, 511)
noise = [random.Random(i).randbytes(1800) for i in range(64)]
def filled(i, turn):
    return (noise[(i + turn) % 64] + b"%010d," % i * 300)[:4096]
data = bytearray().join(bytearray(filled(i, 0)) for i in range(PAGES))
def put(i, value):
    for w in WORDS:
        struct.pack_into("<Q", data, i * 4096 + w * 8, value * (w + i))
for value in (1, 2, 3):
    for i in range(PAGES):
        put(i, value)
for i in range(0, PAGES, 4):
    data[i * 4096:(i + 1) * 4096] = filled(i, 1)
    put(i, 9)
def want(i):
    page = bytearray(filled(i, i % 4 == 0))
    for w in WORDS:
        struct.pack_into("<Q", page, w * 8, (9 if i % 4 == 0 else 3) * (w + i))
    return page
print(all(data[i * 4096:(i + 1) * 4096] == want(i) for i in range(PAGES)))
"""


@check("few-words", normal=ONCE, as_user=True, timeout_s=120)
def few_words(r):
    """For pages with a few changed words only these words are stored, and every byte comes back."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    exe = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    c = r.call([exe, "-c", COUNTERS], tag="counters", local=12 * MIB)
    r.same(c.out(), "True\n", "output")
    stats = r.load_stats(c)
    for key in ("verify_failures", "anomalies"):
        r.same(find(stats, key), 0, key)
    n = find(stats, "pages_out_delta")
    r.require(n > 1000, f"pages_out_delta = {n}: of 12,000 changes of a few words")


@check("stale-copies", as_user=True, timeout_s=120, normal=ONCE)
def stale_copies(r):
    """Where the pool is nearly full, the first write to a page removes its stale copy; otherwise the copy stays."""
    args = ["--seconds", "1"]
    want, idle = paged(r, "random-write", args=args)
    # Slightly more than it filled, which depends on what the machine does in the time.
    pool = find(idle, "memory")["pool_bytes"]["peak"] * 21 // 20
    got, tight = paged(r, "random-write", args=args, pool=pool)
    r.same(got, want, "answer")
    stale = [find(s, "pool_copies_stale") for s in (idle, tight)]
    r.same(stale[0], 0, "pool_copies_stale with room")
    r.require(stale[1] > 0, f"pool_copies_stale = {stale[1]} with {pool >> 10} KiB of pool")


@check("hot-copies", as_user=True, timeout_s=120, normal=ONCE)
def hot_copies(r):
    """Pages that stay local for long lose their copies in the pool; pages that are all read equally keep them."""
    # A busy host does little in two seconds.
    for seconds in (2, 6, 18):
        counts = {}
        for load in ("zipf", "sequential"):
            _, stats = paged(r, load, args=["--seconds", seconds])
            counts[load] = find(stats, "pool_copies_hot")
            r.same(find(stats, "entry_reservations_dropped"), 0, f"{load}: reservations dropped")
        if counts["zipf"] > 100:
            break
    r.require(counts["zipf"] > 100, f"copies of hot pages dropped: {counts}")
    r.require(counts["sequential"] < counts["zipf"] / 4, f"copies of hot pages dropped: {counts}")


@check("in-line", as_user=True, timeout_s=120, normal=ONCE)
def in_line(r):
    """Where pages are evicted clean, direct reclaim frees more of them than where they are written."""
    shares = {}
    for load in ("random-read", "random-write"):
        _, stats = paged(r, load, args=["--seconds", "1"])
        pages = {who: find(stats, f"reclaim_pages_{who}") for who in ("in_line", "background")}
        shares[load] = pages["in_line"] / sum(pages.values())
        r.same([find(stats, what) for what in ("verify_failures", "anomalies")], [0, 0], load)
    # A heap that is filled first is evicted dirty, for a time that depends on the host.
    r.require(shares["random-read"] > 3 * shares["random-write"], f"parts freed in line: {shares}")


@check("features", as_user=True, timeout_s=150, normal=ONCE)
def features(r):
    """Page features distinguish reads from writes, streams from random access, and show the cost of paging."""
    right = {"sequential": lambda ratio: ratio > 0.9, "random-read": lambda ratio: ratio < 0.4,
             "random-write": lambda ratio: ratio < 0.4}
    of = {}
    for load, is_right in right.items():
        # The fill and the final check are streams; a busy host does little in a second.
        for seconds in (1, 3, 9):
            _, stats = paged(r, load, args=["--seconds", seconds])
            of[load] = stats["features"]
            if is_right(of[load]["sequential_ratio"]):
                break
        else:
            r.require(False, f"{load}: {of[load]}")
    # A heap that is filled first is evicted dirty once.
    r.require(of["random-read"]["store_ratio"] < 0.5 < 0.6 < of["random-write"]["store_ratio"],
              f"reads and writes: {of}")
    for load, f in of.items():
        r.require(f["fragment_ratio"] < 0.2, f"{load}, which uses all of its heap: {f}")
        r.require(1.2 < f["compression"] < 20, f"{load}: {f}")
        r.require(0 < f["stall_ratio"] <= 1 and f["slowdown"] > 0, f"{load}: {f}")


@check("features-slowdown", timeout_s=120, normal=ONCE)
def features_slowdown(r):
    """The reported slowdown follows from the processor time and sleep in the same report."""
    _, stats = paged(r, "random-read", args=["--seconds", "1"])
    ns = {n: find(stats, n) for n in ("fault_cpu_ns", "fault_sleep_ns", "reclaim_cpu_ns", "reclaim_wanted_ns")}
    r.require(ns["fault_cpu_ns"] > 0, f"faults took no processor time: {ns}")
    worked_ns = (stats["time"]["user_s"] + stats["time"]["system_s"]) * 1e9 - ns["reclaim_cpu_ns"]
    # The kernel's time to deliver a fault, which has no counter, is added.
    least_ns = ns["fault_cpu_ns"] + ns["fault_sleep_ns"] + min(ns["reclaim_wanted_ns"], ns["reclaim_cpu_ns"])
    least = least_ns / max(worked_ns - ns["fault_cpu_ns"], worked_ns / 100)
    told = stats["features"]["slowdown"]
    r.require(told >= 0.99 * min(least, 100), f"{told} is told, and {least:.3f} counted: {ns}, {stats['time']}")


# Touches one page in eight of 128 MiB, then waits, and reads some of them in each round.
SPARSE = """
import mmap, os, random, sys, time
m = mmap.mmap(-1, 128 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
draw = random.Random(5)
data = [draw.randbytes(64) for _ in range(64)]
for i in range(0, 128 << 20, 32768):
    m[i:i + 64] = data[(i >> 15) % 64]
print("ready", flush=True)
while not os.path.exists(sys.argv[1]):
    for i in range(0, 128 << 20, 32768):
        assert m[i:i + 64] == data[(i >> 15) % 64], i
    time.sleep(0.02)
print("right", flush=True)
"""


@check("features-live", as_user=True, timeout_s=120, normal=ONCE)
def features_live(r):
    """`canvas stat` shows features of each interval, for a program that touches a small part of each block."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    name, end = f"sparse{os.getpid()}", r.path("end")
    exe = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    c = r.start([exe, "-c", SPARSE, end], tag="sparse", local=16 * MIB, extra=["--tenant", name])
    stop = time.monotonic() + 60
    while "ready" not in c.out() and c.alive():
        r.require(time.monotonic() < stop, "the program is not ready after a minute")
        time.sleep(0.05)
    ask = [r.session.canvas, "stat", name, "-i", "1", "-n", "2"]
    said = subprocess.run([*ask, "--json"], capture_output=True, text=True, timeout=30)
    lines = [json.loads(line)["features"] for line in said.stdout.splitlines()]
    r.same(len(lines), 2, f"lines\n{said.stdout}{said.stderr}")
    for f in lines:
        r.require(0.5 < f["fragment_ratio"] < 0.9, f"one page in eight is touched: {f}")
        r.require(f["store_ratio"] < 0.2, f"nothing is written: {f}")
        r.require(0 < f["slowdown"] and 0 < f["stall_ratio"] < 1, f"{f}")
        r.require(0 < f["file_ratio"] < 1, f"the interpreter is a file: {f}")
    shown = subprocess.run([*ask, "--features"], capture_output=True, text=True, timeout=30)
    rows = shown.stdout.splitlines()
    r.require(len(rows) == 3 and "slow" in rows[0], f"{shown.stdout}{shown.stderr}")
    r.same(len(rows[1].split()), 9, f"columns of {rows[1]}")
    open(end, "w").close()
    r.wait(c, timeout_s=60)
    r.require("right" in c.out(), f"no closing line\n{c.tail()}")


@check("reservations-off", as_user=True, timeout_s=120, normal=ONCE)
def reservations_off(r):
    """Without reservations each swap-out allocates its entry; with them only the first of each page does."""
    args = ["--seconds", "1"]
    want, on = paged(r, "random-write", args=args)
    got, off = paged(r, "random-write", "-o", "reservations=off", args=args)
    r.same(got, want, "answer")
    r.same([on["policy"]["reservations"], off["policy"]["reservations"]], [True, False], "policy")
    allocs = lambda s: find(s, "entry_allocs_locked") + find(s, "entry_allocs_stocked")
    share = lambda s: allocs(s) / (find(s, "pages_out") - find(s, "pages_out_zero"))
    # Pages that were prefetched but not used keep their entries, as in the kernel's swap cache.
    r.require(share(off) > 0.95, f"without: {share(off):.3f} of the swap-outs allocated an entry")
    r.require(share(on) < 0.7, f"with: {share(on):.3f} of the swap-outs allocated an entry")
    r.require(allocs(off) > allocs(on), "fewer allocations without")
    # The lock is taken for a batch of 16, by one of two or three threads.
    locked = find(on, "entry_allocs_locked")
    r.require(locked < allocs(on) / 4, f"{locked} of {allocs(on)} allocations took the lock")


# Pages of which a few are in constant use and all are used repeatedly, a quarter of them written; each is half
# noise, so that it is stored in about half of its size. At the end each page is compared with its expected
# contents.
EPOCHS = """
import random
SIZE, PAGES, STEPS = 4096, 16 << 10, 250_000
draw = random.Random(18)
data = bytearray(SIZE * PAGES)
noise = [draw.randbytes(SIZE // 2) for _ in range(PAGES)]
def first(page):
    return page.to_bytes(8, "little") + noise[page][8:]
for page in range(PAGES):
    data[page * SIZE:page * SIZE + SIZE // 2] = first(page)
writes = [0] * PAGES
for _ in range(STEPS):
    page = int(PAGES * draw.random() ** 4)
    at = page * SIZE + SIZE - 8
    if int.from_bytes(data[at:at + 8], "little") != writes[page]:
        raise SystemExit(f"page {page} has lost a write")
    if draw.random() < 0.25:
        writes[page] += 1
        data[at:at + 8] = writes[page].to_bytes(8, "little")
for page in range(PAGES):
    if data[page * SIZE:page * SIZE + SIZE // 2] != first(page):
        raise SystemExit(f"page {page} is wrong")
print(sum(writes))
"""


@check("reservations-dropped", as_user=True, timeout_s=180, normal=ONCE)
def reservations_dropped(r):
    """When far memory is nearly full, hot pages lose their reservations and allocate new entries."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    exe = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
    script = r.write("epochs.py", EPOCHS)
    answers, reports = set(), []
    for tag, pool in (("roomy", 1024), ("tight", 88)):
        c = r.call([exe, script], tag=tag, local=40 * MIB, pool=pool * MIB)
        answers.add(c.out())
        reports.append(r.load_stats(c))
    r.same(len(answers), 1, f"answers {answers}")
    roomy, tight = reports
    for s in reports:
        for key in ("verify_failures", "anomalies", "mmaps_refused"):
            r.same(find(s, key), 0, key)
    dropped = [find(s, "entry_reservations_dropped") for s in reports]
    r.require(dropped[0] == 0 and dropped[1] > 100, f"reservations dropped: {dropped}")
    again = [find(s, "entry_allocs_locked") + find(s, "entry_allocs_stocked") for s in reports]
    r.require(again[1] > again[0], f"entries allocated: {again}")


@check("prefetch-policies", as_user=True, timeout_s=180, normal=(("signal", None),))
def prefetch_policies(r):
    """A sequential reader: every prefetcher brings in most pages, and they are used."""
    args = ["--seconds", "1"]
    answers = set()
    for who in ("streams", "leap", "readahead", "auto"):
        answer, stats = paged(r, "sequential", "-o", f"prefetch={who}", args=args)
        answers.add(answer)
        p, issued = stats["prefetch"], find(stats, "prefetch_issued")
        r.same(stats["policy"]["prefetch"], who, "policy.prefetch")
        r.require(issued > 1000, f"{who}: {issued} pages prefetched")
        # The figure of `streams` is a lower bound: an unmapped page may be written out of a small swap cache before
        # the reader comes to it.
        r.require(p["accuracy"] > (0.3 if who in ("streams", "auto") else 0.8), f"{who}: {p}")
        r.require(p["contribution"] > 0.6, f"{who}: {p}")
        if who in ("leap", "readahead"):
            # Each page waits in the swap cache, so each use is a swap-cache hit.
            r.same(find(stats, "prefetch_used"), find(stats, "cache_hits_prefetch"), f"{who}: used, hits")
    answer, stats = paged(r, "sequential", "-o", "prefetch=none", args=args)
    answers.add(answer)
    r.same(stats["policy"]["prefetch"], "none", "policy.prefetch")
    r.same(find(stats, "prefetch_issued"), 0, "pages prefetched")
    r.same(len(answers), 1, f"answers {answers}")


# One thread reads every third page of an array in order, one reads records of 16 pages in random order, with their
# pages out of order, and one reads random single pages. Each page begins with its number.
MIXED = """
import threading
import numpy as np
PAGES = 12 << 10
pages = np.zeros((PAGES, 512), dtype=np.int64)
pages[:, 0] = np.arange(PAGES)
pages[:, 7] = np.arange(PAGES) * 31
right = []
def reads(order):
    good = 0
    for i in order:
        good += int(pages[i, 0]) == i and int(pages[i, 7]) == 31 * i
    right.append(good == len(order))
def scan():
    reads(list(range(0, PAGES // 3, 3)) * 4)
def records():
    rng = np.random.default_rng(1)
    inside = np.array([5, 12, 2, 9, 15, 0, 7, 10, 3, 13, 6, 1, 8, 14, 4, 11])
    for _ in range(4):
        starts = rng.permutation(np.arange(PAGES // 3, 2 * PAGES // 3, 16))
        reads([int(s + i) for s in starts for i in inside])
def scattered():
    rng = np.random.default_rng(2)
    reads([int(i) for i in rng.integers(2 * PAGES // 3, PAGES, 8000)])
threads = [threading.Thread(target=t) for t in (scan, records, scattered)]
[t.start() for t in threads]
[t.join() for t in threads]
print("right" if all(right) and len(right) == 6 else "wrong")
"""


@check("prefetch-auto", normal=ONCE, as_user=True, timeout_s=180)
def prefetch_auto(r):
    """Records in random order next to a strided and a random reader: only records are brought in whole."""
    if not r.managed or python_missing():
        raise Skip(python_missing() or "says nothing without canvas")
    script = r.write("mixed.py", MIXED)
    far = {}
    for who in ("none", "streams", "auto"):
        c = r.call([science_python(), script], tag=who, local=30 * MIB, extra=["-o", f"prefetch={who}"],
                   env={"OPENBLAS_NUM_THREADS": "1"})
        r.same(c.out(), "right\n", f"{who}: output")
        stats = r.load_stats(c)
        for key in ("verify_failures", "anomalies"):
            r.same(find(stats, key), 0, f"{who}: {key}")
        far[who] = find(stats, "faults_far")
        beside = find(stats, "prefetch_issued_nearby")
        if who == "auto":
            r.note(f"beside {beside}, used {find(stats, 'prefetch_used_nearby')}, far {far}")
            r.require(beside > 500, f"{beside} pages came in beside a fault")
            used = find(stats, "prefetch_used_nearby")
            r.require(used > 0.25 * beside, f"{used} of {beside} pages beside a fault were used")
        else:
            r.same(beside, 0, f"{who}: pages beside a fault")
    # The streams found depend on the scheduling of the threads, so `none` is the baseline.
    r.require(far["auto"] < 0.6 * far["none"], f"far faults {far}")


@check("prefetch-streams-of-threads", normal=ONCE, timeout_s=120, modes=("signal", "thread"), **hostile.C)
def prefetch_streams_of_threads(r):
    """Eight threads that each read four arrays in parallel: no thread's streams displace another's."""
    c = r.call([r.binary("streams")], tag="streams", local=40 * MIB, pool=256 * MIB)
    r.require(c.out().startswith("ok "), f"closing line {c.out()!r}")
    if not r.managed:
        return
    stats = r.load_stats(c)
    for key in ("verify_failures", "anomalies"):
        r.same(find(stats, key), 0, key)
    far, came = find(stats, "faults_far"), find(stats, "pages_in")
    r.require(came > 20_000, f"{came} pages came in")
    # 0.6 and 0.97 of them were faults when threads shared tables.
    r.require(far < 0.45 * came, f"{far} of the {came} pages that came in were faults")


@check("first-writes", timeout_s=240, modes=("signal", "thread"), normal=ONCE, **hostile.C)
def first_writes(r):
    """Pages are faulted in write-protected where they are read, and every kind of first write is noticed."""
    c = r.call([r.binary("protected"), r.size(1, 5)], tag="protected", local=12 * MIB, pool=256 * MIB)
    r.require(c.out().strip() == "ok", f"closing line {c.out()!r}")
    if not r.managed:
        return
    stats = r.load_stats(c)
    for key in ("verify_failures", "anomalies"):
        r.same(find(stats, key), 0, key)
    for key in ("faults_first_write", "pages_out_protected"):
        r.require(find(stats, key) > 5_000, f"{key}: {find(stats, key)}")


@check("prefetch-policies-threads", as_user=True, timeout_s=180, normal=ONCE)
def prefetch_policies_threads(r):
    """Four threads that write at random, with prefetched pages waiting in the swap cache."""
    args = ["--seconds", "1", "--threads", "4"]
    answers = {paged(r, "random-write", "-o", f"prefetch={who}", args=args)[0]
               for who in ("leap", "readahead")}
    r.same(len(answers), 1, f"answers {answers}")
