"""Compares figures of the report with known numbers: of a program with a known number of operations, and of
one without any."""

from lib import canvas
from lib.harness import MIB, check

from .hostile import C

PAGES, FORKS = 4096, 5
PAGE = 4096
# Pages that a first touch populates.
CHUNK_PAGES = 64
# For the low bits of a tag (tests/c/common.h): the counter of pages stored in that way, if there is one, and
# the least and most bytes that the pool needs for such a page.
KINDS = {0: ("pages_out_zero", 0, 0), 8: ("pages_out_raw", PAGE, PAGE * 1.05), 11: (None, PAGE / 8, PAGE / 2)}
BY_KIND = [counter for counter, _, _ in KINDS.values() if counter] + ["pages_out_same_filled", "pages_out_delta"]


def report(r, pages, tag, forks):
    """Report of a program with these arguments."""
    c = r.call([r.binary("counted"), pages, tag, forks], tag=f"{pages}-{tag}-{forks}", local="64M", pool="64M",
               extra=["-o", "prefetch=none", "-o", "app-tier=off", "-o", "proactive-threshold=off"])
    r.same(c.out(), "done\n", "output")
    return r.load_stats(c)


@check("figures", timeout_s=60, paged=False, **C)
def figures(r):
    """Pages that are touched, evicted, stored in each way and faulted in, and forks: each is counted once."""
    if not r.managed:
        return
    nothing = report(r, 0, 0, 0)
    r.same(report(r, 0, 0, FORKS)["counters"]["forks"], FORKS, "forks")
    for tag, (counter, least, most) in KINDS.items():
        did = report(r, PAGES, tag, 0)
        more = {name: n - nothing["counters"][name] for name, n in did["counters"].items()}
        # In addition to the pages: the list that mincore fills.
        near = lambda name, got, want: r.require(want <= got <= want + 8, f"tag {tag}: {name} is {got}, not {want}")
        near("faults_first_touch", more["faults_first_touch"], PAGES // CHUNK_PAGES)
        near("pages_zero_filled", more["pages_zero_filled"], PAGES)
        near("hint_pages_out", more["hint_pages_out"], PAGES)
        # A page that is read before the swap cache has written it out was not evicted.
        hits = more["cache_hits_victim"]
        for name in ("pages_out", "pages_in", "faults_far"):
            near(f"{name} and hits in the swap cache", more[name] + hits, PAGES)
        near("reclaim_pages_background", more["reclaim_pages_background"], PAGES)
        for name in BY_KIND:
            r.same(more[name], more["pages_out"] if name == counter else 0, f"tag {tag}: {name}")
        r.same((more["forks"], more["prefetch_issued"]), (0, 0), f"tag {tag}: forks, prefetch_issued")
        grown = {name: canvas.memory(did, name) - canvas.memory(nothing, name)
                 for name in ("footprint_bytes", "resident_bytes", "pool_bytes")}
        for name in ("footprint_bytes", "resident_bytes"):
            r.require(0 <= grown[name] - PAGES * PAGE <= MIB, f"tag {tag}: {name} grew by {grown[name]}")
        stored = grown["pool_bytes"] / max(1, more["pages_out"])
        r.require(least <= stored <= most, f"tag {tag}: {stored:.0f} bytes of the pool a page")
        timed = did["fault_time_ns"]["count"] - nothing["fault_time_ns"]["count"]
        r.require(0 < more["fault_cpu_ns"] < 60e9 and timed >= more["faults_far"],
                  f"tag {tag}: {more['fault_cpu_ns']} ns in {timed} faults")
