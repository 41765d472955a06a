"""Hosts of a cluster on this one: each has a network namespace, a bound on its memory, and what canvas needs on it.

A host's memory is a control group. What the kernel says of a whole machine's memory (/proc/meminfo) does not know of
it, so each host has a file with its own, ten times a second, which its donor reads (`canvas serve -o procfs`).
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time

from lib.far import bucket
from lib.host import MIB, Group, controller, read, run, write, zram_bytes

NET = "10.77.0."
PORT = 7070
LOOK_S = 0.1


class Bound(Group):
    """A control group for memory that can have others in it."""

    def __init__(self, host, path, parent=None):
        root, self.version = controller("memory")
        self.path = os.path.join(parent.path if parent else root, path)
        host.hold("group", self.path)
        os.mkdir(self.path)
        if self.version == 2 and not parent:
            write(self.at("cgroup.subtree_control"), "+memory")

    def _stat(self):
        words = (line.split() for line in read(self.at("memory.stat")).splitlines())
        prefix = "total_" if self.version == 1 else ""
        return {name.removeprefix(prefix): int(n) for name, n in words if name.startswith(prefix)}

    def used(self):
        """Its memory without what caches files, which the kernel takes back when it is needed."""
        usage = int(read(self.at("memory.usage_in_bytes" if self.version == 1 else "memory.current")) or 0)
        stat = self._stat()
        return max(0, usage - stat.get("active_file", 0) - stat.get("inactive_file", 0))

    def anonymous(self):
        return self._stat().get("rss" if self.version == 1 else "anon", 0)

    def swapped(self):
        if self.version == 1:
            return self._stat().get("swap", 0)
        return int(read(self.at("memory.swap.current")) or 0)

    def pids(self):
        found = []
        for home, _, files in os.walk(self.path):
            if "cgroup.procs" in files:
                found += [int(pid) for pid in read(os.path.join(home, "cgroup.procs")).split()]
        return found


class Machine:
    """One host: `eth0` with an address behind a token bucket, and its part of this host's memory."""

    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number
        host, args = cluster.host, cluster.args
        self.address, self.port = f"{NET}{number + 1}", f"port{number + 1}"
        self.home = os.path.join(cluster.place, f"host{number + 1}")
        for path in ("", "proc", "far"):
            os.makedirs(os.path.join(self.home, path), mode=0o700, exist_ok=True)
        self.namespace = host.unique("host")
        host.hold("namespace", self.namespace)
        run("ip", "netns", "add", self.namespace)
        run("ip", "-n", cluster.switch, "link", "add", self.port, "type", "veth", "peer", "name", "eth0",
            "netns", self.namespace)
        run("ip", "-n", cluster.switch, "link", "set", self.port, "master", "bridge", "up")
        for words in (("link", "set", "lo", "up"), ("addr", "add", f"{self.address}/24", "dev", "eth0"),
                      ("link", "set", "eth0", "up")):
            run("ip", "-n", self.namespace, *words)
        for where, device in ((cluster.switch, self.port), (self.namespace, "eth0")):
            run("tc", "-n", where, "qdisc", "add", "dev", device, "root", *bucket(args.link))
        self.bound = Bound(host, host.unique("host"))
        # On version 2 a group that has groups has no processes.
        self.services = Bound(host, "services", self.bound)
        self.total, self.is_up, self.donor, self.agent = args.host_mib * MIB, True, None, None
        # Of donors that are no more: what they took back. And how often the kernel ended a service for want of memory.
        self.evicted, self.ooms = [0, 0], 0
        self.tell()

    def limited(self):
        self.bound.limit(self.total)
        return self

    def group(self, name):
        return Bound(self.cluster.host, name, self.bound)

    def start(self, argv, group=None, **more):
        """A process of this host: its network, its memory."""
        enter = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', (group or self.services).at("cgroup.procs")]
        argv = [*enter, "nsenter", f"--net=/run/netns/{self.namespace}", "--", *map(str, argv)]
        return self.cluster.host.start(argv, stdin=subprocess.DEVNULL, **more)

    def _service(self, argv, name, is_there):
        log = open(os.path.join(self.home, name), "a")
        with log:
            child = self.start(argv, stdout=log, stderr=log)
        end = time.monotonic() + 20
        while not is_there():
            if child.poll() is not None or time.monotonic() > end:
                raise OSError(f"{name} of host {self.number + 1}: {read(log.name)[-300:].strip()}")
            time.sleep(0.01)
        return child

    def lend(self):
        """Its donor; what it lends is bounded by what its own programs leave."""
        args, log = self.cluster.args, os.path.join(self.home, "donor")
        before = read(log).count("listening on")
        self.donor = self._service(
            [args.canvas, "serve", "--listen", f"{self.address}:{PORT}", "--memory", f"{args.lend_mib}M", "--reserve",
             f"{args.reserve_mib}M", "--key-file", self.cluster.key, "--state-json", self.state_path(), "-o",
             "procfs=" + os.path.join(self.home, "proc")], "donor", lambda: read(log).count("listening on") > before)

    def keep(self, copies):
        """Its agent, which has all other hosts as servers."""
        socket = self.socket()
        if os.path.exists(socket):
            os.unlink(socket)
        servers = ",".join(f"{m.address}:{PORT}" for m in self.cluster.machines if m is not self)
        self.agent = self._service(
            [self.cluster.args.canvas, "agent", "--socket", socket, "--to", servers, "--copies", copies,
             "--to", "disk:" + os.path.join(self.home, "far"), "--key-file", self.cluster.key], "agent",
            lambda: os.path.exists(socket))

    def socket(self):
        return os.path.join(self.home, "agent.sock")

    def state_path(self):
        return os.path.join(self.home, "donor.json")

    def lent(self):
        """What its donor says: bytes that others use, slabs evicted, and of those the ones that were not moved."""
        if not self.donor or not self.is_up:
            return 0, 0, 0
        try:
            state = json.loads(read(self.state_path()))
        except ValueError:
            return 0, 0, 0
        return state["touched_bytes"], state["counters"]["evicted_slabs"], state["counters"]["evicted_late_slabs"]

    def tell(self):
        """Writes what /proc/meminfo of this host would say; what is in use."""
        used = self.bound.used()
        path = os.path.join(self.home, "proc", "meminfo")
        write(path + ".new", f"MemTotal: {self.total >> 10} kB\nMemAvailable: {max(0, self.total - used) >> 10} kB\n")
        os.replace(path + ".new", path)
        return used

    def _forget_donor(self):
        """What it did is kept; what it said last is not its successor's."""
        self.evicted = [a + b for a, b in zip(self.evicted, self.lent()[1:], strict=True)]
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.state_path())

    def die(self):
        """Its power fails: nothing comes from it any more, and all of its processes are gone."""
        self._forget_donor()
        self.is_up = False
        run("ip", "-n", self.cluster.switch, "link", "set", self.port, "down")
        end = time.monotonic() + 10
        while pids := self.bound.pids():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            for child in filter(None, (self.donor, self.agent)):
                child.poll()
            if time.monotonic() > end:
                raise OSError(f"host {self.number + 1} does not die: {pids}")
            time.sleep(0.01)

    def come_back(self, copies):
        run("ip", "-n", self.cluster.switch, "link", "set", self.port, "up")
        self.is_up = True
        if copies:
            self.lend()
            self.keep(copies)

    def look_after(self, copies):
        """A service that the kernel ended for want of memory is started again, as systemd does; others live."""
        for name, child, again in (("donor", self.donor, self.lend), ("agent", self.agent, lambda: self.keep(copies))):
            if not self.is_up or not child or child.poll() is None:
                continue
            if child.returncode != -signal.SIGKILL:
                said = read(os.path.join(self.home, name))[-300:].strip()
                raise OSError(f"{name} of host {self.number + 1} ended with {child.returncode}: {said}")
            self.ooms += 1
            if name == "donor":
                self._forget_donor()
            again()


