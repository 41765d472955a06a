"""madvise: canvas follows the program's advice in the background, and never loses a byte."""

from lib import canvas
from lib.harness import MIB, ONCE, Failure, check

from .operate import python

# Twice the limit, in pages that are all different. Then the given steps for some of the pages: advise by
# number, wait until they are resident or far, read in order or at random, report which are resident.
PROGRAM = """
import ctypes, hashlib, mmap, random, sys, time
SIZE, PAGES = 4096, int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
m = mmap.mmap(-1, PAGES * SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.addressof(ctypes.c_char.from_buffer(m))
first, last = int(sys.argv[2]), int(sys.argv[3])
def page(i):
    return hashlib.shake_128(b"%d" % i).digest(1024) * 4
def resident(a, b):
    found = (ctypes.c_ubyte * (b - a))()
    if libc.mincore(ctypes.c_void_p(at + a * SIZE), ctypes.c_size_t((b - a) * SIZE), found):
        sys.exit("mincore")
    return sum(found)
def read(pages):
    for i in pages:
        if m[i * SIZE:i * SIZE + SIZE] != page(i):
            sys.exit(f"page {i} is wrong")
for i in range(PAGES):
    m[i * SIZE:i * SIZE + SIZE] = page(i)
for step in sys.argv[4:]:
    what, _, how = step.partition("=")
    if what == "advise":
        m.madvise(int(how), first * SIZE, (last - first) * SIZE)
    elif what == "wait":
        # Until as many are resident as should be, or nothing has changed for a while.
        share, steady = -1, 0
        while steady < 100 and not (share >= 0.97 if how == "in" else 0 <= share <= 0.05):
            before, share = share, resident(first, last) / (last - first)
            steady = steady + 1 if share == before else 0
            time.sleep(0.01)
    elif what == "read":
        read(range(first, last))
    elif what == "watched":
        # How many pages were far when their turn came, and how many had come in before it.
        before, here = resident(first, last), 0
        for i in range(first, last):
            here += resident(i, i + 1)
            read([i])
        print("resident", how, last - first - here, flush=True)
        print("resident", how + "-ahead", max(here - before, 0), flush=True)
    elif what == "shuffled":
        read(random.Random(3).sample(range(first, last), last - first))
    elif what == "others":
        read(range(int(how), int(how) + 3000))
    elif what == "resident":
        print("resident", how, resident(first, last), flush=True)
print("right", flush=True)
"""
NORMAL, RANDOM, SEQUENTIAL, WILLNEED, COLD, PAGEOUT = 0, 1, 2, 3, 20, 21
# Many pages compared with the interpreter's own, and less than an eighth of 64 MiB.
PAGES = 3000, 4800


