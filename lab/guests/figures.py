"""Figures of the bench over guests: a guest's counters, the host's memory, rates and dips."""

import math
import re
import statistics

PAGE = 4096


def percentile(sorted_values, share):
    """The smallest value that is not exceeded by `share` of the values; None for no values."""
    if not sorted_values:
        return None
    return sorted_values[max(0, math.ceil(share * len(sorted_values)) - 1)]


def rates(done, batch, bin_s=1.0):
    """Operations a second in each complete bin, from [(second of its end, us)] of batches."""
    if not done:
        return []
    counts = [0] * int(done[-1][0] / bin_s)
    for end_s, _ in done:
        if int(end_s / bin_s) < len(counts):
            counts[int(end_s / bin_s)] += batch
    return [round(n / bin_s) for n in counts]


def summary(done, batch, since_s=0.0):
    """Operations a second, and the latency of batches, of those that ended after `since_s`."""
    kept = [(end_s, us) for end_s, us in done if end_s >= since_s]
    times = sorted(us for _, us in kept)
    if not times:
        return {"ops_s": 0, "p50_us": None, "p99_us": None, "longest_us": None}
    return {"ops_s": round(len(kept) * batch / (kept[-1][0] - since_s)), "p50_us": round(percentile(times, 0.5)),
            "p99_us": round(percentile(times, 0.99)), "longest_us": round(times[-1])}


def dip_pct(per_second, began_s, ended_s, wide=3):
    """Largest drop of the rate over `wide` seconds from `began_s` to `ended_s`, relative to the median
    before, in %."""
    before, within = per_second[:began_s], per_second[began_s:ended_s]
    if not before or len(within) < wide:
        return None
    usual = statistics.median(before)
    least = min(statistics.fmean(within[i:i + wide]) for i in range(len(within) - wide + 1))
    return round(100 * (1 - least / usual), 1) if usual else None


def recovered_s(per_second, usual, share=0.9, wide=3):
    """The first second after which the rate over `wide` seconds reaches `share` of `usual`; None if it never
    does."""
    for i in range(len(per_second) - wide + 1):
        if statistics.fmean(per_second[i:i + wide]) >= share * usual:
            return i
    return None


# Commands that print all counters of a guest at once.
COUNTERS = ("grep -E '^(pswpin|pswpout|zswpin|zswpout|zswpwb|pgmajfault) ' /proc/vmstat; grep '^cpu ' /proc/stat; "
            "grep -E '^(MemAvailable|MemFree|SwapTotal|SwapFree|SwapCached|Zswap):' /proc/meminfo")


def counters(said):
    """Parses the output of COUNTERS: counts, jiffies of processors (`cpu`, in all, and `iowait`), and memory
    in KiB."""
    found = {}
    for line in said.splitlines():
        name, *values = line.split()
        numbers = [int(v) for v in values if v.isdigit()]
        if name == "cpu":
            # Guest time is part of user time.
            found["cpu"], found["iowait"] = sum(numbers[:8]), numbers[4]
        elif numbers:
            found[name.rstrip(":")] = numbers[0]
    return found


def between(before, after, seconds):
    """Table II's figures of an interval."""
    processors = max(1, after["cpu"] - before["cpu"])
    return {"iowait_pct": round(100 * (after["iowait"] - before["iowait"]) / processors, 1),
            "pages_in_s": round((after["pswpin"] - before["pswpin"]) / seconds),
            "pages_out_s": round((after["pswpout"] - before["pswpout"]) / seconds),
            "zswap_in_s": round((after.get("zswpin", 0) - before.get("zswpin", 0)) / seconds)}


def slots(now):
    """Swap slots in use."""
    return (now["SwapTotal"] - now["SwapFree"]) * 1024 // PAGE


def dead_pct(stored_pages, used_slots):
    """Share of a disk's stored data that nothing needs any more, in %; None if it stores nothing."""
    return round(100 * max(0, stored_pages - used_slots) / stored_pages, 1) if stored_pages else None


def swapped_pages(now):
    """Swap slots in use, without those of pages that are also in memory."""
    return (now["SwapTotal"] - now["SwapFree"] - now.get("SwapCached", 0)) * 1024 // PAGE


def memory_bytes(smaps_rollup, kind):
    """Anon or Shmem memory of a process; shared memory is divided among its processes."""
    return sum(int(n) << 10 for n in re.findall(rf"^Pss_{kind}:\s+(\d+) kB", smaps_rollup, re.M))
