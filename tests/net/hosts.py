"""Hosts as network namespaces, connected by a bridge in another namespace.

The namespaces have no names: each lives as long as a process in it does, and the process that keeps it dies
with the test runner (PR_SET_PDEATHSIG). So nothing is left behind, however the runner ends.
"""

import os
import shutil
import subprocess
import time

from lib.harness import WantOfRoot

NET = "10.77.0."


def missing():
    """Reason why there can be no hosts here, or None."""
    if os.getuid() != 0:
        return WantOfRoot("network namespaces need root")
    for command in ("ip", "tc", "nft", "nsenter", "unshare", "setpriv"):
        if not shutil.which(command):
            return f"{command} is not installed (tests/packages.txt)"
    r = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return f"no network namespaces here: {r.stderr.strip()}" if r.returncode else None


# The process ends with its parent, even if that is killed.
BOUND = ["setpriv", "--pdeathsig", "KILL", "--"]


class Namespace:
    """A network namespace, kept by a sleeping process."""

    def __init__(self):
        self.keeper = subprocess.Popen([*BOUND, "unshare", "--net", "--", "sleep", "infinity"],
                                       stdin=subprocess.DEVNULL, start_new_session=True)
        own = os.stat("/proc/self/ns/net").st_ino
        end = time.monotonic() + 20
        # The namespace exists when the keeper has become `sleep`.
        while True:
            with open(f"/proc/{self.keeper.pid}/comm") as f:
                if f.read() == "sleep\n" and os.stat(self.path()).st_ino != own:
                    return
            if time.monotonic() > end or self.keeper.poll() is not None:
                raise OSError("a network namespace could not be made")
            time.sleep(0.002)

    def path(self):
        return f"/proc/{self.keeper.pid}/ns/net"

    def prefix(self):
        """Command prefix that runs a command in the namespace."""
        return ["nsenter", f"--net={self.path()}", "--"]

    def do(self, *argv, text=None):
        r = subprocess.run([*self.prefix(), *map(str, argv)], capture_output=True, text=True, input=text)
        if r.returncode:
            raise OSError(f"{' '.join(map(str, argv))}: {r.stderr.strip()}")
        return r.stdout

    def close(self):
        self.keeper.kill()
        self.keeper.wait()


class Host(Namespace):
    """One host: `eth0` with an address, and its port at the bridge."""

    def __init__(self, switch, number):
        super().__init__()
        self.switch, self.number = switch, number
        self.addr = f"{NET}{number}"
        self.port = f"port{number}"
        switch.do("ip", "link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns",
                  self.keeper.pid)
        switch.do("ip", "link", "set", self.port, "master", "bridge", "up")
        self.do("ip", "link", "set", "lo", "up")
        self.do("ip", "addr", "add", f"{self.addr}/24", "dev", "eth0")
        self.do("ip", "link", "set", "eth0", "up")

    def cap(self, mbit, kind="tbf"):
        """Limits the rate of its link in both directions."""
        for side, dev in ((self.switch, self.port), (self, "eth0")):
            if kind == "tbf":
                side.do("tc", "qdisc", "replace", "dev", dev, "root", "tbf", "rate", f"{mbit}mbit",
                        "burst", "256k", "latency", "100ms")
            else:
                side.do("tc", "qdisc", "replace", "dev", dev, "root", "handle", "1:", "htb", "default", "1")
                side.do("tc", "class", "replace", "dev", dev, "parent", "1:", "classid", "1:1", "htb",
                        "rate", f"{mbit}mbit", "burst", "256k")

    def sent_bytes(self):
        """Bytes that it has sent so far."""
        path = f"/proc/{self.keeper.pid}/net/dev"
        with open(path) as f:
            return next(int(line.split()[9]) for line in f if line.split()[0] == "eth0:")

    def unplug(self):
        """Unplugs its cable: both ends see no carrier."""
        self.switch.do("ip", "link", "set", self.port, "down")

    def plug(self):
        self.switch.do("ip", "link", "set", self.port, "up")

    def go_deaf(self):
        """Makes its connections half open: it sends, and receives nothing."""
        self.do("nft", "-f", "-", text="table inet deaf {\n chain in {\n"
                "  type filter hook input priority 0; policy accept;\n  iifname eth0 drop\n }\n}\n")

    def hear(self):
        self.do("nft", "delete", "table", "inet", "deaf")


class Network:
    """`count` hosts; a context manager."""

    def __init__(self, count):
        self.count, self.hosts, self.switch = count, [], None

    def __enter__(self):
        try:
            self.switch = Namespace()
            self.switch.do("ip", "link", "add", "bridge", "type", "bridge")
            self.switch.do("ip", "link", "set", "bridge", "up")
            for n in range(self.count):
                self.hosts.append(Host(self.switch, n + 1))
        except BaseException:
            self.close()
            raise
        return self

    def close(self):
        for namespace in [*self.hosts, self.switch]:
            if namespace:
                namespace.close()
        self.hosts, self.switch = [], None

    def __exit__(self, *_):
        self.close()
