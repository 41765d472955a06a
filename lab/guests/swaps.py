"""What a guest swaps onto: a disk of qemu's, zswap or zram of its own, a ramdisk behind vhost-user, or
canvas."""

import glob
import json
import os
import shutil
import subprocess
import time

from .figures import COUNTERS, counters, memory_bytes, swapped_pages
from .guests import which
from .host import MIB, Donor, file_of, read

TICK = os.sysconf("SC_CLK_TCK")
SWAP_ON = ("echo 0 > /sys/block/vda/queue/rotational && mkswap /dev/vda > /dev/null && swapon -d /dev/vda")
ZSWAP = ("modprobe lz4; cd /sys/module/zswap/parameters; echo lz4 > compressor; echo zsmalloc > zpool; "
         "echo Y > shrinker_enabled; echo {percent} > max_pool_percent; echo Y > enabled; ")
ZRAM = ("modprobe zram && echo lz4 > /sys/block/zram0/comp_algorithm && echo {size} > /sys/block/zram0/disksize && "
        "mkswap /dev/zram0 > /dev/null && swapon /dev/zram0")
# Operations a second of FastSwap's disk, approximately: a SCSI disk of 2010 seeks in some 7 ms.
SLOW_OPERATIONS = 150
BLOCKS = "logical_block_size=4096,physical_block_size=4096"
# Two copies, on two donors.
TWO = ("--copies", "2")


def tree(pid):
    """A process and all its descendants."""
    parents = {}
    for path in glob.glob("/proc/[0-9]*/stat"):
        fields = read(path).rsplit(")", 1)
        if len(fields) == 2:
            parents.setdefault(int(fields[1].split()[1]), []).append(int(path.split("/")[2]))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found


def cpu_s(pid):
    """Processor time of a process, its threads and its descendants."""
    fields = [read(f"/proc/{p}/stat").rsplit(")", 1)[-1].split() for p in tree(pid)]
    return sum(int(f[11]) + int(f[12]) for f in fields if len(f) > 12) / TICK


def memory(pid, kind):
    """Anon or Shmem memory of a process and its descendants."""
    return sum(memory_bytes(read(f"/proc/{p}/smaps_rollup"), kind) for p in tree(pid))


class Swap:
    """A disk that qemu serves itself. `loadable` are modules of the guest."""

    is_shared, before, server, device = True, (), None, "/dev/vda"

    def __init__(self, bench, size_mib, name, guest_setup=SWAP_ON, operations_s=None):
        self.bench, self.size_mib, self.name, self.guest_setup = bench, size_mib, name, guest_setup
        self.donors, self.words, self.file = [], (), None
        self.make(operations_s)

    def make(self, operations_s):
        self.file = os.path.join(self.bench.place, self.bench.host.unique("swap"))
        file_of(self.file, self.size_mib * MIB)
        direct = "on" if self.bench.is_direct else "off"
        words = ["-blockdev", f"driver=file,node-name=file,filename={self.file},cache.direct={direct},discard=unmap"]
        node = "file"
        if operations_s:
            words += ["-object", f"throttle-group,id=slow,x-iops-total={operations_s}", "-blockdev",
                      "driver=throttle,node-name=far,throttle-group=slow,file=file,discard=unmap"]
            node = "far"
        self.words = (*words, "-device", f"virtio-blk-pci,drive={node},{BLOCKS}")

    def setup(self, guest):
        self.guest = guest
        guest.run(self.guest_setup)

    def cpu_s(self):
        return cpu_s(self.server.pid) if self.server else None

    def monitor_bytes(self):
        """Memory of qemu itself."""
        return memory(self.guest.child.pid, "Anon")

    def guest_bytes(self):
        """The guest's memory, which is a memory file that qemu and a server may share."""
        return sum(memory(p.pid, "Shmem") for p in (self.guest.child, self.server) if p)

    def server_bytes(self):
        """Memory of the host for the swapped pages, with all metadata."""
        return memory(self.server.pid, "Anon") if self.server else 0

    def donor_bytes(self):
        return sum(memory(d.pid, "Anon") + memory(d.pid, "Shmem") for d in self.donors)

    def state(self):
        return {}

    def space_bytes(self):
        """Size of the stored pages: swap space, as in table II."""
        if self.file:
            return os.stat(self.file).st_blocks * 512
        return None

    def swap_in(self, timeout_s):
        """Swaps in all that the kernel can in the given time, by swapoff: (pages, seconds)."""
        guest = self.guest
        before = swapped_pages(counters(guest.run(COUNTERS)))
        began = time.monotonic()
        guest.run(f"timeout {timeout_s} swapoff {self.device}; true", timeout_s + 60)
        took_s = time.monotonic() - began
        return before - max(0, swapped_pages(counters(guest.run(COUNTERS)))), took_s

    def limit(self, mib):
        """Sets the guest's memory."""
        self.guest.balloon(mib)


class Zram(Swap):
    """Swap in the guest's own memory."""

    device = "/dev/zram0"

    def make(self, _operations_s):
        self.guest_setup = ZRAM.format(size=self.size_mib * MIB)

    def space_bytes(self):
        return int(self.guest.run("cat /sys/block/zram0/mm_stat").split()[2])


