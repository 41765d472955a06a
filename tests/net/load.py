"""Programs that use far memory while a test acts on donors, and that check their data."""

import mmap
import os
import struct
import subprocess
import threading
import time

from lib import canvas, procs
from lib.clients import Redis, wait_socket
from lib.harness import Failure
from lib.values import Values, Zipf

from . import hosts

def far_flags(donors, copies, key, run, wait="30s", far="512M"):
    """Flags of a run with far memory on donors."""
    directory = run.path("far")
    os.makedirs(directory, exist_ok=True)
    return ("--far", far, "--to", f"disk:{directory}", "--to", donors.flag(), "--copies", copies,
            "--key-file", key, "-o", f"far-wait={wait}")


class Here:
    """This host, for tests that need no other."""

    @staticmethod
    def prefix():
        return []


class Managed:
    """A program under `canvas run` on a host."""

    def begin(self, run, host, argv, tag, flags, local, pool):
        self.run, self.host, self.tag = run, host, tag
        self.child = run.start([*hosts.BOUND, *argv], tag=tag, local=local, pool=pool, extra=flags,
                               prefix=[*host.prefix(), *hosts.BOUND])

    def alive(self):
        if not self.child.alive():
            raise Failure(f"{self.tag} ended with {self.child.p.returncode}:\n{self.child.tail(30)}")

    def agent(self):
        """Pid of its agent."""
        for pid in procs.tree(self.child.pid, include_root=False):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    if b"\0agent-worker\0" in f.read():
                        return pid
            except OSError:
                continue
        return None

    def far_now(self):
        """Slabs that lack a copy, failovers and corrupt copies so far; None if they cannot be read."""
        pid = self.agent()
        if pid is None:
            return None
        r = subprocess.run([self.run.session.far_state, str(pid)], capture_output=True, text=True)
        return tuple(map(int, r.stdout.split())) if r.returncode == 0 else None

    def degraded(self):
        """Slabs that lack a copy now."""
        now = self.far_now()
        return now and now[0]

    def wait_whole(self, timeout_s=30):
        """Waits until every slab has all its copies; returns the seconds that took."""
        begun = time.monotonic()
        while self.degraded() != 0:
            self.alive()
            if time.monotonic() - begun > timeout_s:
                raise Failure(f"{self.tag}: {self.degraded()} slabs still lack a copy after "
                              f"{timeout_s} s:\n{self.child.tail(30)}")
            time.sleep(0.02)
        return time.monotonic() - begun

    def finished(self, expect=0, lying=False):
        """The report of a run that has ended well."""
        self.run.wait(self.child, expect, timeout_s=60)
        stats = self.run.load_stats(self.child)
        # Only a lying donor's pages may fail to verify.
        wrong = [w for w in canvas.check_stats(stats, self.child.limit_bytes)
                 if not (lying and "verify_failures" in w)]
        self.run.require(not wrong, "; ".join(wrong))
        far = stats["far"]
        self.run.require(far["extents_out"] > 0 and far["reads"] > 0, f"nothing went far: {far}")
        if not lying:
            self.run.same(far["corrupt"], 0, f"{self.tag}: copies that did not verify")
        return stats


class Pages(Managed):
    """tests/c/far_pages.c."""

    def __init__(self, run, host, flags, mib=48, tag="pages", seed=1):
        self.status_path = run.path(f"{tag}.status")
        binary = run.binary("far_pages")
        self.begin(run, host, [binary, mib, self.status_path, seed], tag, flags, 10 << 20, "4M")
        end = time.monotonic() + 60
        while not os.path.exists(self.status_path) or os.path.getsize(self.status_path) < 4096:
            self.alive()
            time.sleep(0.005)
        with open(self.status_path, "r+b") as f:
            self.status = mmap.mmap(f.fileno(), 4096)
        while not self.word(0):
            self.alive()
            if time.monotonic() > end:
                raise Failure(f"{tag}: not ready after 60 s:\n{self.child.tail(30)}")
            time.sleep(0.005)

    def word(self, n):
        return struct.unpack_from("<Q", self.status, 8 * n)[0]

    def reads(self):
        return self.word(1)

    def writes(self):
        return self.word(2)

    def longest_ms(self):
        """The longest access since the last call."""
        ns = self.word(3)
        struct.pack_into("<Q", self.status, 24, 0)
        return ns / 1e6

    def stop(self):
        struct.pack_into("<Q", self.status, 32, 1)

    def finish(self, lying=False):
        self.stop()
        stats = self.finished(lying=lying)
        self.run.require("every byte right" in self.child.out(), f"{self.tag}: {self.child.tail()}")
        return stats


class RedisLoad(Managed):
    """redis with a client outside of canvas that knows every value."""

    def __init__(self, run, host, flags, keys=30_000, tag="redis", seed=5):
        path = run.path(f"{tag}.sock")
        self.begin(run, host, ["redis-server", "--port", "0", "--unixsocket", path, "--save", "",
                               "--appendonly", "no", "--dir", run.dir, "--daemonize", "no"],
                   tag, flags, 14 << 20, "4M")
        wait_socket(path, self.child, timeout_s=60)
        self.client = Redis(path, timeout_s=90)
        self.values, self.versions = Values(seed, 1000), [0] * keys
        self.zipf = Zipf(keys, theta=0.6, seed=seed)
        for a in self.client.pipeline((b"SET", b"key:%d" % k, self.values.get(k, 0)) for k in range(keys)):
            if a != b"OK":
                raise Failure(f"SET: {a}")
        self.longest_s, self.rounds, self.error = 0.0, 0, None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.traffic, daemon=True)
        self.thread.start()

    def traffic(self):
        try:
            while not self.over.wait(0.002):
                batch, expect = [], []
                for i in range(16):
                    k = self.zipf.next()
                    if i % 4 == 0:
                        self.versions[k] += 1
                        batch.append((b"SET", b"key:%d" % k, self.values.get(k, self.versions[k])))
                        expect.append(b"OK")
                    else:
                        batch.append((b"GET", b"key:%d" % k))
                        expect.append(self.values.get(k, self.versions[k]))
                begun = time.monotonic()
                self.client.send(*batch)
                for b, e in zip(batch, expect):
                    got = self.client.answer()
                    if got != e:
                        raise Failure(f"{b[:2]}: got {str(got)[:120]}, expected {e[:60]}")
                self.longest_s = max(self.longest_s, time.monotonic() - begun)
                self.rounds += 1
        except Exception as e:
            self.error = e

    def alive(self):
        super().alive()
        if self.error:
            raise Failure(f"{self.tag}: {self.error}\n{self.child.tail(30)}")

    def reads(self):
        return self.rounds

    def longest_ms(self):
        ms, self.longest_s = self.longest_s * 1e3, 0.0
        return ms

    def stop(self):
        self.over.set()

    def finish(self, lying=False):
        self.stop()
        self.thread.join(timeout=90)
        self.alive()
        keys = range(len(self.versions))
        for k, got in zip(keys, self.client.pipeline(((b"GET", b"key:%d" % k) for k in keys), 256)):
            if got != self.values.get(k, self.versions[k]):
                raise Failure(f"{self.tag}: key {k} at the end: got {str(got)[:120]}")
        self.client.close()
        pid = next(p for p in procs.tree(self.child.pid, False) if comm(p) == "redis-server")
        os.kill(pid, 15)
        return self.finished(lying=lying)


def comm(pid):
    try:
        with open(f"/proc/{pid}/comm") as f:
            return f.read().strip()
    except OSError:
        return ""


