#!/usr/bin/env python3
"""TMO's loop (Senpai; Weiner et al., ASPLOS '22, section 3.3) over the kernel's reclaim.

senpai.py GROUP STATE SIGNAL

Each period it takes from GROUP current memory x STEP x max(0, 1 - signal / target). TMO has STEP at 0.0005 and periods
of 6 s, for services that run for weeks; here a period is a tenth of a second, and STEP a hundredth, which is as fast as
`canvas run --slo` may be. The target is in STATE, 0 for none. SIGNAL is `faults` (the group's major faults by what one
takes, over the rest of its processor time: what `--slo` goes by, too) or `psi` (the part of the time that the kernel
says is lost, /proc/pressure/memory: of the whole host, so nobody else may page).
"""

import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lib.host import MIB, Group, controller, read  # noqa: E402
from lib.load import COST, RECLAIMED, SIGNAL, STOP, TARGET, State  # noqa: E402

PERIOD_S, STEP = 0.1, 0.01
# What was measured counts half after so long (that of `--slo`).
HALF_LIFE_S = 1.5
# Like `--slo` it leaves a program a tenth of all that it has.
KEPT = 0.1


def cpu_ns(pids):
    """Processor time of all threads."""
    total = 0
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                total += int((read(f"/proc/{pid}/task/{thread}/schedstat").split() or [0])[0])
        except OSError:
            continue
    return total


def stalled_us():
    for line in read("/proc/pressure/memory").splitlines():
        if line.startswith("some"):
            return int(line.split("total=")[1])
    return 0


class Signal:
    """The slowdown of the last seconds."""

    def __init__(self, group, kind, cost_ns):
        self.group, self.kind, self.cost_ns = group, kind, cost_ns
        self.paging, self.rest = 0.0, 0.0
        self.before = self.look()

    def look(self):
        if self.kind == "psi":
            return stalled_us() * 1000, time.monotonic_ns()
        return self.group.major_faults() * self.cost_ns, cpu_ns(self.group.pids())

    def now(self, elapsed_s):
        after = self.look()
        paging, all_of_it = (max(b - a, 0) for a, b in zip(self.before, after, strict=True))
        self.before = after
        left = 0.5 ** (elapsed_s / HALF_LIFE_S)
        self.paging = self.paging * left + paging
        self.rest = self.rest * left + max(all_of_it - paging, 0)
        return self.paging / self.rest if self.rest > 1e5 else 0.0


def main():
    path, state, kind = sys.argv[1:]
    group = Group.__new__(Group)
    group.path, group.version = path, controller("memory")[1]
    state = State(state)
    signal = Signal(group, kind, state[COST])
    last, most, owed = time.monotonic(), 0, 0.0
    while not state[STOP]:
        time.sleep(PERIOD_S)
        now = time.monotonic()
        slowdown, last = signal.now(now - last), now
        state[SIGNAL] = slowdown
        target, usage = state[TARGET], group.usage()
        most = max(most, usage)
        if target <= 0 or usage < most * KEPT or usage < 8 * MIB:
            continue
        owed += usage * STEP * max(0.0, 1 - slowdown / target)
        if owed >= 32 * 4096:
            before = group.usage()
            group.reclaim(int(owed))
            state[RECLAIMED] += max(0, before - group.usage())
            owed = 0.0
    os._exit(0)


if __name__ == "__main__":
    main()
