"""A client of a guest's redis or memcached over TCP: checks all that it reads, and records the latency of
batches."""

import random
import socket
import threading
import time

from .protocol import Memcached, Redis, Values, answer, zipf

PROTOCOLS = {"redis": Redis, "memcached": Memcached}
# YCSB's values.
SKEW, VALUE_BYTES = 0.99, 1000
FILL_BATCH = 64


class Wrong(OSError):
    """An answer differs from the stored value."""


class Store:
    """The keys of a server, and the expected value of each."""

    def __init__(self, kind, port, keys, seed=1, batch=16):
        self.protocol, self.keys, self.seed, self.batch = PROTOCOLS[kind], keys, seed, batch
        self.values, self.versions = Values(VALUE_BYTES, seed), [0] * keys
        self.buffer, self.checked, self.replies = bytearray(1 << 20), 0, {}
        self.socket = self._connect(port)
        self.draws = {"zipf": zipf(keys, 1 << 18, seed, SKEW),
                      "uniform": random.Random(seed).choices(range(keys), k=1 << 18)}

    def _connect(self, port, wait_s=60):
        """Connects. qemu accepts connections before the guest's server listens, so only an answer counts."""
        end, probe = time.monotonic() + wait_s, self.protocol.get(9_999_999)
        while True:
            try:
                s = socket.create_connection(("127.0.0.1", port), 5)
                s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                s.sendall(probe)
                if s.recv(100) in (b"$-1\r\n", b"END\r\n"):
                    s.settimeout(120)
                    return s
                s.close()
            except OSError:
                pass
            if time.monotonic() > end:
                raise OSError("the guest's server does not answer")
            time.sleep(0.1)

    def ask(self, request, wanted):
        """Sends requests, and compares the answers byte by byte."""
        got = answer(self.socket, self.buffer, request, len(wanted))
        if len(got) < len(wanted):
            raise OSError("the guest's server hung up")
        if got != wanted:
            raise Wrong("a value is not what was stored")

    def fill(self, first=0, last=None):
        """Stores the keys of a range; returns keys a second."""
        last, began = self.keys if last is None else last, time.monotonic()
        for at in range(first, last, FILL_BATCH):
            batch = range(at, min(at + FILL_BATCH, last))
            self.ask(b"".join([self.protocol.set(k, self.values.value(k, self.versions[k])) for k in batch]),
                     self.protocol.STORED * len(batch))
        return (last - first) / (time.monotonic() - began)

    def read(self, keys):
        keys = list(keys)
        for at in range(0, len(keys), FILL_BATCH):
            batch = keys[at:at + FILL_BATCH]
            self.ask(b"".join([self.protocol.get(k) for k in batch]), b"".join([self._reply(k) for k in batch]))
            self.checked += len(batch)

    def _reply(self, key):
        version, reply = self.replies.get(key, (None, None))
        if version != self.versions[key]:
            # Cached, so that the client needs little of the processors that the guest needs.
            version = self.versions[key]
            reply = self.protocol.reply(key, self.values.value(key, version))
            self.replies[key] = version, reply
        return reply

    def _batch(self, rng, draws, writes, below):
        at = rng.randrange(len(draws) - self.batch)
        request, wanted = [], []
        for key in draws[at:at + self.batch]:
            key %= below
            if rng.random() < writes:
                self.versions[key] += 1
                request.append(self.protocol.set(key, self.values.value(key, self.versions[key])))
                wanted.append(self.protocol.STORED)
            else:
                request.append(self.protocol.get(key))
                wanted.append(self._reply(key))
                self.checked += 1
        return b"".join(request), b"".join(wanted)

    def work(self, seconds, popularity, writes=0.0, stop=None, each=None, below=None):
        """Sends requests for some time, or until `stop` is set; returns [(second of its end, its time in us)]
        of the batches.

        Keys are those below `below`. Calls `each` before each batch, with the seconds elapsed.
        """
        rng, draws, done = random.Random(self.seed + 1), self.draws[popularity], []
        stop, below = stop or threading.Event(), below or self.keys
        began = now = time.monotonic()
        while now - began < seconds and not stop.is_set():
            if each:
                each(now - began)
            request, wanted = self._batch(rng, draws, writes, below)
            before = time.monotonic()
            self.ask(request, wanted)
            now = time.monotonic()
            done.append((now - began, (now - before) * 1e6))
        return done
