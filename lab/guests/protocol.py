"""Shared code of clients of key-value servers: self-describing values, and two protocols."""

import itertools
import random


class Values:
    """The value of each key in each version: half of it is noise."""

    def __init__(self, size, seed):
        self.size, self.noise = size, random.Random(seed).randbytes(1 << 20)

    def value(self, key, version):
        half = self.size // 2
        at = (key * 7919 + version * 104729) % (len(self.noise) - half)
        head = b"%012d.%08d." % (key, version)
        return (head + self.noise[at:at + half - len(head)]).ljust(self.size, b".")


def zipf(n, draws, seed, skew, run=1):
    """`draws` Zipf-distributed draws of `n` things; runs of `run` things are scattered."""
    rng = random.Random(seed)
    runs = [range(first, min(first + run, n)) for first in range(0, n, run)]
    rng.shuffle(runs)
    order = list(itertools.chain(*runs))
    weights = itertools.accumulate((rank + 1) ** -skew for rank in range(n))
    return rng.choices(order, cum_weights=list(weights), k=draws)


class Redis:
    @staticmethod
    def get(key):
        return b"*2\r\n$3\r\nGET\r\n$8\r\nk%07d\r\n" % key

    @staticmethod
    def set(key, value):
        return b"*3\r\n$3\r\nSET\r\n$8\r\nk%07d\r\n$%d\r\n%b\r\n" % (key, len(value), value)

    @staticmethod
    def reply(_key, value):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    STORED = b"+OK\r\n"


class Memcached:
    @staticmethod
    def get(key):
        return b"get k%07d\r\n" % key

    @staticmethod
    def set(key, value):
        return b"set k%07d 0 0 %d\r\n%b\r\n" % (key, len(value), value)

    @staticmethod
    def reply(key, value):
        return b"VALUE k%07d 0 %d\r\n%b\r\nEND\r\n" % (key, len(value), value)
    STORED = b"STORED\r\n"


def answer(sock, buffer, request, size):
    """Sends a request and returns `size` bytes of the answer; fewer if the server closes the connection."""
    sock.sendall(request)
    view, have = memoryview(buffer)[:size], 0
    while have < size:
        n = sock.recv_into(view[have:])
        if n == 0:
            break
        have += n
    return view[:have]
