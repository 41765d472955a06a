"""The canvas command: how to call it, its live segment, and what its stats file must say."""

import json
import os
import struct

MIB = 1 << 20
# First word of the tenant segment (canvas-shm); another value means another layout.
SEGMENT_MAGIC = 0x4341_4E56_4153_0001
# local_pages, local_pages_peak, pool_bytes, pool_bytes_peak, footprint_pages, footprint_pages_peak
SEGMENT_LIVE_OFFSET = 56
# What `--local N%` never goes below.
LOCAL_MIN_BYTES = 8 * MIB


class Segment:
    """Reads a running tenant's figures through the descriptor that `canvas run` holds."""

    def __init__(self):
        self.fd = -1

    def _find(self, pid):
        base = f"/proc/{pid}/fd"
        for name in os.listdir(base):
            if not os.readlink(f"{base}/{name}").startswith("/memfd:"):
                continue
            fd = os.open(f"{base}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            head = os.pread(fd, 8, 0)
            if len(head) == 8 and struct.unpack("<Q", head)[0] == SEGMENT_MAGIC:
                return fd
            os.close(fd)
        return -1

    def read(self, pid):
        """(local, local peak, pool, pool peak, footprint, footprint peak) in bytes, or None."""
        try:
            if self.fd < 0:
                self.fd = self._find(pid)
                if self.fd < 0:
                    return None
            v = struct.unpack("<6q", os.pread(self.fd, 48, SEGMENT_LIVE_OFFSET))
        except (OSError, struct.error):
            return None
        return (v[0] * 4096, v[1] * 4096, v[2], v[3], v[4] * 4096, v[5] * 4096)

    def pool(self, pid):
        v = self.read(pid)
        return None if v is None else max(v[2], 0)

    def close(self):
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def find(stats, name, default=None):
    """A counter, or a field of the report's top level (docs/STATS.md)."""
    return stats.get("counters", {}).get(name, stats.get(name, default))


def memory(stats, name, when="peak"):
    """`memory.NAME.now` or `.peak` in bytes, or None."""
    return stats.get("memory", {}).get(name, {}).get(when)


def load_stats(path):
    with open(path) as f:
        return json.load(f)


def slack_bytes(limit_bytes):
    """By how much local memory may pass its limit at any moment."""
    return max(limit_bytes // 100, 4 * MIB)


def check_stats(stats, limit_bytes, share_percent=None, paged=True):
    """Sentences about what is wrong with a finished run; an empty list when nothing is."""
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
        if limit and peak > limit + slack_bytes(limit):
            wrong.append(
                f"stats: local peak {peak / MIB:.1f} MiB is over the limit {limit / MIB:.1f} MiB "
                f"by more than {slack_bytes(limit) / MIB:.1f} MiB"
            )
    return wrong


def summary(stats):
    """A few figures for the test's line."""
    return "out %d in %d peak %.0f MiB" % (
        find(stats, "pages_out", 0),
        find(stats, "pages_in", 0),
        (memory(stats, "local_bytes") or 0) / MIB,
    )
