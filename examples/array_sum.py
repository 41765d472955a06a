"""Sums an array that is larger than memory, block by block, twice, and asks canvas for the block that comes next.

array_sum.py MIB. It works without the package `canvas`, and the package without canvas.
"""

import array
import mmap
import sys

try:
    import canvas
except ImportError:
    canvas = None

BLOCK = 1 << 20


def main(mib):
    memory = mmap.mmap(-1, mib << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    numbers = memoryview(memory).cast("Q")
    in_block = BLOCK // 8
    for block in range(mib):
        first = block * in_block
        numbers[first:first + in_block] = array.array("Q", [i * i % 1_000_003 for i in range(first, first + in_block)])
    asked = total = 0
    for turn in range(2):
        for block in range(mib):
            if canvas is not None and block + 1 < mib:
                try:
                    asked += canvas.prefetch(memory, (block + 1) * BLOCK, BLOCK) or 0
                except BlockingIOError:
                    pass  # the queue is full, and the pages would come too late
            first = block * in_block
            total += sum(numbers[first:first + in_block]) * (turn + 1)
    print("sum", total)
    managed = canvas is not None and canvas.version() is not None
    print(f"{asked} pages asked for" if managed else "without canvas", file=sys.stderr)


main(int(sys.argv[1]))
