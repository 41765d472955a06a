"""The host's reserve: tenants that grow without end in a control group with a limit, which acts as their host."""

import json
import os
import subprocess
import threading
import time

from lib import canvas
from lib.harness import MIB, Skip, check

from .operate import ask, wait_until

LIMIT_BYTES = 224 * MIB
RESERVE_BYTES = LIMIT_BYTES // 20


class Group:
    """A control group with a memory limit, of version 1 or 2; removed when closed."""

    def __init__(self, limit_bytes=LIMIT_BYTES):
        self.limit_bytes = limit_bytes
        if os.getuid() != 0:
            raise Skip("limiting memory by control group needs root")
        self.undo = None
        first, second = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
        if os.path.exists(f"{first}/memory.limit_in_bytes"):
            root, self.version = first, 1
        elif "memory" in self._read(f"{second}/cgroup.controllers").split():
            root, self.version = second, 2
            control = f"{second}/cgroup.subtree_control"
            if "memory" not in self._read(control).split():
                self._write(control, "+memory")
                self.undo = control
        else:
            raise Skip("no control group controller for memory is mounted")
        self.path = f"{root}/canvas-test-{os.getpid()}"
        try:
            os.mkdir(self.path)
            self._write(f"{self.path}/{('memory.limit_in_bytes', 'memory.max')[self.version - 1]}", limit_bytes)
        except OSError as e:
            self.close()
            raise Skip(f"no control group can be made here: {e}") from None
        self.least = limit_bytes
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @staticmethod
    def _read(path):
        try:
            with open(path) as f:
                return f.read()
        except OSError:
            return ""

    @staticmethod
    def _write(path, text):
        with open(path, "w") as f:
            f.write(str(text))

    def prefix(self):
        """Command prefix that starts a command in the group."""
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh"]

    def available(self):
        """Memory that the group can still use, with reclaimable page cache."""
        used = self._read(f"{self.path}/{('memory.usage_in_bytes', 'memory.current')[self.version - 1]}")
        stat = dict(line.split() for line in self._read(f"{self.path}/memory.stat").splitlines())
        before = ("total_", "")[self.version - 1]
        files = int(stat[f"{before}inactive_file"]) + int(stat[f"{before}active_file"]) // 2
        return self.limit_bytes - max(0, int(used) - files)

    def anonymous_and_shared(self):
        """Memory of the group that is not page cache."""
        stat = dict(line.split() for line in self._read(f"{self.path}/memory.stat").splitlines())
        return sum(int(stat[name]) for name in (("total_rss", "total_shmem"), ("anon", "shmem"))[self.version - 1])

    def _watch(self):
        while not self._over.wait(0.01):
            try:
                self.least = min(self.least, self.available())
            except (ValueError, KeyError):
                continue

    def kills(self):
        """Processes of the group that the kernel killed because memory was short."""
        text = self._read(f"{self.path}/{('memory.oom_control', 'memory.events')[self.version - 1]}")
        return sum(int(n) for line in text.splitlines() for k, n in [line.split()] if k == "oom_kill")

    def close(self):
        """Removes the group; its processes have ended."""
        if hasattr(self, "_over"):
            self._over.set()
            self._thread.join()
        for _ in range(100):
            try:
                os.rmdir(self.path)
                break
            except FileNotFoundError:
                break
            except OSError:
                time.sleep(0.05)
        if self.undo:
            self._write(self.undo, "-memory")


def growers(r, group, mib, *flags):
    """Four tenants that take incompressible memory: children, and how far each came."""
    runs = [r.start([r.binary("grower"), mib, i + 1], tag=f"grower{i}", stdin=subprocess.PIPE, local=16 * MIB,
                    pool=1024 * MIB, prefix=group.prefix(), extra=["--tenant", f"grower{i}-{os.getpid()}", *flags])
            for i in range(4)]
    for c in runs:
        wait_until(r, "it has grown", lambda c=c: "grown" in c.out() or not c.alive(), timeout_s=120)
    return runs


def end(r, runs):
    """All check their bytes and end by themselves."""
    for c in runs:
        if c.alive():
            c.p.stdin.close()
    for c in runs:
        r.wait(c, timeout_s=60)
        r.require("right" in c.out(), f"wrong bytes\n{c.tail()}")
        r.same(canvas.find(r.load_stats(c), "verify_failures"), 0, "verify_failures")


@check("host-reserve", host=True, timeout_s=180, modes=("signal",))
def host_reserve(r):
    """Without far memory: pools stop growing and new memory is refused, with a sentence; no process is killed."""
    if not r.managed:
        return
    group = Group()
    try:
        runs = growers(r, group, 140)
        told = json.loads(ask(r, "status", f"grower0-{os.getpid()}", "--json"))["health"]
        grown = sum(int(c.out().split()[1]) for c in runs if "grown" in c.out())
        r.note(f"{grown / MIB:.0f} MiB in a host of {LIMIT_BYTES / MIB:.0f}; least left "
               f"{group.least / MIB:.1f} MiB, reserve {RESERVE_BYTES / MIB:.1f}")
        r.same(group.kills(), 0, "processes killed for want of memory")
        r.require("C014" in [p["code"] for p in told], f"status: {told}")
        end(r, runs)
        r.require(grown < 4 * 140 * MIB, "all of it fitted: the test shows nothing")
        r.require(grown > LIMIT_BYTES // 3, f"only {grown / MIB:.0f} MiB could be had")
        lines = "".join(c.err() for c in runs)
        r.require("this host's memory is down to its reserve" in lines, f"no sentence: {lines}")
        r.require(group.least >= RESERVE_BYTES, f"{group.least / MIB:.1f} MiB were left, less than the reserve")
    finally:
        r.close()
        group.close()


@check("host-reserve-far", host=True, timeout_s=240, modes=("signal",))
def host_reserve_far(r):
    """With far memory: pools demote pages instead, and every tenant gets all the memory it wants."""
    if not r.managed:
        return
    group = Group()
    try:
        runs = growers(r, group, 84, "--far", "512M", "--to", f"disk:{r.dir}")
        r.note(f"least left {group.least / MIB:.1f} MiB, reserve {RESERVE_BYTES / MIB:.1f}")
        r.same(group.kills(), 0, "processes killed for want of memory")
        for c in runs:
            r.require(f"grown {84 * MIB}" in c.out(), f"not all could be had\n{c.tail()}")
        end(r, runs)
        sunk = sum(canvas.find(r.load_stats(c), "pages_demoted") for c in runs)
        r.require(sunk > 4 * 84 * 256 // 8, f"only {sunk} pages were spilled")
        r.require(group.least >= RESERVE_BYTES, f"{group.least / MIB:.1f} MiB were left, less than the reserve")
    finally:
        r.close()
        group.close()


@check("pool-default", host=True, timeout_s=60, modes=("signal",))
def pool_default(r):
    """Without --pool the pool is half of the memory that the control group allows a run."""
    if not r.managed:
        return
    group = Group()
    try:
        for prefix, want in ((group.prefix(), LIMIT_BYTES // 2), ([], None)):
            report = r.path(f"stats{len(prefix)}.json")
            argv = [r.session.canvas, "run", "--local", "16M", "--stats", report, "--", "true"]
            p = subprocess.run([*prefix, *argv], capture_output=True, text=True, timeout=30)
            r.same((p.returncode, p.stderr), (0, ""), "canvas run")
            with open(report) as f:
                got = json.load(f)["limits"]["pool_bytes"]
            r.require(got == want if want else got > LIMIT_BYTES // 2, f"a pool of {got} bytes, wanted {want}")
    finally:
        group.close()
