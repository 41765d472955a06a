"""Checks of the stats file of `canvas run`."""

import json

MIB = 1 << 20
# Minimum of `--local N%`.
LOCAL_MIN_BYTES = 8 * MIB


def find(stats, name, default=None):
    """Value of a counter, or of a field of the report's top level (docs/STATS.md)."""
    return stats.get("counters", {}).get(name, stats.get(name, default))


def memory(stats, name, when="peak"):
    """`memory.NAME.now` or `.peak` in bytes, or None."""
    return stats.get("memory", {}).get(name, {}).get(when)


def load_stats(path):
    with open(path) as f:
        return json.load(f)


def slack_bytes(limit_bytes, stats=None):
    """Bytes by which local memory may exceed its limit at any moment.

    Known gap (SEMANTICS.md, "Known gaps", G14): memory shared by a fork is measured, not charged page by
    page, so while parent and child write to shared pages the sum may exceed the limit by as much again for
    the length of a measurement (a larger family by more, for one sample). The promise holds for trees that do
    not fork and write.
    """
    slack = max(limit_bytes // 100, 4 * MIB)
    if stats is not None and find(stats, "forks", 0) > 0:
        slack += limit_bytes
    return slack


def check_stats(stats, limit_bytes, share_percent=None, paged=True):
    """Sentences about errors of a finished run; an empty list if there are none."""
    wrong = []
    for key in ("verify_failures", "anomalies"):
        value = find(stats, key)
        if value is None:
            wrong.append(f"stats: no {key}")
        elif value != 0:
            wrong.append(f"stats: {key} = {value}, expected 0")
    pages_out = find(stats, "pages_out")
    if pages_out is None:
        wrong.append("stats: no pages_out")
    elif paged and pages_out <= 0:
        wrong.append("stats: pages_out = 0: the program never paged, the test shows nothing")
    peak = memory(stats, "local_bytes")
    if peak is None:
        wrong.append("stats: no memory.local_bytes.peak")
    else:
        limit = limit_bytes
        if share_percent is not None:
            limit = max(LOCAL_MIN_BYTES, (memory(stats, "footprint_bytes") or 0) * share_percent // 100)
        slack = slack_bytes(limit, stats)
        if find(stats, "forks", 0) > 0:
            # The accounting of a family runs ahead of its memory: between two measurements each minor fault
            # counts as a copy, and on a busy machine measurements are late. Its true memory is sampled
            # (harness.py), and has the narrow bound.
            slack += 3 * limit
        if limit and peak > limit + slack:
            wrong.append(
                f"stats: local peak {peak / MIB:.1f} MiB is over the limit {limit / MIB:.1f} MiB "
                f"by more than {slack / MIB:.1f} MiB"
            )
    return wrong


def check_deep(stats):
    """Like check_stats, for a run that must have used far memory beyond its pool."""
    wrong = []
    for key in ("pages_demoted", "faults_beyond_pool"):
        if find(stats, key, 0) <= 0:
            wrong.append(f"stats: {key} = 0: nothing went beyond the pool, the test shows nothing")
    if find(stats, "beyond_pool_failures", 0) != 0:
        wrong.append(f"stats: beyond_pool_failures = {find(stats, 'beyond_pool_failures')}, expected 0")
    return wrong


def summary(stats):
    """Some figures for the test's line."""
    if find(stats, "pages_demoted", 0):
        return "out %d in %d demoted %d promoted %d read %d peak %.0f MiB" % (
            find(stats, "pages_out", 0),
            find(stats, "pages_in", 0),
            find(stats, "pages_demoted", 0),
            find(stats, "pages_promoted", 0),
            find(stats, "faults_beyond_pool", 0),
            (memory(stats, "local_bytes") or 0) / MIB,
        )
    return "out %d in %d peak %.0f MiB" % (
        find(stats, "pages_out", 0),
        find(stats, "pages_in", 0),
        (memory(stats, "local_bytes") or 0) / MIB,
    )
