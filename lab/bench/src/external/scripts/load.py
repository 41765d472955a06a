"""Clients of servers, and a program, that count their work in a given time and check all that they read.

load.py redis|memcached SOCKET KEYS SIZE SEED SETTLE SECONDS [steady|phases|diurnal]
load.py tables - KEYS SIZE SEED SETTLE SECONDS

The clients fill a server and read values with Zipf 1.2 popularity, with one write in twenty; 32 requests are
outstanding. Keys stored together, 32 at a time, are equally popular, and these runs are scattered. With `phases`
the popular keys change every 20 s; with `diurnal` there are pauses, so that a day of 40 s has a night with a tenth
of the requests. `tables` needs no server: it reads and changes rows in tables of Python objects, some of them more
often than others. The measurement takes SECONDS after SETTLE seconds of work, and begins at a round time of the
host's clock, so that two programs side by side measure the same seconds. The last line is the bench's answer.
"""

import json
import math
import random
import socket
import sys
import time

from protocol import Memcached, Redis, Values, answer, zipf

BATCH = 32
SKEW = 1.2
RUN = 32
# One request of this number is a write.
WRITES = 20
SHAPES = ("steady", "phases", "diurnal")
# Time after which other keys are popular, and length of a day, in seconds.
PHASE_S, DAY_S = 20, 40
# The measurement begins at a multiple of this, in seconds since 1970.
ROUND_S = 5
TICK_S = 0.25


class Count:
    """Operations in the measured time."""

    def __init__(self, settle, seconds):
        begin = time.time() + settle
        self.begin = math.ceil(begin / ROUND_S) * ROUND_S
        self.end, self.done, self.rates = self.begin + seconds, 0, []
        self.tick, self.before = self.begin + TICK_S, 0

    def add(self, n):
        """Counts `n` more operations; returns whether there is time for others."""
        now = time.time()
        if now < self.begin:
            return True
        self.done += n
        while now >= self.tick:
            self.rates.append([round(self.tick - self.begin, 3), (self.done - self.before) / TICK_S])
            self.tick, self.before = self.tick + TICK_S, self.done
        if now >= self.end:
            self.last = now
            return False
        return True

    def tell(self, answer):
        took = self.last - self.begin
        print(json.dumps({"answer": answer, "seconds": took, "ops_per_s": self.done / took, "rates": self.rates,
                          "measured_unix_s": [self.begin, self.last]}))


class Connection:
    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(120)
        self.sock.connect(path)
        self.buffer = bytearray(1 << 20)

    def ask(self, request, wanted):
        """Sends requests, and compares the answers byte by byte."""
        got = answer(self.sock, self.buffer, request, len(wanted))
        if len(got) < len(wanted):
            sys.exit("load: the server hung up")
        if got != wanted:
            sys.exit("load: the server answered something else than what was stored")


def shift(shape, keys):
    """Current offset of the popular keys."""
    return int(time.time() / PHASE_S) * (keys // 3) % keys if shape == "phases" else 0


def rest(shape, worked_s):
    """Sleeps according to the time of day: a tenth of the requests at night, all at noon."""
    if shape == "diurnal":
        activity = 0.55 + 0.45 * math.sin(2 * math.pi * time.time() / DAY_S)
        time.sleep(worked_s * (1 / activity - 1))


def serve(protocol, path, keys, size, seed, times, shape):
    link, values = Connection(path), Values(size, seed)
    versions = [0] * keys
    replies = [protocol.reply(key, values.value(key, 0)) for key in range(keys)]
    for first in range(0, keys, BATCH):
        batch = range(first, min(first + BATCH, keys))
        link.ask(b"".join([protocol.set(k, values.value(k, 0)) for k in batch]), protocol.STORED * len(batch))
    gets = [protocol.get(key) for key in range(keys)]
    draws = zipf(keys, 1 << 20, seed, SKEW, RUN)
    rng = random.Random(seed + 1)
    count, goes_on = Count(*times), True
    while goes_on:
        # A random part of the draws each time, so that they do not repeat in a cycle.
        at, ahead, began = rng.randrange(len(draws) - BATCH), shift(shape, keys), time.monotonic()
        for at in range(at, min(at + 200 * BATCH, len(draws) - BATCH), BATCH):
            batch = draws[at:at + BATCH]
            if ahead:
                batch = [(key + ahead) % keys for key in batch]
            request, wanted = [gets[k] for k in batch], [replies[k] for k in batch]
            for i in range(rng.randrange(WRITES), BATCH, WRITES):
                key = batch[i]
                versions[key] += 1
                value = values.value(key, versions[key])
                request[i], wanted[i] = protocol.set(key, value), protocol.STORED
                replies[key] = protocol.reply(key, value)
                # A key that occurs twice in a batch has the value it had then.
                for j in range(i + 1, BATCH):
                    if batch[j] == key:
                        wanted[j] = replies[key]
            link.ask(b"".join(request), b"".join(wanted))
            goes_on = count.add(BATCH)
            if not goes_on:
                break
        rest(shape, time.monotonic() - began)
    # Checks all values at the end.
    for first in range(0, keys, BATCH):
        batch = range(first, min(first + BATCH, keys))
        link.ask(b"".join([gets[k] for k in batch]), b"".join([replies[k] for k in batch]))
    count.tell(f"{keys} keys read back, 0 wrong")


def tables(keys, size, seed, times):
    """Rows in tables of 2,000; a few thousand reads and some writes in one table after another."""
    rows, values = 2000, Values(size, seed)
    made = []
    for first in range(0, keys, rows):
        made.append([[k, values.value(k, 0).decode("latin-1"), 0, k * 0.5] for k in range(first, first + rows)])
    draws = zipf(len(made), 1 << 16, seed, SKEW)
    rng = random.Random(seed + 1)
    places = [rng.randrange(rows) for _ in range(1 << 16)]
    count, goes_on = Count(*times), True
    while goes_on:
        number = draws[rng.randrange(len(draws))]
        table, first = made[number], number * rows
        at = rng.randrange(len(places) - 2000)
        for place in places[at:at + 2000]:
            row = table[place]
            if row[0] != first + place or int(row[1][:12]) != row[0] or row[3] != row[0] * 0.5:
                sys.exit(f"load: row {first + place} is not what it was")
            row[2] += 1
        goes_on = count.add(2000)
    for number, table in enumerate(made):
        for place, row in enumerate(table):
            key = number * rows + place
            if row[0] != key or row[1] != values.value(key, 0).decode("latin-1"):
                sys.exit(f"load: row {key} is not what it was")
    count.tell(f"{len(made) * rows} rows read back, 0 wrong")


def main(argv):
    kind, path = argv[:2]
    keys, size, seed = (int(word) for word in argv[2:5])
    times = [float(word) for word in argv[5:7]]
    if kind == "tables":
        tables(keys, size, seed, times)
    else:
        serve({"redis": Redis, "memcached": Memcached}[kind], path, keys, size, seed, times, (argv[7:] or SHAPES)[0])


if __name__ == "__main__":
    main(sys.argv[1:])
