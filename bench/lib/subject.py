"""A program at work, whose work is counted; and two of them side by side."""

import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time

from lib.host import read
from lib.load import DONE, IS_FILLED, STOP, State
from lib.senpai import cpu_ns

LOAD = os.path.join(os.path.dirname(os.path.abspath(__file__)), "load.py")
# Keys and bytes of each value at scale 1.
PROGRAMS = {"redis": (160_000, 1024), "memcached": (160_000, 1024), "tables": (300_000, 512)}
# How long each program of a pair stays on a processor.
TURN_S = 0.5
FILL_S = 240


def tree(pid):
    """A process and all its descendants."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = re.match(r".*\) \S (\d+) ", read(f"/proc/{name}/stat").replace("\n", " "))
            if found:
                children.setdefault(int(found[1]), []).append(int(name))
    all_of_them = [pid]
    for one in all_of_them:
        all_of_them += children.get(one, [])
    return all_of_them


def anonymous(pids, field="RssAnon"):
    """Anonymous memory of processes, in bytes."""
    found = (re.search(rf"{field}:\s+(\d+) kB", read(f"/proc/{pid}/status")) for pid in pids)
    return sum(int(f[1]) << 10 for f in found if f)


def swapped(pids):
    return anonymous(pids, "VmSwap")


def pin(pids, processor):
    for pid in pids:
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {processor})
        except OSError:
            continue


class Wrong(Exception):
    """The program, or its client, did not do what it should: its figures count nowhere."""


class Subject:
    """One of PROGRAMS, and its client."""

    def __init__(self, host, program, place, prefix=(), group=None, scale=1.0, name=None, environment=None,
                 shape="steady"):
        self.host, self.program, self.name, self.shape = host, program, name, shape
        keys, self.size = PROGRAMS[program]
        self.keys, self.canvas = int(keys * scale), prefix[0] if prefix else None
        home = os.path.join(place, host.unique(program))
        os.mkdir(home)
        socket, self.path = os.path.join(home, "s"), os.path.join(home, "state")
        self.state = State(self.path, is_new=True)
        self.said = open(os.path.join(home, "said"), "w+")
        argv = {
            "redis": ["redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", home],
            "memcached": ["memcached", "-s", socket, "-m", "2048", "-t", "1", "-c", "64", "-u", "root",
                          # Its crawler looks for expired items, and nothing expires here. A minute after the start it
                          # touches all there is, whatever is measured just then.
                          "-o", "no_lru_crawler"],
            "tables": self._load("tables", "-"),
        }[program]
        if not shutil.which(argv[0]):
            sys.exit(f"{host.name}: {argv[0]} is not installed")
        self.server = host.start([*prefix, *argv], stdout=self.said, stderr=self.said,
                                 preexec_fn=group.join if group else None, env=environment)
        self.client, self.others = None, []
        if program != "tables":
            self._wait(lambda: os.path.exists(socket), "listen")
            self.client = host.start(self._load(program, socket), stdout=self.said, stderr=self.said)

    def _load(self, kind, socket):
        return [sys.executable, LOAD, kind, socket, self.path, str(self.keys), str(self.size), "1",
                self.shape]

    def _wait(self, is_there, what):
        end = time.monotonic() + FILL_S
        while not is_there():
            self.check()
            if time.monotonic() > end:
                raise Wrong(f"{self.program} did not {what} in {FILL_S} s")
            time.sleep(0.02)

    def tail(self):
        self.said.flush()
        return read(self.said.name)[-600:].strip()

    def check(self):
        for child in filter(None, (self.server, self.client)):
            if child.poll() is not None:
                raise Wrong(f"{self.program} ended with {child.returncode}: {self.tail()}")

    def filled(self):
        """Waits until all is there; from then on it works."""
        self._wait(lambda: self.state[IS_FILLED], "fill")
        below = tree(self.server.pid)
        # What the program itself is, without `canvas run` and its agent.
        self.pids = [pid for pid in below if read(f"/proc/{pid}/comm").strip() != "canvas"]
        self.all = below + ([self.client.pid] if self.client else [])
        if not self.pids:
            raise Wrong(f"{self.program} has no process: {self.tail()}")

    def beside(self, child):
        """A process that works for this one alone, and so on its processor."""
        self.others.append(child)
        self.all.append(child.pid)

    def status(self):
        said = subprocess.run([self.canvas, "status", self.name, "--json"], stdout=subprocess.PIPE, text=True).stdout
        return json.loads(said)

    def finish(self):
        """Has all data read once more, and ends it. An error is that of a wrong byte."""
        self.state[STOP] = 1
        checker = self.client or self.server
        try:
            code = checker.wait(timeout=FILL_S)
        except subprocess.TimeoutExpired:
            raise Wrong(f"{self.program} did not check its data in {FILL_S} s") from None
        for child in (*self.others, *filter(None, (self.client, self.server))):
            self.host.end(child)
        if code or self.server.returncode not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            raise Wrong(f"{self.program}: {code}, {self.server.returncode}: {self.tail()}")


def side_by_side(pair, seconds, every=None):
    """Both work, each on a processor, which they swap; what each did, and how it went from turn to turn.

    `every` is called with the turn's number after each.
    """
    turns = max(2, round(seconds / TURN_S / 2) * 2)
    before = [(one.state[DONE], cpu_ns(one.pids)) for one in pair]
    began, done = time.monotonic(), []
    for turn in range(turns):
        for i, one in enumerate(pair):
            pin(one.all, (i + turn) % 2)
        then = [one.state[DONE] for one in pair]
        time.sleep(TURN_S)
        done.append([one.state[DONE] - was for one, was in zip(pair, then, strict=True)])
        for one in pair:
            one.check()
        if every:
            every(turn)
    elapsed = time.monotonic() - began
    figures = []
    for one, (was, used) in zip(pair, before, strict=True):
        more, cpu = one.state[DONE] - was, cpu_ns(one.pids) - used
        if more <= 0:
            raise Wrong(f"{one.program} did nothing in {seconds} s")
        figures.append({"per_s": round(more / elapsed, 1), "cpu_ns_per_op": round(cpu / more, 1)})
    # Both of a pair of turns were on both processors: what the ratio is in each of them.
    ratios = [(done[i][0] + done[i + 1][0]) / max(1, done[i][1] + done[i + 1][1]) for i in range(0, turns, 2)]
    return figures, ratios


def quartiles(ratios):
    return statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
