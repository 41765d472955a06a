"""What happens on the hosts of `bench/cluster`, and when: all of it follows from a seed."""

import dataclasses
import random

# Infiniswap's memory constraints: the part of a container's working set that it may have on its host, in %.
PERCENTS = (100, 75, 50)
SERVERS = ("redis", "memcached")
BATCH = ("rmat-pagerank", "quicksort", "snappy")
# One container of so many is a batch program.
BATCH_EVERY = 4
# Of a host's memory, what a scheduler gives away.
FULL = 0.85
# What batch programs are taken to last; and MiB a second of filling a server and reading all of it.
BATCH_S, FILL_MIB = 15, 25


@dataclasses.dataclass(frozen=True)
class Container:
    """A program with its data on a host; a server has a client for so many seconds once it is filled."""

    name: str
    kind: str
    mib: int
    percent: int
    host: int
    at_s: float
    seconds: float
    seed: int
    # MiB a second at which its client fills it; 0 for as fast as it can.
    pace: int = 0

    @property
    def is_server(self):
        return self.kind in SERVERS

    @property
    def until_s(self):
        """When it is thought to end."""
        return self.at_s + (self.mib / FILL_MIB + self.seconds if self.is_server else BATCH_S)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Containers, one of them `burst`, and a host that dies with what is on it and comes back."""

    seed: int
    hosts: int
    host_mib: int
    length_s: float
    containers: tuple
    burst: Container
    dies: int
    dies_s: float
    back_s: float

    def used_mib(self, host, at_s, limits=True):
        """What containers take there then: of their limits, or all that they want."""
        return used_mib(self.containers, host, at_s, limits)


def used_mib(containers, host, at_s, limits=True):
    return sum(c.mib * (c.percent if limits else 100) / 100 for c in containers
               if c.host == host and c.at_s <= at_s < c.until_s)


def _most(containers, host, begin_s, end_s):
    """The most that containers take there in a time."""
    moments = [begin_s, *(c.at_s for c in containers if begin_s < c.at_s < end_s)]
    return max(used_mib(containers, host, at_s) for at_s in moments)


def _place(rng, placed, c, hosts, host_mib):
    """A host at random of those that have room; None when none has."""
    room = [h for h in range(hosts)
            if _most(placed, h, c.at_s, c.until_s) + c.mib * c.percent / 100 <= FULL * host_mib]
    return dataclasses.replace(c, host=rng.choice(room)) if room else None


def make(seed, hosts, host_mib, count, length_s):
    """`count` containers, half of them there at the start, as many of each constraint; most are servers."""
    rng = random.Random(seed)
    percents = [PERCENTS[i % len(PERCENTS)] for i in range(count)]
    rng.shuffle(percents)
    placed = []
    for i, percent in enumerate(percents):
        turn = i // BATCH_EVERY
        kind = BATCH[turn % len(BATCH)] if i % BATCH_EVERY == BATCH_EVERY - 1 else SERVERS[(i + turn) % len(SERVERS)]
        is_early = i < count // 2
        at_s = rng.uniform(0, 0.06 if is_early else 0.5) * length_s
        share = rng.uniform(0.25, 0.5) if kind in SERVERS else rng.uniform(0.16, 0.25)
        c = Container(f"{kind}-{i}", kind, int(share * host_mib), percent, -1, round(at_s, 1),
                      round(rng.uniform(0.55, 0.85) * (length_s - at_s), 1), rng.randrange(1 << 30))
        if c := _place(rng, placed, c, hosts, host_mib):
            placed.append(c)
    burst = _burst(placed, hosts, host_mib, length_s, rng.randrange(1 << 30))
    placed.append(burst)
    dies_s = round(0.72 * length_s, 1)
    # The emptiest one lends most; of those on which something runs, where there is one.
    used = {h: used_mib(placed, h, dies_s) for h in range(hosts) if h != burst.host}
    dies = min(used, key=lambda h: (used[h] == 0, used[h]))
    return Plan(seed, hosts, host_mib, length_s, tuple(placed), burst, dies, dies_s, round(dies_s + 0.08 * length_s, 1))


def _burst(placed, hosts, host_mib, length_s, seed):
    """A program of the emptiest host that wants all that is left there."""
    burst = Container("burst", "redis", 0, 100, -1, round(0.4 * length_s, 1), round(0.15 * length_s, 1), seed, pace=48)
    end_s = burst.until_s + host_mib / FILL_MIB
    most = [_most(placed, h, burst.at_s, end_s) for h in range(hosts)]
    host = min(range(hosts), key=lambda h: most[h])
    return dataclasses.replace(burst, host=host, mib=max(int(FULL * host_mib - most[host]), host_mib // 8))
