"""What the bench over guests prints in the end: medians of its results, the papers' figures beside them, the goals."""

import statistics

from lib.figures import GROUPS, PAPER, times
from lib.parts import PARTS, PROGRAMS


def median(runs, *path):
    """The median of a figure, which lies at `path` in each run; None when none has it."""
    found = []
    for run in runs:
        for key in path:
            run = run.get(key) if isinstance(run, dict) else None
        if run is not None:
            found.append(run)
    return statistics.median(found) if found else None


def of(runs, **wanted):
    return [r for r in runs if all(r.get(k) == v for k, v in wanted.items())]


def show(title, columns, rows):
    """A table; what is not there is a dash."""
    print(f"\n{title}")
    text = [columns] + [["–" if c is None else f"{c:,}" if isinstance(c, (int, float)) else str(c) for c in row]
                        for row in rows]
    widths = [max(len(row[i]) for row in text) for i in range(len(columns))]
    for row in text:
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))))


def redis_table(runs):
    base = median(of(runs, variant="slow-disk"), "zipf", "ops_s")
    speed, space = [], []
    for variant in PARTS["redis"]:
        mine = of(runs, variant=variant)
        if not mine:
            continue
        get = lambda *path, mine=mine: median(mine, *path)
        uniform = [get("uniform", k) for k in ("ops_s", "p50_us", "p99_us", "iowait_pct", "pages_in_s", "pages_out_s",
                                               "server_cpu_s", "server_us_page")]
        ops = get("zipf", "ops_s")
        speed.append([variant, ops, times(ops, base), PAPER["redis_times_disk"].get(variant), get("zipf", "p50_us"),
                      get("zipf", "p99_us"), *uniform])
        memory = [get("memory", f"{what}_mib") for what in ("guest", "server", "monitor", "host", "donor")]
        space.append([variant, *memory, get("memory", "space_bytes"), get("memory", "dead_pct"),
                      get("swapoff", "us_page"),
                      get("grown", "whole_ops_s"), get("grown", "recovered_s"), get("checked_values")])
    show("redis, batches of 16 (table II); uniform has a write for each read",
         ["variant", "zipf ops/s", "x slow disk", "paper", "p50 us", "p99 us", "uniform ops/s", "p50 us", "p99 us",
          "iowait %", "in/s", "out/s", "server s", "us/page"], speed)
    show("its memory in MiB, and what memory that comes back is worth (table IV, figure 2)",
         ["variant", "guest", "server", "qemu", "host", "donors", "space bytes", "dead %", "swapoff us/page",
          "whole ops/s", "recovers s", "checked"], space)


def lr_table(runs):
    rows = []
    for percent in (100, 75, 50):
        base = median(of(runs, variant="slow-disk", program="lr", in_memory_pct=percent), "run_s")
        for variant in PARTS["lr"]:
            mine = of(runs, variant=variant, program="lr", in_memory_pct=percent)
            if mine:
                took = median(mine, "run_s")
                rows.append([f"lr {percent} % {variant}", took, times(base, took),
                             PAPER["lr_times_disk"].get((variant, percent)), median(mine, "redis", "ops_s"),
                             median(mine, "iowait_pct"), median(mine, "pages_in_s"), median(mine, "pages_out_s"),
                             median(mine, "memory", "space_bytes")])
    base = median(of(runs, variant="slow-disk", program="kmeans"), "run_s")
    for variant in PARTS["lr"]:
        mine = of(runs, variant=variant, program="kmeans")
        if mine:
            took = median(mine, "run_s")
            paper = times(PAPER["kmeans_min"]["disk"], PAPER["kmeans_min"].get(variant))
            rows.append([f"kmeans 50 % {variant}", took, times(base, took), paper, None, median(mine, "iowait_pct"),
                         median(mine, "pages_in_s"), median(mine, "pages_out_s"), None])
    show("analytics (tables I to III)",
         ["program", "s", "x slow disk", "paper", "redis ops/s", "iowait %", "in/s", "out/s", "space bytes"], rows)


def spill_table(runs):
    rows = [[v, median(mine, "ops_s"), median(mine, "dip_pct"), PAPER["dip_pct"].get("lz4" if "spill" in v else v),
             median(mine, "growth_ops_s"), median(mine, "after_ops_s"), median(mine, "memory", "far_bytes"),
             median(mine, "memory", "host_mib")]
            for v in PARTS["spill"] if (mine := of(runs, variant=v))]
    show("growth past the pool (figures 9 to 11)",
         ["variant", "ops/s", "dip %", "paper", "ops/s in growth", "ops/s after", "far bytes", "host MiB"], rows)


def infiniswap_table(runs):
    rows = []
    for program in PROGRAMS:
        for variant in PARTS["infiniswap"]:
            whole = median(of(runs, variant=variant, program=program, in_memory_pct=100), "ops_s")
            for percent in (100, 75, 50):
                mine = of(runs, variant=variant, program=program, in_memory_pct=percent)
                if mine:
                    paper = PAPER["memcached_of_all"].get((variant.removeprefix("slow-"), percent))
                    rows.append([f"{program} {percent} % {variant}", median(mine, "ops_s"),
                                 times(median(mine, "ops_s"), whole), paper if program == "memcached" else None,
                                 median(mine, "p50_us"), median(mine, "p99_us"), median(mine, "memory", "donor_mib")])
    show("Infiniswap's applications", ["program", "ops/s", "of 100 %", "paper", "p50 us", "p99 us", "donors MiB"], rows)


def groups_table(runs):
    rows = [[f"{r['program']} {codec}", *(r[codec].get(str(g)) for g in GROUPS), r[codec].get("of_whole")]
            for r in runs for codec in ("lz4", "lzo1x") if isinstance(r.get(codec), dict)]
    show("groups of compressed pages, % (figure 4)", ["pages", "512", "1024", "2048", "4096", "of whole"], rows)


def swap_in_table(runs):
    rows = [[v, median(mine, "us_page"), PAPER["swap_in_us"].get(v), median(mine, "pages")]
            for v in PARTS["swap-in"] if (mine := of(runs, variant=v))]
    show("swapped in ahead (table IV)", ["variant", "us/page", "paper", "pages"], rows)


def goals(runs):
    """What the issue asks for, of the parts that ran: (what, figure, bound, met or None)."""
    redis, found = of(runs, part="redis"), []
    for name in ("disk", "slow-disk"):
        for load in ("zipf", "uniform"):
            by = times(median(of(redis, variant="lz4"), load, "ops_s"), median(of(redis, variant=name), load, "ops_s"))
            found.append((f"redis ({load}), lz4 by {name}", by, ">= 5", by and by >= 5))
    # Bytes of a stored page, for neither has as many pages away as the other.
    each = [times(median(mine, "memory", "space_bytes"), median(mine, "memory", "stored_pages"))
            for mine in (of(redis, variant=v) for v in ("lz4", "none"))]
    by = times(*each)
    found.append(("bytes a stored page, lz4 by none", by, "<= 0.64", by and by <= 0.64))
    for name in ("spill", "spill-donors"):
        dip = median(of(runs, part="spill", variant=name), "dip_pct")
        found.append((f"dip of {name}, %", dip, "<= 32", None if dip is None else dip <= 32))
    return [goal for goal in found if goal[1] is not None]


def goals_table(runs):
    show("goals", ["what", "here", "goal", ""], [[*goal[:3], "met" if goal[3] else "missed"] for goal in goals(runs)])


TABLES = {"redis": redis_table, "swap-in": swap_in_table, "lr": lr_table, "spill": spill_table, "groups": groups_table,
          "infiniswap": infiniswap_table}