class Ramdisk(Swap):
    """qemu's own server of vhost-user disks, over a file in memory."""

    def make(self, _operations_s):
        # The file disappears with this process.
        memory_file = os.memfd_create("ramdisk")
        os.truncate(memory_file, self.size_mib * MIB)
        self.file = f"/proc/{os.getpid()}/fd/{memory_file}"
        path = os.path.join(self.bench.place, self.bench.host.unique("ramdisk.sock"))
        self.server = self.bench.host.start(
            [which("qemu-storage-daemon"), "--blockdev",
             f"driver=file,node-name=disk,filename={self.file},discard=unmap", "--export",
             "type=vhost-user-blk,id=disk,node-name=disk,writable=on,logical-block-size=4096,addr.type=unix,"
             f"addr.path={path}"])
        wait_for(path, self.server)
        self.words = vhost(path)

    def server_bytes(self):
        return super().server_bytes() + self.space_bytes()


class Canvas(Swap):
    """`canvas disk`."""

    def __init__(self, bench, size_mib, name, flags=(), pool_mib=None, donors=0, by="--vhost-user"):
        self.flags, self.pool_mib, self.want, self.by = flags, pool_mib or size_mib, donors, by
        super().__init__(bench, size_mib, name)

    def make(self, _operations_s):
        bench = self.bench
        self.donors = []
        flags = list(self.flags)
        if self.want:
            made = [Donor(bench.host, bench.args.canvas, bench.place, 2 * self.size_mib) for _ in range(self.want)]
            self.donors = [d.child for d in made]
            flags += ["--far", f"{2 * self.size_mib}M", "--to", ",".join(d.address for d in made)]
        unique = bench.host.unique("disk")
        queues = ("--queues", str(bench.args.cpus)) if self.by != "--nbd" else ()
        path, self.json = (os.path.join(bench.place, f"{unique}.{kind}") for kind in ("sock", "json"))
        log = os.path.join(bench.place, f"{unique}.log")
        with open(log, "w") as said:
            self.server = bench.host.start(
                [bench.args.canvas, "disk", "--size", f"{self.size_mib}M", "--pool", f"{self.pool_mib}M", self.by, path,
                 "--state-json", self.json, *queues, *flags],
                stdout=said, stderr=said)
        wait_for(path, self.server, log)
        self.words = vhost(path, bench.args.cpus) if self.by != "--nbd" else (
            "-blockdev", f"driver=nbd,node-name=far,server.type=unix,server.path={path},discard=unmap", "-device",
            f"virtio-blk-pci,drive=far,werror=report,rerror=report,{BLOCKS}")

    def state(self):
        """The last state written, at most a second old."""
        try:
            return json.loads(read(self.json) or "{}")
        except ValueError:
            return {}

    def space_bytes(self):
        now = self.state()
        return now.get("pool_bytes", 0) + now.get("far_bytes", 0)


class UnderCanvas(Swap):
    """qemu under `canvas run`: the guest has all its memory, and does not swap."""

    is_shared, device = False, None

    def guest_bytes(self):
        """qemu's memory contains its own and the pool's, which cannot be separated from outside."""
        return 0

    def make(self, _operations_s):
        self.guest_setup = "true"
        self.tenant = self.bench.host.unique("guest")
        whole = self.bench.args.memory_mib
        self.before = (self.bench.args.canvas, "run", "--tenant", self.tenant, "--local", f"{2 * whole}M", "--pool",
                       f"{2 * whole}M", "--")

    def limit(self, mib):
        local = f"local={mib + self.bench.args.monitor_mib}M"
        done = subprocess.run([self.bench.args.canvas, "set", self.tenant, local], capture_output=True, text=True)
        if done.returncode:
            raise OSError(f"canvas set: {done.stderr.strip()}")


def vhost(path, queues=1):
    return ("-chardev", f"socket,id=far,path={path}", "-device", f"vhost-user-blk-pci,chardev=far,num-queues={queues}")


def wait_for(path, child, log=None, wait_s=20):
    end = time.monotonic() + wait_s
    while not os.path.exists(path):
        if time.monotonic() > end or child.poll() is not None:
            raise OSError(f"nothing listens at the disk's socket: {read(log).strip() if log else ''}")
        time.sleep(0.02)


def missing(name):
    """Reason why a variant cannot run here, or None."""
    if name == "ramdisk" and not shutil.which("qemu-storage-daemon"):
        return "there is no qemu-storage-daemon (Debian package qemu-system-common or qemu-utils)"
    return None


def _far(bench, size_mib):
    return ("--far", f"{2 * size_mib}M", "--to", f"disk:{bench.place}")


# Constructors, which take a bench, the size of the swap in MiB, and the variant's name.
MAKERS = {
    "disk": Swap,
    "slow-disk": lambda b, mib, name: Swap(b, mib, name, operations_s=SLOW_OPERATIONS),
    "zswap": lambda b, mib, name: Swap(b, mib, name, ZSWAP.format(percent=b.args.zswap_percent) + SWAP_ON),
    "zram": Zram,
    "ramdisk": Ramdisk,
    "none": lambda b, mib, name: Canvas(b, mib, name, ("-o", "codec=none")),
    "lz4": Canvas,
    "lz4-nbd": lambda b, mib, name: Canvas(b, mib, name, by="--nbd"),
    "donors": lambda b, mib, name: Canvas(b, mib, name, TWO, b.args.pool_mib, 2),
    "donors-nbd": lambda b, mib, name: Canvas(b, mib, name, TWO, b.args.pool_mib, 2, "--nbd"),
    "spill": lambda b, mib, name: Canvas(b, mib, name, _far(b, mib), b.args.spill_pool_mib),
    "spill-donors": lambda b, mib, name: Canvas(b, mib, name, TWO, b.args.spill_pool_mib, 2),
    "under-canvas": UnderCanvas,
}
NAMES = tuple(MAKERS)


def make(bench, name, size_mib):
    """Makes a variant by its name."""
    return MAKERS[name](bench, size_mib, name)
