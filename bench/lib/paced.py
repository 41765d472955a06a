#!/usr/bin/env python3
"""A client that asks a server at an even pace, and notes how long each answer took.

paced.py redis|memcached SOCKET RECORDS KEYS SIZE SEED RATE SECONDS FILL_BYTES_S

It fills the server, asks for values by the popularity of zipf 0.99, with one write in twenty, one request at a time and
RATE a second, and reads all values once more. Each answer is compared to the byte. The time of an answer runs from when
its request was due, so that who waits behind a slow one counts as well. RECORDS gets pairs of doubles, the second
(monotonic) at which an answer came and its time in us. One line of JSON says how long filling and checking took.

Exit codes: 0; 1 for an answer that is not what was stored; 3 when the server hung up.
"""

import array
import json
import os
import random
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lib.load import BATCH, WRITES, Memcached, Redis, Values, answer, zipf  # noqa: E402

WRONG, HUNG_UP = 1, 3
SKEW = 0.99
# A server that is silent for so long hangs.
SILENT_S = 120


class Client:
    def __init__(self, kind, path, keys, size, seed):
        self.protocol = {"redis": Redis, "memcached": Memcached}[kind]
        self.values, self.versions, self.seed = Values(size, seed), [0] * keys, seed
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(SILENT_S)
        self.socket.connect(path)
        self.buffer = bytearray(1 << 20)

    def set(self, key):
        return self.protocol.set(key, self.values.value(key, self.versions[key]))

    def reply(self, key):
        return self.protocol.reply(key, self.values.value(key, self.versions[key]))

    def ask(self, request, wanted):
        try:
            got = answer(self.socket, self.buffer, request, len(wanted))
        except ConnectionError:
            sys.exit(HUNG_UP)
        if len(got) < len(wanted):
            sys.exit(HUNG_UP)
        if got != wanted:
            print(f"paced: {bytes(got[:60])} instead of {wanted[:60]}", file=sys.stderr)
            sys.exit(WRONG)

    def batches(self):
        for first in range(0, len(self.versions), BATCH):
            yield range(first, min(first + BATCH, len(self.versions)))

    def fill(self, bytes_s):
        began, sent = time.monotonic(), 0
        for batch in self.batches():
            request = b"".join([self.set(k) for k in batch])
            self.ask(request, self.protocol.STORED * len(batch))
            sent += len(request)
            if bytes_s:
                time.sleep(max(0.0, began + sent / bytes_s - time.monotonic()))
        return time.monotonic() - began

    def work(self, rate, seconds, records):
        keys = len(self.versions)
        draws, rng = zipf(keys, 1 << 16, self.seed, skew=SKEW), random.Random(self.seed + 1)
        began = time.monotonic()
        for i in range(int(rate * seconds)):
            key, due = draws[rng.randrange(len(draws))], began + i / rate
            if rng.randrange(WRITES) == 0:
                self.versions[key] += 1
                request, wanted = self.set(key), self.protocol.STORED
            else:
                request, wanted = self.protocol.get(key), self.reply(key)
            if (early := due - time.monotonic()) > 0:
                time.sleep(early)
                # When the sleep is over, not when it was to be: a late wake-up of this client is not the server's.
                due = max(due, time.monotonic())
            self.ask(request, wanted)
            now = time.monotonic()
            records.extend((now, (now - due) * 1e6))

    def check(self):
        began = time.monotonic()
        for batch in self.batches():
            self.ask(b"".join([self.protocol.get(k) for k in batch]), b"".join([self.reply(k) for k in batch]))
        return time.monotonic() - began


def main():
    kind, path, out, *numbers = sys.argv[1:]
    keys, size, seed, rate, seconds, bytes_s = map(float, numbers)
    client, records = Client(kind, path, int(keys), int(size), int(seed)), array.array("d")
    try:
        fill_s = client.fill(bytes_s)
        client.work(rate, seconds, records)
        check_s = client.check()
        print(json.dumps({"fill_s": round(fill_s, 3), "check_s": round(check_s, 3), "checked": int(keys)}))
    finally:
        with open(out, "wb") as f:
            records.tofile(f)


if __name__ == "__main__":
    main()
