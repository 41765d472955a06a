"""Makes data files from a seed.

make_data.py higgs FILE ROWS SEED      float32, 28 features after the label, one row after the other
make_data.py blobs FILE ROWS SEED      float32, 32 features
make_data.py edges FILE VERTICES SEED  text, "from to" a line: an RMAT graph, 8 edges a vertex
"""

import sys

import numpy as np

CHUNK_ROWS = 100_000


def chunks(rows):
    for at in range(0, rows, CHUNK_ROWS):
        yield min(CHUNK_ROWS, rows - at)


def higgs(f, rows, seed):
    """Data like the HIGGS set (Baldi et al. 2014): 21 measured features, 7 derived from them, two classes."""
    rng = np.random.default_rng(seed)
    for n in chunks(rows):
        x = np.empty((n, 29), np.float32)
        low = rng.normal(size=(n, 21)).astype(np.float32)
        # Momenta are positive and skewed; jet tags have few values.
        low[:, 0::4] = np.exp(low[:, 0::4] * 0.5)
        low[:, 8:21:4] = np.round(np.abs(low[:, 8:21:4]))
        x[:, 1:22] = low
        for i in range(7):
            a, b, c = low[:, i], low[:, (3 * i + 5) % 21], low[:, (5 * i + 2) % 21]
            x[:, 22 + i] = np.sqrt(a * a + b * b + np.abs(a * c))
        score = x[:, 22] - x[:, 24] + 0.5 * low[:, 1] * low[:, 5] + rng.normal(size=n)
        x[:, 0] = score > 0
        # The original has about this number of digits.
        f.write(np.round(x, 4).tobytes())


def blobs(f, rows, seed):
    """Points around 16 well-separated centres."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(-10, 10, size=(16, 32)).astype(np.float32)
    for n in chunks(rows):
        x = centres[rng.integers(0, 16, n)] + rng.standard_normal((n, 32), dtype=np.float32)
        f.write(np.round(x, 3).tobytes())


def edges(f, vertices, seed):
    """An RMAT graph with Graph500's probabilities; no loops, no repeated edges."""
    rng = np.random.default_rng(seed)
    bits = max(4, int(np.ceil(np.log2(vertices))))
    count = 8 << bits
    a, b, c = 0.57, 0.19, 0.19
    source, target = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for _ in range(bits):
        u = rng.random(count)
        right = (u >= a) & (u < a + b) | (u >= a + b + c)
        down = u >= a + b
        source, target = source * 2 + down, target * 2 + right
    both = np.unique((source << 32) | target)
    both = both[(both >> 32) != (both & 0xFFFFFFFF)]
    for part in np.array_split(both, max(1, len(both) // CHUNK_ROWS)):
        f.write("".join(f"{e >> 32} {e & 0xFFFFFFFF}\n" for e in part.tolist()).encode())


def main():
    make = {"higgs": higgs, "blobs": blobs, "edges": edges}[sys.argv[1]]
    with open(sys.argv[2], "wb") as f:
        make(f, int(sys.argv[3]), int(sys.argv[4]))


if __name__ == "__main__":
    main()
