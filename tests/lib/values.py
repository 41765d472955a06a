"""Keys, values that can be recomputed, and zipf-like choice of keys."""

import bisect
import itertools
import random

POOL_BYTES = 4 << 20


class Values:
    """The value of (key, version) is a function of both, so any answer can be checked.

    Compressible about 2.5:1: short runs from a small alphabet between random bytes.
    """

    def __init__(self, seed, size_bytes):
        rng = random.Random(seed)
        parts, total = [], 0
        words = [rng.randbytes(16) for _ in range(64)]
        while total < POOL_BYTES:
            parts.append(rng.randbytes(12))
            parts.append(rng.choice(words) + rng.choice(words)[:6])
            total += 34
        self.pool = b"".join(parts)
        self.size = size_bytes
        self.span = len(self.pool) - size_bytes

    def get(self, key, version):
        head = b"%d:%d:" % (key, version)
        at = (key * 2654435761 + version * 40503 + 12345) % self.span
        return head + self.pool[at : at + self.size - len(head)]


class Zipf:
    """Ranks 0..n-1 with P(rank) ~ 1/(rank+1)^theta, scattered over the keys."""

    def __init__(self, n, theta=0.99, seed=1):
        self.n = n
        self.rng = random.Random(seed)
        self.cdf = list(itertools.accumulate(1.0 / (i + 1) ** theta for i in range(n)))
        order = list(range(n))
        random.Random(seed ^ 0x5EED).shuffle(order)
        self.order = order

    def next(self):
        return self.order[bisect.bisect_left(self.cdf, self.rng.random() * self.cdf[-1])]
