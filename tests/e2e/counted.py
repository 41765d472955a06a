"""Figures of the report beside what is known from outside: a program that does a known number of things, and one
that does none."""

from lib import canvas
from lib.harness import MIB, check

from .hostile import C

PAGES, FORKS = 4096, 5
PAGE = 4096
# Pages that a first touch brings in.
CHUNK_PAGES = 64
# By the low bits of a tag (tests/c/common.h): the counter of pages stored so, if there is one, and what the pool takes
# of such a page, at least and at most.
KINDS = {0: ("pages_out_zero", 0, 0), 8: ("pages_out_raw", PAGE, PAGE * 1.05), 11: (None, PAGE / 8, PAGE / 2)}
BY_KIND = [counter for counter, _, _ in KINDS.values() if counter] + ["pages_out_same_filled", "pages_out_delta"]


def report(r, pages, tag, forks):
    """Of the program that does this."""
    c = r.call([r.binary("counted"), pages, tag, forks], tag=f"{pages}-{tag}-{forks}", local="64M", pool="64M",
               extra=["-o", "prefetch=none", "-o", "app-tier=off"])
    r.same(c.out(), "done\n", "output")
    return r.load_stats(c)


@check("figures", timeout_s=60, paged=False, **C)
def figures(r):
    """Pages that are touched, leave, are stored in each way and come back, and forks: each is counted once."""
    if not r.managed:
        return
    nothing = report(r, 0, 0, 0)
    r.same(report(r, 0, 0, FORKS)["counters"]["forks"], FORKS, "forks")
    for tag, (counter, least, most) in KINDS.items():
        did = report(r, PAGES, tag, 0)
        more = {name: n - nothing["counters"][name] for name, n in did["counters"].items()}
        # Beside the pages: the list that mincore fills.
        near = lambda name, got, want: r.require(want <= got <= want + 8, f"tag {tag}: {name} is {got}, not {want}")
        near("faults_first_touch", more["faults_first_touch"], PAGES // CHUNK_PAGES)
        near("pages_zero_filled", more["pages_zero_filled"], PAGES)
        near("hint_pages_out", more["hint_pages_out"], PAGES)
        # A page that is read before the swap cache has written it out has not left.
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
        r.require(0 < more["fault_cpu_ns"] < 60e9 and more["fault_time_count"] >= more["faults_far"],
                  f"tag {tag}: {more['fault_cpu_ns']} ns in {more['fault_time_count']} faults")
