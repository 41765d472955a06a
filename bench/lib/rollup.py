"""What `bench/cluster` works out of what it saw, and its table."""

import statistics

from lib.host import MIB

# How long after the host's death, and after the hungry program's start, answers are looked at.
DEATH_S, BURST_S = 10, 20
QUANTILES = (("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999))


def quantiles(times_us):
    """Of all of them, and the longest; None of nothing."""
    if not times_us:
        return None
    ordered = sorted(times_us)
    found = {name: round(ordered[min(len(ordered) - 1, int(len(ordered) * part))], 1) for name, part in QUANTILES}
    return {"answers": len(ordered), **found, "max_us": round(ordered[-1], 1)}


def utilisation(looks, total_bytes, begin_s, end_s):
    """Parts of hosts' memory that are in use over a time, in %, and how they are spread; looks as of `Cluster`."""
    seen = [(used, lent) for at, used, lent in looks if begin_s <= at < end_s]
    if not seen:
        raise ValueError("nobody looked at memory")
    hosts = range(len(seen[0][0]))
    by_host = [100 * statistics.mean(used[h] for used, _ in seen) / total_bytes for h in hosts]
    return {"hosts_pct": [round(p, 1) for p in by_host], "mean_pct": round(statistics.mean(by_host), 1),
            "median_pct": round(statistics.median(by_host), 1), "deviation": round(statistics.pstdev(by_host), 1),
            "fullest_pct": round(max(100 * used[h] / total_bytes for used, _ in seen for h in hosts), 1),
            "lent_mib_mean": round(statistics.mean(sum(lent) for _, lent in seen) / MIB),
            "lent_mib_max": round(max(sum(lent) for _, lent in seen) / MIB)}


def ratios(founds, base):
    """Times of containers over those without bounds, by constraint; `base` has these by name."""
    by = {}
    for found in founds:
        alone = base.get(found["container"])
        if found["outcome"] == "ok" and alone:
            by.setdefault(found["percent"], []).append(found["seconds"] / alone)
    return {str(p): {"containers": len(r), "median": round(statistics.median(r), 2), "max": round(max(r), 2)}
            for p, r in sorted(by.items(), reverse=True)}


def window(ended, begin, end, hosts):
    """Answers of servers on these hosts in a time."""
    return quantiles([us for plan, _, times in ended if plan.host in hosts for at, us in times if begin <= at < end])


def whole(plan, looks, ended, began, base):
    """One line: `ended` has of each container its plan, what was found, and its answers."""
    founds = [found for _, found, _ in ended]
    others = [h for h in range(plan.hosts) if h != plan.dies]
    outcomes = [found["outcome"].partition(":")[0] for found in founds]
    fars = [found["far"] for found in founds if "far" in found]
    burst = began + plan.burst.at_s
    return {
        "memory": utilisation(looks, plan.host_mib * MIB, 0, plan.length_s),
        "answers": {str(p): quantiles([us for c, _, times in ended if c.percent == p for _, us in times])
                    for p in sorted({c.percent for c, _, _ in ended}, reverse=True)},
        "times": ratios(founds, base), "outcomes": {o: outcomes.count(o) for o in sorted(set(outcomes))},
        "at_death": window(ended, began + plan.dies_s, began + plan.dies_s + DEATH_S, others),
        "at_burst": window(ended, burst, burst + BURST_S, range(plan.hosts)),
        "reads_by_disk": sum(found.get("reads_by_disk", 0) for found in founds),
        "far": {key: sum(far[key] for far in fars) for key in (fars[0] if fars else ())},
    }


def is_wrong(found):
    """Whether the container's program, its client or its report says that something was not right."""
    far = found.get("far", {})
    return found["outcome"].startswith(("wrong", "failed")) or any(far.get(k) for k in ("verify_failures", "anomalies",
                                                                                         "corrupt"))


def _row(cells, widths):
    return "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def table(runs, variants):
    """Three tables in one text: memory, programs, and what happened."""
    found = {run["variant"]: run["whole"] for run in runs if "whole" in run}
    rows = [(v, found[v]) for v in variants if v in found]
    lines = ["memory in use, % of all hosts' (of containers and of what is lent)"]
    widths = (14, 8, 8, 11, 9, 11, 30)
    lines.append(_row(("variant", "mean", "median", "deviation", "fullest", "lent MiB", "by host"), widths))
    for v, w in rows:
        m = w["memory"]
        lines.append(_row((v, m["mean_pct"], m["median_pct"], m["deviation"], m["fullest_pct"], m["lent_mib_mean"],
                           " ".join(f"{p:.0f}" for p in m["hosts_pct"])), widths))
    lines.append("answers in us, and completion over `local`'s, by the part of the working set that may be local")
    widths = (14, 6, 10, 10, 10, 12, 12, 10)
    lines.append(_row(("variant", "part", "p50", "p99", "p999", "longest", "completion", "worst"), widths))
    for v, w in rows:
        for part, a in w["answers"].items():
            t = w["times"].get(part, {})
            cells = [f"{a[k]:,.0f}" for k in ("p50_us", "p99_us", "p999_us", "max_us")] if a else ["-"] * 4
            lines.append(_row((v, part, *cells, t.get("median", "-"), t.get("max", "-")), widths))
    lines.append("processors; longest answer in ms after a host died and after the hungry program came; slabs; the end")
    widths = (14, 8, 9, 9, 9, 8, 9)
    lines.append(_row(("variant", "busy %", "death", "hungry", "evicted", "late", "repairs"), widths) + "  ended")
    for v, w in rows:
        longest = [f"{w[k]['max_us'] / 1e3:.1f}" if w[k] else "-" for k in ("at_death", "at_burst")]
        ended = ", ".join(f"{n} {o}" for o, n in w["outcomes"].items())
        slabs = w["evicted_slabs"], w["evicted_late_slabs"], w["far"].get("repairs", "-")
        if w["services_oom"]:
            ended += f"; {w['services_oom']} services oom"
        lines.append(_row((v, w["processors_busy_pct"], *longest, *slabs), widths) + f"  {ended}")
    return "\n".join(lines)
