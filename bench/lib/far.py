"""Places for far memory: donors, a link with a rate before them, and disks that are slowed down."""

import contextlib
import ipaddress
import os
import subprocess
import sys
import time

from lib.host import controller, read, run, write

# Of the addresses for benchmarks of networks (RFC 2544), as the bench's own links take them.
NETWORK = ipaddress.ip_network("198.18.0.0/15")
SLAB_MIB = 64


class Donor:
    """`canvas serve` on this host: on the loopback device, or behind a link with a rate."""

    def __init__(self, host, canvas, place, mib, rate=None):
        self.flags = []
        argv = [canvas, "serve", "--memory", f"{mib}M", "--reserve", "0"]
        if rate:
            here, there, namespace = link(host, rate)
            key = os.path.join(place, "key")
            if not os.path.exists(key):
                run(canvas, "keygen", key)
            self.flags = ["--key-file", key]
            argv = ["ip", "netns", "exec", namespace, *argv, "--listen", f"{there}:0", *self.flags]
        else:
            argv += ["--listen", "127.0.0.1:0"]
        log = os.path.join(place, host.unique("serve"))
        with open(log, "w") as err:
            self.child = host.start(argv, stderr=err)
        end = time.monotonic() + 10
        while "listening on" not in read(log):
            if time.monotonic() > end:
                sys.exit(f"{host.name}: the donor does not listen: {read(log).strip()}")
            time.sleep(0.02)
        self.address = read(log).split("listening on ")[1].split(",")[0]


def bucket(rate):
    """A token bucket with this rate, for tc."""
    return ["tbf", "rate", rate, "burst", "128kb", "latency", "20ms"]


def link(host, rate):
    """A namespace behind a link with a rate in both directions: the two addresses, and its name."""
    number = os.getpid() % (1 << 15)
    here, there = (str(NETWORK[number * 4 + i]) for i in (1, 2))
    if any(here.rsplit(".", 1)[0] + "." in line for line in run("ip", "-4", "addr").splitlines()):
        sys.exit(f"{host.name}: the network of {here} is in use here")
    namespace, outer, inner = host.unique("net"), f"cp{os.getpid()}", f"cq{os.getpid()}"
    host.hold("namespace", namespace)
    run("ip", "netns", "add", namespace)
    host.hold("link", outer)
    run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", namespace)
    within = ["ip", "netns", "exec", namespace]
    for prefix, device, address in (([], outer, here), (within, inner, there)):
        run(*prefix, "ip", "addr", "add", f"{address}/30", "dev", device)
        run(*prefix, "ip", "link", "set", device, "up")
        run(*prefix, "tc", "qdisc", "add", "dev", device, "root", *bucket(rate))
    run(*within, "ip", "link", "set", "lo", "up")
    return here, there, namespace


def device_of(path):
    """Major and minor number of the disk that a path is on (the whole disk, where it is a partition)."""
    number = os.stat(path).st_dev
    name = f"{os.major(number)}:{os.minor(number)}"
    whole = read(f"/sys/dev/block/{name}/../dev").strip()
    return whole if os.path.exists(f"/sys/dev/block/{name}/partition") and whole else name


class SlowReads:
    """A control group that bounds reads a second of devices, {MAJOR:MINOR: reads a second}."""

    def __init__(self, host, bounds):
        root, version = controller("blkio") if controller("blkio")[0] else controller("io")
        if not root:
            raise OSError("no controller of control groups bounds disks here")
        self.path = os.path.join(root, host.unique("slow"))
        host.hold("group", self.path)
        os.mkdir(self.path)
        for device, reads in bounds.items():
            if version == 1:
                write(os.path.join(self.path, "blkio.throttle.read_iops_device"), f"{device} {reads}")
            else:
                write(os.path.join(self.path, "io.max"), f"{device} riops={reads}")

    def join(self):
        write(os.path.join(self.path, "cgroup.procs"), os.getpid())


def join_all(groups):
    """For preexec_fn: the process enters all of these."""
    def enter():
        for group in filter(None, groups):
            group.join()
    return enter


def is_direct(path):
    """Whether files there are read past the page cache."""
    name = os.path.join(path, "direct")
    try:
        os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600))
        return True
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)


def disk_reads(path, seconds=1.0, threads=4, mib=64):
    """What the disk gives: reads of 4 KiB a second at random, past the page cache, with so many at a time."""
    name = os.path.join(path, "reads")
    program = """
import mmap, os, random, sys, threading, time
fd, pages, done = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), int(sys.argv[2]) << 8, []
end = time.monotonic() + float(sys.argv[3])
def work(seed):
    buffer, rng, n = mmap.mmap(-1, 4096), random.Random(seed), 0
    while time.monotonic() < end:
        os.preadv(fd, [buffer], rng.randrange(pages) << 12)
        n += 1
    done.append(n)
all_of_them = [threading.Thread(target=work, args=(i,)) for i in range(int(sys.argv[4]))]
for t in all_of_them: t.start()
for t in all_of_them: t.join()
print(sum(done))
"""
    try:
        with open(name, "wb") as f:
            for _ in range(mib):
                f.write(os.urandom(1 << 20))
            os.fsync(f.fileno())
        argv = [sys.executable, "-c", program, name, str(mib), str(seconds), str(threads)]
        return round(int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout) / seconds)
    finally:
        os.unlink(name)
