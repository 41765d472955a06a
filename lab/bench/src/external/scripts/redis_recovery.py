"""Measures how soon redis regains its speed when local memory becomes free.

redis_recovery.py sibling DIR MIB             fills and uses MIB once DIR/fill exists, until DIR/exit exists
redis_recovery.py client exits PORT KEYS DIR  a client; the sibling exits while it reads
redis_recovery.py client raised PORT KEYS CANVAS BYTES
                                              a client; `canvas set local=BYTES` while it reads

The client reads random keys, 8 at a time, and checks each value. "seconds" is the time from the release of memory
until the throughput reaches 80 % of its final value, and "ops_per_s" the throughput in the first second after the
release.
"""

import json
import mmap
import os
import random
import socket
import subprocess
import sys
import time

DEPTH = 8
VALUE_BYTES = 1000
# Duration of the reads before local memory becomes free, and after it.
BEFORE_S, AFTER_S = 2.0, 5.0
# Throughput is averaged over windows of this length, in steps.
WINDOW_S, STEP_S = 0.2, 0.02
BACK = 0.8


def value(key):
    """A value; half of it is random, so that it compresses as text does."""
    return (random.Random(key).randbytes(VALUE_BYTES // 2).hex()).encode()[:VALUE_BYTES]


def wait_for(path, parent=None):
    while not os.path.exists(path):
        if parent not in (None, os.getppid()):
            sys.exit(0)
        time.sleep(0.02)


def sibling(home, mib):
    parent = os.getppid()
    wait_for(os.path.join(home, "fill"), parent)
    n = int(mib) * 256
    m = mmap.mmap(-1, n * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for i in range(n):
        m[i * 4096:i * 4096 + 512] = random.Random(i).randbytes(512)
    open(os.path.join(home, "filled"), "w").close()
    at = 0
    while not os.path.exists(os.path.join(home, "exit")) and os.getppid() == parent:
        for _ in range(200):
            at = (at + 1) % n
            m[at * 4096] = (m[at * 4096] + 1) % 256
        time.sleep(0.002)


class Client:
    def __init__(self, port, keys):
        self.s = socket.create_connection(("127.0.0.1", port))
        self.f = self.s.makefile("rb")
        self.keys, self.random = keys, random.Random(keys)
        self.values = {}

    def send(self, commands):
        out = []
        for words in commands:
            out.append(b"*%d\r\n" % len(words))
            out.extend(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)
        self.s.sendall(b"".join(out))

    def load(self):
        for at in range(0, self.keys, 100):
            keys = range(at, min(at + 100, self.keys))
            self.send((b"SET", b"key:%d" % k, value(k)) for k in keys)
            for k in keys:
                assert self.f.readline() == b"+OK\r\n", k

    def read(self, seconds):
        """Reads for some time; returns the time at which each batch was answered."""
        begun, times = time.monotonic(), []
        while not times or times[-1] < begun + seconds:
            keys = [self.random.randrange(self.keys) for _ in range(DEPTH)]
            self.send((b"GET", b"key:%d" % k) for k in keys)
            for k in keys:
                head = self.f.readline()
                got = self.f.read(int(head[1:]) + 2)
                # Generating every value again would be the slowest part.
                if k % 64 == 0:
                    assert got[:-2] == value(k), k
            times.append(time.monotonic())
        return times

    def pid(self):
        self.send([(b"INFO", b"server")])
        text = self.f.read(int(self.f.readline()[1:]) + 2).decode()
        return next(int(line.split(":")[1]) for line in text.splitlines() if line.startswith("process_id:"))


def rates(times, begun, end):
    """Throughput around each time."""
    out, first = [], 0
    at = begun
    while at + WINDOW_S <= end:
        while first < len(times) and times[first] <= at:
            first += 1
        last = first
        while last < len(times) and times[last] <= at + WINDOW_S:
            last += 1
        out.append((at + WINDOW_S / 2 - begun, (last - first) * DEPTH / WINDOW_S))
        at += STEP_S
    return out


def back_after(looks):
    """End of the last window below the threshold; short drops by the scheduler do not count."""
    back, missed = 0.0, 0
    for at, is_back in looks:
        missed = 0 if is_back else missed + 1
        if missed * STEP_S >= WINDOW_S:
            back = at + WINDOW_S / 2
    return back


def raise_limit(canvas, pid, limit):
    lines = subprocess.run([canvas, "status", "--json"], capture_output=True, text=True).stdout.splitlines()
    for line in lines:
        run = json.loads(line)
        if pid in run.get("processes", []):
            subprocess.run([canvas, "set", str(run["pid"]), f"local={limit}"], check=True)
            return
    # Without a limit there is nothing to raise.


def client(how, port, keys, *more):
    c = Client(int(port), int(keys))
    c.load()
    if how == "exits":
        home, = more
        open(os.path.join(home, "fill"), "w").close()
        wait_for(os.path.join(home, "filled"))
    else:
        canvas, limit = more
        pid = c.pid()
    c.read(BEFORE_S)
    if how == "exits":
        open(os.path.join(home, "exit"), "w").close()
        # The sibling polls every 2 ms, and exits some milliseconds later.
    else:
        raise_limit(canvas, pid, limit)
    moment, moment_unix_s = time.monotonic(), time.time()
    times = c.read(AFTER_S)
    all_rates = rates(times, moment, moment + AFTER_S)
    late = sorted(rate for at, rate in all_rates if at > AFTER_S - 2)
    full = late[len(late) // 2]
    back = back_after([(at, rate >= BACK * full) for at, rate in all_rates if at <= AFTER_S - 2])
    first = sum(moment <= t < moment + 1 for t in times) * DEPTH
    print(json.dumps({
        "answer": f"{keys} keys of {VALUE_BYTES} bytes", "seconds": round(back, 3), "ops_per_s": first,
        "rates": [(round(at, 2), round(rate)) for at, rate in all_rates[::13]],
        "measured_unix_s": (moment_unix_s, moment_unix_s + AFTER_S)}))


if __name__ == "__main__":
    {"sibling": sibling, "client": client}[sys.argv[1]](*sys.argv[2:])