def run(r, tag, *steps, pages=PAGES, extra=(), local=32 * MIB):
    """Returns the report and the output; checks that all pages were right."""
    c = r.start([python(), "-c", PROGRAM, 2 * local // 4096, *pages, *steps], tag=tag, local=local, pool=128 * MIB,
                extra=["-o", "proactive-threshold=off", *extra])
    r.wait(c, timeout_s=60)
    r.require("right" in c.out(), f"no closing line\n{c.tail()}")
    stats = r.load_stats(c)
    r.same([canvas.find(stats, key) for key in ("verify_failures", "anomalies")], [0, 0], "verify failures, anomalies")
    # [name, pages] as printed by the steps `resident=NAME`.
    said = dict(line.split()[1:] for line in c.out().splitlines() if line.startswith("resident"))
    return stats, {name: int(n) for name, n in said.items()}


@check("hints-needed", normal=ONCE, timeout_s=150)
def hints_needed(r):
    """MADV_WILLNEED: far pages are prefetched, at the limit as well, and cause no faults."""
    if not r.managed:
        return
    how = {"pages": PAGES, "local": 64 * MIB, "extra": ["-o", "prefetch=none"]}
    wanted = PAGES[1] - PAGES[0]
    # Judged page by page: the interpreter's own faults differ by hundreds from run to run.
    for _ in range(3):
        without, said = run(r, "without", "watched=read", **how)
        alone = said["read"]
        if alone >= wanted * 85 // 100:
            break
    r.require(alone >= wanted * 85 // 100, f"{alone} pages are far without a hint: the test shows nothing")
    told, said = run(r, "told", "resident=before", f"advise={WILLNEED}", "wait=in", "watched=read", **how)
    far, came = wanted - said["before"], canvas.find(told, "hint_pages_in")
    r.require(said["read"] <= alone // 10, f"{said['read']} pages are far after the hint, {alone} without")
    r.require(came >= far * 95 // 100, f"{came} of {far} pages came in by hints")
    r.require(canvas.find(told, "faults_far") <= canvas.find(without, "faults_far") // 2, "the hint saves no faults")
    r.same(canvas.find(without, "hint_pages_in"), 0, "pages by hints that nobody gave")
    r.note(f"{alone} pages far without, {said['read']} after a hint that brought in {came} of {far}")


@check("hints-bounded", normal=ONCE, timeout_s=150)
def hints_bounded(r):
    """A hint for everything brings in an eighth of the limit, and evicts no more than that."""
    if not r.managed:
        return
    stats, said = run(r, "all", f"advise={WILLNEED}", "wait=in", "resident=after", pages=(0, 12000),
                      extra=["-o", "prefetch=none"])
    came, eighth = canvas.find(stats, "hint_pages_in"), (32 * MIB // 4096) // 8
    r.require(eighth * 3 // 4 <= came <= eighth, f"{came} pages came in, an eighth of the limit is {eighth}")
    r.require(canvas.find(stats, "hints_dropped") >= 1, "the rest was not counted as dropped")


@check("hints-unneeded", normal=ONCE, timeout_s=150)
def hints_unneeded(r):
    """MADV_PAGEOUT: resident pages are evicted. MADV_COLD: they are evicted before others that were used
    earlier."""
    if not r.managed:
        return
    # The pages filled last.
    last = (64 << 8) - 1000, 64 << 8
    steps = ("read", "resident=before", f"advise={PAGEOUT}", "wait=out", "resident=after", "read")
    alone = ["-o", "prefetch=none"]
    stats, said = run(r, "out", *steps, pages=last, extra=alone)
    r.require(said["before"] > 900, f"{said}: the test shows nothing")
    r.require(said["after"] < 50, f"{said}")
    left = canvas.find(stats, "hint_pages_out")
    # They became cold at once: other reclaim may have found some first.
    r.require(left >= said["before"] // 2, f"{left} pages left by hints: {said}")
    steps = ("resident=before", "others=2000", "resident=after")

    def stay(name, advice):
        """Pages that stay while 3,000 others come in."""
        _, said = run(r, name, "read", "read", f"advise={advice}", *steps, pages=last, extra=alone)
        # Some may have been evicted already.
        r.require(said["before"] > 500, f"{name}: {said}: the test shows nothing")
        return said["after"]

    without = stay("without", NORMAL)
    # On a busy host some of the others may have stayed in since they were written; advice that is not followed
    # never gives the right number.
    for _ in range(3):
        told = stay("told", COLD)
        if told < without // 2:
            break
    r.require(told < without // 2, f"{told} cold pages stay, {without} without the advice")
    r.note(f"{said['before']} pages out; of 1000 that are cold {told} stay, else {without}")


@check("hints-order", normal=ONCE, timeout_s=150)
def hints_order(r):
    """MADV_RANDOM: a fault brings in no other pages. MADV_SEQUENTIAL: it brings in the widest window at once."""
    if not r.managed:
        return

    def read(name, advice, *more):
        """Number of pages resident before they were read, and of pages that were far."""
        _, said = run(r, name, f"advise={advice}", *more, "watched=far", local=64 * MIB)
        return said["far-ahead"], said["far"]

    pages, told = PAGES[1] - PAGES[0], []
    # On a busy host reclaim and prefetch may be late; advice that is not followed never gives the right
    # numbers.
    for _ in range(6):
        normal, random = read("normal", NORMAL), read("random", RANDOM)
        sequential = read("sequential", SEQUENTIAL)
        back = read("back", RANDOM, f"advise={NORMAL}")
        told.append(f"pages ahead and far when read: {normal}, random {random}, sequential {sequential}, taken back {back}")
        r.require(random[0] <= pages // 10, told[-1])
        if (random[1] >= pages * 8 // 10 and normal[0] > pages // 2 and back[0] > pages // 2
                and sequential[0] > pages // 2 and sequential[1] <= pages // 10):
            return r.note(told[-1])
    raise Failure("\n".join(told))


# The kernel's results of right and wrong advice for anonymous memory; the plain run is the model.
ANSWERS = """
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
MIB = 1 << 20
at = libc.mmap(None, 8 * MIB, 3, 0x22, -1, 0)
ctypes.memset(at, 7, 8 * MIB)
libc.munmap(at + 3 * MIB, MIB)
libc.munmap(at + 7 * MIB, MIB)
cases = [(0, 4096), (0, 0), (at, 0), (at, 1), (at + 1, 4096), (at, 4095), (at, 2 * MIB), (at + 2 * MIB, 2 * MIB),
         (at + 3 * MIB, MIB), (at + 3 * MIB, 4096), (at + 6 * MIB, 2 * MIB), (at, 2**64 - 4096), (at, 2**63),
         (at, 2**64 - 1), (2**63, 4096), (2**64 - 4096, 4096)]
for advice in (0, 1, 2, 3, 20, 21):
    for i, (where, length) in enumerate(cases):
        if advice in (20, 21) and length == 2**63:
            continue # the kernel's own pages at the end of the address space, which it refuses to page out
        ctypes.set_errno(0)
        answer = libc.madvise(where, length, advice)
        print(advice, i, answer, ctypes.get_errno() if answer else 0)
for advice in (5, 6, 7, 13, 26, 99, -1, 1000):
    if libc.madvise(at, 4096, advice) == 0:
        print(advice, "is accepted")
for i in list(range(0, 3 * MIB, 4096)) + list(range(4 * MIB, 7 * MIB, 4096)):
    assert ctypes.string_at(at + i, 4096) == b"\\x07" * 4096, i
print("right")
"""


@check("hints-misuse", normal=ONCE, timeout_s=60)
def hints_misuse(r):
    """Null, odd, huge and unmapped ranges get the kernel's results, and no page changes."""
    if not r.managed:
        return
    answers = []
    for on in (False, True):
        c = r.start([python(), "-c", ANSWERS], tag=f"answers{on}", canvas_on=on, local=16 * MIB)
        r.wait(c)
        answers.append(c.out().splitlines())
    r.require("right" in answers[1], f"{answers[1][-3:]}")
    for plain, managed in zip(*answers):
        r.same(managed, plain, "advice, case, answer, errno")
    r.same(len(answers[1]), len(answers[0]), "answers")


@check("hints-storm", timeout_s=200, as_user=True, normal=ONCE)
def hints_storm(r):
    """Four threads advise at random while another unmaps and fills, with forks in between."""
    if not r.managed:
        return
    for seed in r.size((1,), (1, 2)):
        c = r.start([r.binary("hint_storm"), seed, r.size(32, 400)], tag=f"storm{seed}", local=12 * MIB, pool=256 * MIB)
        r.wait(c, timeout_s=100)
        r.same(c.out().strip(), "right", f"the last line\n{c.tail()}")
        stats = r.load_stats(c)
        r.same([canvas.find(stats, key) for key in ("verify_failures", "anomalies")], [0, 0],
               "verify failures, anomalies")
        got = {key: canvas.find(stats, key) for key in ("hint_pages_in", "hint_pages_out", "hints_dropped")}
        r.require(got["hint_pages_in"] > 100 and got["hint_pages_out"] > 100, f"{got}")
        r.note(f"seed {seed}: {got}")
