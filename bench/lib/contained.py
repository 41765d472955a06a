"""A container of `bench/cluster` at work: its program, what bounds its memory, and its client."""

import array
import json
import os
import signal
import subprocess
import sys
import time

from lib.host import MIB, lab, read
from lib.paced import HUNG_UP, WRONG

PACED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "paced.py")
VALUE_BYTES = 2000
# What a server takes for a value and its key.
ENTRY_BYTES = 2200
# Of what a container has, what canvas has as its pool, at least.
POOL_PART, POOL_MIB = 8, 4
LISTEN_S, END_S = 30, 30
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
# What canvas says when there is no place for a page any more, before it ends the program by SIGBUS.
FULL = "local and far memory are both full"
ENDED = (0, -signal.SIGTERM, 128 + signal.SIGTERM)
FAR = ("reads", "lane_reads", "failovers", "corrupt", "repairs", "bytes_in", "bytes_out")


def canvas_flags(limit):
    """`--local` and `--pool` that share the limit, in KiB."""
    pool = max(POOL_MIB * MIB, limit // POOL_PART)
    return ["--local", f"{(limit - pool) >> 10}K", "--pool", f"{pool >> 10}K"]


class Contained:
    """One run of a container under a variant; `step` is called until `is_over`."""

    def __init__(self, bench, machine, plan, limit, variant):
        self.bench, self.machine, self.plan, self.limit, self.variant = bench, machine, plan, limit, variant
        self.home = os.path.join(machine.home, bench.host.unique(plan.name))
        os.mkdir(self.home, 0o700)
        self.group = machine.group(os.path.basename(self.home))
        self.socket, self.records, self.report = (os.path.join(self.home, n) for n in ("s", "records", "report"))
        self.peak, self.client, self.found, self.is_over, self.is_died = 0, None, {}, False, False
        self.began, self.ending = time.monotonic(), None
        self.program = machine.start([*self._prefix(), *self._argv()], self.group, stdout=self._file("out"),
                                     stderr=self._file("err"))

    def _file(self, name):
        return open(os.path.join(self.home, name), "w")

    def _prefix(self):
        """What bounds its memory."""
        if self.limit is None:
            return []
        if not self.variant.startswith("canvas"):
            self.group.limit(self.limit)
            return []
        return [self.bench.args.canvas, "run", f"--to=agent:{self.machine.socket()}", "--tenant", self.plan.name,
                *canvas_flags(self.limit), "--far", f"{4 * self.plan.mib}M", "--stats", self.report, "--"]

    def _argv(self):
        plan, canvas = self.plan, self.bench.args.canvas
        if plan.kind == "redis":
            return ["redis-server", "--port", 0, "--unixsocket", self.socket, "--save", "", "--dir", self.home]
        if plan.kind == "memcached":
            return ["memcached", "-s", self.socket, "-m", 4 * plan.mib, "-t", 1, "-u", "root", "-o", "no_lru_crawler"]
        return [lab(canvas), "workload", plan.kind, "--mib", plan.mib, "--seed", plan.seed]

    def look(self):
        self.peak = max(self.peak, self.group.anonymous())

    def step(self):
        code = self.program.poll()
        if self.is_died:
            self._over("died")
        elif not self.plan.is_server:
            if code is not None:
                self._batch(code)
        elif self.ending:
            if code is not None:
                self._over("ok" if code in ENDED else f"failed: {code}: {self._tail('err')}")
            elif time.monotonic() > self.ending + END_S:
                self._over("failed: it does not end")
        elif code is not None:
            self._over(self._ended(code))
        elif self.client:
            self._client()
        elif os.path.exists(self.socket):
            plan = self.plan
            argv = [sys.executable, PACED, plan.kind, self.socket, self.records, plan.mib * MIB // ENTRY_BYTES,
                    VALUE_BYTES, plan.seed, self.bench.args.rate, plan.seconds, plan.pace * MIB]
            self.client = self.bench.host.start(list(map(str, argv)), stdout=self._file("told"),
                                                stderr=self._file("said"))
        elif time.monotonic() > self.began + LISTEN_S:
            self._over("failed: it does not listen")

    def give_up(self):
        self._over("unfinished")

    def _batch(self, code):
        seconds = time.monotonic() - self.began
        if code == 0:
            self.found = {"seconds": round(seconds, 2), "answer": json.loads(self._tail("out"))["answer"]}
            wanted = self.bench.answers.setdefault(self._work(), self.found["answer"])
            self._over("ok" if self.found["answer"] == wanted else "wrong")
        else:
            self._over("wrong" if code == 1 else self._ended(code))

    def _ended(self, code):
        """The outcome of a program that ended by itself, and not as it should."""
        if code in KILLED:
            return "oom"
        said = self._tail("err")
        return "full" if code == 128 + signal.SIGBUS and FULL in said else f"failed: {code}: {said}"

    def _work(self):
        return self.plan.kind, self.plan.mib, self.plan.seed

    def _client(self):
        code = self.client.poll()
        if code == WRONG:
            self._over(f"wrong: {self._tail('said')}")
        elif code == HUNG_UP:
            # The program's own end says why.
            if time.monotonic() > self.began + LISTEN_S and self.program.poll() is None:
                self._over("failed: its connection broke")
        elif code == 0:
            told = json.loads(self._tail("told"))
            self.found = {**told, "seconds": round(told["fill_s"] + told["check_s"], 2), **self._by_disk()}
            self.program.terminate()
            self.ending = time.monotonic()
        elif code is not None:
            self._over(f"failed: client {code}: {self._tail('said')}")

    def _by_disk(self):
        """Of reads beyond the pool, those that the disk served though a donor could have; the report lacks it."""
        if self.limit is None or not self.variant.startswith("canvas"):
            return {}
        said = subprocess.run([self.bench.args.canvas, "status", self.plan.name, "--json"], capture_output=True,
                              text=True)
        return {"reads_by_disk": json.loads(said.stdout)["far"]["reads_by_disk"]} if said.returncode == 0 else {}

    def _tail(self, name):
        return read(os.path.join(self.home, name))[-300:].strip()

    def _over(self, outcome):
        self.is_over = True
        if self.client and outcome == "died":
            self.client.wait(timeout=END_S)
        for child in filter(None, (self.program, self.client)):
            self.bench.host.end(child)
        report = json.loads(read(self.report) or "null")
        plan = self.plan
        self.found = {
            "container": plan.name, "program": plan.kind, "mib": plan.mib, "percent": plan.percent,
            "host": plan.host + 1, "outcome": outcome, "peak_mib": round(self.peak / MIB, 1),
            "limit_mib": self.limit and round(self.limit / MIB, 1), **self.found}
        if report:
            self.found["far"] = {**{k: report["far"][k] for k in FAR}, "verify_failures": report["verify_failures"],
                                 "anomalies": report["counters"]["anomalies"],
                                 "faults_deep": report["counters"]["faults_deep"]}

    def times(self):
        """The second at which each answer came, and its time in us."""
        numbers = array.array("d")
        raw = b""
        if os.path.exists(self.records):
            with open(self.records, "rb") as f:
                raw = f.read()
        numbers.frombytes(raw[:len(raw) // 16 * 16])
        return list(zip(numbers[::2], numbers[1::2], strict=True))
