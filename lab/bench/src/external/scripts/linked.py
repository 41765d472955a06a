"""Traverses linked Python objects in random order, repeatedly: linked.py COUNT ROUNDS.

Prints the time of each round in ms, and checks what it reads.
"""

import random
import sys
import time


class Node:
    __slots__ = ("next", "number", "rest")


def make(count):
    """Makes `count` linked nodes; returns the first."""
    nodes = [Node() for _ in range(count)]
    for i, node in enumerate(nodes):
        node.rest = bytes(random.Random(i).randbytes(400)) + b"." * 600
    order = list(range(count))
    random.Random(7).shuffle(order)
    for place, i in enumerate(order):
        nodes[i].number = place
        nodes[i].next = nodes[order[place + 1]] if place + 1 < count else None
    return nodes[order[0]]


def main(count, rounds):
    first = make(count)
    print("ready", flush=True)
    for r in range(rounds):
        began, node, i = time.monotonic(), first, 0
        while node is not None:
            if node.number != i or node.rest[-1] != 46:
                sys.exit(f"node {i} is not what it was")
            node, i = node.next, i + 1
        if i != count:
            sys.exit(f"{i} of {count} nodes")
        print(f"round {r}: {(time.monotonic() - began) * 1e3:.1f} ms", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