class Cluster:
    """Hosts on one switch; and who looks at their memory."""

    def __init__(self, host, args, place):
        self.host, self.args, self.machines = host, args, []
        self.place = os.path.join(place, host.unique("cluster"))
        os.mkdir(self.place, 0o700)
        self.key = os.path.join(self.place, "key")
        run(args.canvas, "keygen", self.key)
        self.switch = host.unique("switch")
        host.hold("namespace", self.switch)
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for number in range(args.hosts):
            self.machines.append(Machine(self, number))
        # Of each look: the second, and of each host what is in use, and of that what it lends.
        self.zram, self.looks, self.over, self.error = None, [], threading.Event(), None
        self.thread = threading.Thread(target=self._look, daemon=True)

    def _look(self):
        try:
            while not self.over.wait(LOOK_S):
                used = [m.tell() for m in self.machines]
                if self.zram is not None:
                    # What the device takes, by what each host has there.
                    swapped, stored = [m.bound.swapped() for m in self.machines], zram_bytes(self.zram)
                    used = [u + stored * s // max(1, sum(swapped)) for u, s in zip(used, swapped, strict=True)]
                self.looks.append((time.monotonic(), used, [m.lent()[0] for m in self.machines]))
        except OSError as e:
            self.error = e

    def watch(self):
        self.thread.start()

    def stop(self):
        """What was seen."""
        self.over.set()
        self.thread.join()
        if self.error:
            raise self.error
        return self.looks

    def evicted(self):
        """Slabs that donors took back, and those of them that were not moved in time."""
        now = [m.lent()[1:] for m in self.machines]
        return [sum(m.evicted[i] + n[i] for m, n in zip(self.machines, now, strict=True)) for i in (0, 1)]
