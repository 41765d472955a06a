"""`canvas disk`: a disk in far memory, over NBD: bytes, limits, hostile clients, and guests that swap onto
it."""

import fcntl
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.request

from lib import nbd, procs, vhost
from lib.harness import MIB, Failure, check
from vm import guest

from .command import canvas_only
from .copies import lenders
from .deep import agent_of, wait_for_agent
from .operate import wait_until

PAGE = 4096
SIZE = 64 * MIB
# Far memory is allocated and freed in units of this size.
SLAB = 64 * MIB


def disk(r, *flags, size=SIZE, pool=16 * MIB, tag="disk", by="--nbd", env=None):
    """Starts a disk: returns the process, and the path of its socket."""
    canvas_only(r)
    path = r.path(f"{tag}.sock")
    # The socket that a killed disk left there does not count.
    number = lambda: os.path.exists(path) and os.stat(path).st_ino
    before = number()
    pool = ("--pool", pool) if pool else ()
    c = r.start([r.session.canvas, "disk", "--size", size, *pool, by, path, "--state-json", r.path(f"{tag}.json"),
                 *flags], tag=tag, canvas_on=False, env=env)
    # The socket exists before the process that serves it, which prints a line when it answers.
    served = lambda: number() not in (False, before) and path in c.err()
    wait_until(r, "the disk is served", lambda: served() or not c.alive(), 20)
    r.require(c.alive(), f"it ended\n{c.tail()}")
    return c, path


def state(r, tag="disk"):
    try:
        with open(r.path(f"{tag}.json")) as f:
            return json.load(f)
    except FileNotFoundError:
        return {}


def settled(r, what, probe, tag="disk"):
    """Waits until `probe` is true of the state, which is written once a second; returns the state."""
    return wait_until(r, what, lambda: (s := state(r, tag)) and probe(s) and s, 20, state=lambda: state(r, tag))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as s:
        return s.getsockname()[1]


def scraped(port):
    """Lines of a disk's metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode().splitlines()


def ends(r, c, path):
    """SIGTERM ends it, and nothing is left."""
    r.stop(c, signal.SIGTERM, expect=0)
    left = [p for p in (path, path + ".lock") if os.path.exists(p)]
    r.same(left, [], "what is left of the socket")


def page(seed, random_bytes=1500):
    rng = random.Random(seed)
    return rng.randbytes(random_bytes) + bytes([seed % 251 + 1]) * (PAGE - random_bytes)


@check("disk", modes=("signal",), timeout_s=60)
def bytes_(r):
    """Data written in any sectors is read back; discarded data needs no space; two clients see one disk."""
    port = free_port()
    c, path = disk(r, "--metrics", f"127.0.0.1:{port}")
    # The second client gets answers in chunks.
    one, two = nbd.Client(path), nbd.Client(path, structured=True)
    r.same((one.size, one.blocks[1]), (SIZE, PAGE), "size and preferred block")
    r.same((two.flags & ~one.flags, one.flags & ~two.flags), (1 << 7, 0), "what only chunks have")
    rng = random.Random(3)
    model = bytearray(8 * MIB)
    for i in rng.sample(range(len(model) // PAGE), 1000):
        model[i * PAGE:(i + 1) * PAGE] = data = page(i, rng.choice((0, 600, 2000, PAGE)))
        one.write(i * PAGE, data)
    for _ in range(300):
        client = rng.choice((one, two))
        at, length = rng.randrange(len(model) - 100_000), rng.randrange(1, 100_000)
        what = rng.choice(("write", "read", "trim", "zero"))
        if what == "write":
            data = rng.randbytes(min(length, 20_000))
            client.write(at, data)
            model[at:at + len(data)] = data
        elif what == "zero":
            client.zero(at, length)
            model[at:at + length] = bytes(length)
        elif what == "trim":
            client.trim(at, length)
            start, end = -(-at // PAGE) * PAGE, (at + length) // PAGE * PAGE
            model[start:max(start, end)] = bytes(max(0, end - start))
        r.require(client.read(at, length) == model[at:at + length], f"{length} bytes at {at} after a {what}")
    r.require(two.read(0, len(model)) == model, "the disk as a whole")
    stored = sum(any(model[i:i + PAGE]) for i in range(0, len(model), PAGE))
    got = settled(r, "the state follows", lambda s: s["stored_pages"] == stored)
    r.same((got["health"], got["clients"], got["size_bytes"]), ("ok", 2, SIZE), "state")
    r.require(0 < got["stored_bytes"] <= got["pool_bytes"] <= got["pool_bytes_max"], f"{got}")
    metrics = scraped(port)
    for line in (f'canvas_disk_stored_pages{{socket="{path}"}} {stored}.0', f'canvas_disk_clients{{socket="{path}"}} 2.0'):
        r.require(line in metrics, f"no {line} in:\n{metrics}")
    for wrong, number in (((nbd.READ, SIZE - 1, 2), nbd.EINVAL), ((nbd.TRIM, SIZE, 1), nbd.EINVAL),
                          ((nbd.READ, 0, 33 * MIB), nbd.EOVERFLOW), ((nbd.FLUSH, 0, 0), nbd.EINVAL)):
        one.request(*wrong)
        try:
            one.reply()
            raise Failure(f"{wrong} is not refused")
        except nbd.Refused as e:
            r.same(e.number, number, f"{wrong}")
    one.zero(0, SIZE)
    r.require(two.read(0, 4 * MIB) == bytes(4 * MIB), "what was discarded is not zeros")
    r.require(two.chunks.keys() == {1, 2} and two.chunks[1] > 100 and two.chunks[2] >= 64, f"chunks: {two.chunks}")
    settled(r, "everything is free", lambda s: (s["stored_pages"], s["stored_bytes"], s["pool_bytes"]) == (0, 0, 0))
    one.close()
    two.close()
    settled(r, "the clients are gone", lambda s: s["clients"] == 0)
    ends(r, c, path)
    r.same(state(r)["health"], "ending", "the last state")


@check("disk-full", modes=("signal",), timeout_s=60)
def full(r):
    """A full pool refuses new data, in one line, and keeps its contents; freed space can be used at once."""
    c, path = disk(r, pool=2 * MIB)
    client = nbd.Client(path)
    stored = {}
    for i in range(1200):
        try:
            client.write(i * PAGE, page(i, 3000))
            stored[i] = page(i, 3000)
        except nbd.Refused as e:
            r.same(e.number, nbd.ENOSPC, "the error")
    r.require(400 < len(stored) < 700, f"{len(stored)} pages found room")
    old = max(stored)
    try:
        client.write(old * PAGE, random.Random(1).randbytes(PAGE))
    except nbd.Refused as e:
        r.same(e.number, nbd.ENOSPC, "the error")
    else:
        stored[old] = random.Random(1).randbytes(PAGE)
    for i in range(1200):
        r.require(client.read(i * PAGE, PAGE) == stored.get(i, bytes(PAGE)), f"page {i}")
    settled(r, "it says so", lambda s: s["health"] == "full" or s["counters"]["refused"] > 400)
    client.trim(0, 1200 * PAGE // 2)
    client.write(1199 * PAGE, page(1199, 3000))
    r.require(client.read(1199 * PAGE, PAGE) == page(1199, 3000), "what was written to the room that was freed")
    ends(r, c, path)
    said = [line for line in c.err().splitlines() if "is full" in line]
    r.same(len(said), 1, f"lines about the full pool: {c.err()}")
    r.require("writes fail with ENOSPC; start with a larger --pool" in said[0], said[0])


@check("disk-hostile", modes=("signal",), timeout_s=120)
def hostile(r):
    """Clients that send nonsense, lie about lengths, or are too many harm only themselves."""
    c, path = disk(r)
    good = nbd.Client(path)
    pages = {i: page(i) for i in range(0, 400, 3)}
    for i, data in pages.items():
        good.write(i * PAGE, data)
    rng = random.Random(11)
    for n in range(150):
        try:
            if n % 3:
                bad = nbd.Client(path, timeout_s=5).sock
                head = struct.pack(">IHHQQI", 0x25609513, rng.choice((0, 0, rng.randrange(1 << 16))), rng.randrange(8),
                                   n, rng.choice((1 << 40, (1 << 64) - 1, SIZE - 1)), rng.choice((5, 1 << 20, (1 << 32) - 1)))
                bad.sendall(head + rng.randbytes(rng.randrange(300)))
            else:
                bad = nbd.dial(path, timeout_s=5)
                option = struct.pack(">QII", nbd.OPTION_MAGIC, rng.randrange(12), rng.choice((0, 9, (1 << 32) - 1)))
                bad.sendall(rng.choice((b"", struct.pack(">I", 3), struct.pack(">I", 3) + option)) + rng.randbytes(99))
            bad.shutdown(socket.SHUT_WR)
            while bad.recv(1 << 16):
                pass
        except OSError:
            pass
        finally:
            bad.close()
    for i, data in pages.items():
        r.require(good.read(i * PAGE, PAGE) == data, f"page {i} after nonsense")
    # Silent clients keep their connections, up to the limit.
    silent = [nbd.dial(path) for _ in range(40)]
    wait_until(r, "some are turned away", lambda: state(r)["counters"]["turned_away"] >= 25, 20, state=lambda: state(r))
    r.require(good.read(0, PAGE) == pages[0], "a page beside silent clients")
    for s in silent:
        s.close()
    settled(r, "they are gone", lambda s: s["clients"] == 1)
    again = nbd.Client(path)
    r.require(again.read(3 * PAGE, PAGE) == pages[3], "a page for a new client")
    r.require(state(r)["counters"]["bad_clients"] > 20, f"{state(r)}")
    ends(r, c, path)


def server_of(r, c):
    """The process that serves the disk, a child of the command."""
    def find():
        for pid in procs.tree(c.pid, include_root=False):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    if f.read().split(b"\0")[1:2] == [b"disk-server"]:
                        return pid
            except OSError:
                pass
        return None
    return wait_until(r, "the disk has a server", find, 20)


def kill_server(r, c, sig=signal.SIGKILL):
    """Kills the server; returns once there is another one, or the command has ended."""
    before = server_of(r, c)
    os.kill(before, sig)
    wait_until(r, "another server", lambda: not c.alive() or server_of(r, c) != before, 20)


class Writer:
    """Writes pages one after another, each with a new version, while servers come and go."""

    def __init__(self, path, first, count, seed):
        self.path, self.first, self.count, self.rng = path, first, count, random.Random(seed)
        # For each page the last acknowledged version, and the one not yet acknowledged.
        self.done, self.open = {}, {}
        self.writes, self.ended = 0, threading.Event()
        self.thread = threading.Thread(target=self._write, daemon=True)
        self.thread.start()

    def _write(self):
        client = None
        while not self.ended.is_set():
            try:
                client = client or nbd.Client(self.path)
                i = self.first + self.rng.randrange(self.count)
                version = self.done.get(i, 0) + 1
                self.open[i] = version
                if version % 8 == 0:
                    client.trim(i * PAGE, PAGE)
                else:
                    client.write(i * PAGE, self.data(i, version))
                self.done[i] = version
                self.writes += 1
            except (OSError, ConnectionError):
                client = None

    @staticmethod
    def data(i, version):
        if version % 8 == 0:
            return bytes(PAGE)
        return page(i * 1000 + version, (700, 2500, PAGE)[version % 3]) if version else bytes(PAGE)

    def stop(self):
        self.ended.set()
        self.thread.join(30)

    def check(self, r, client):
        for i, version in self.open.items():
            done = self.done.get(i, 0)
            found = client.read(i * PAGE, PAGE)
            right = {done, version} if version > done else {done}
            r.require(any(found == self.data(i, v) for v in right), f"page {i} is in none of the versions {right}")


@check("disk-killed", modes=("signal",), timeout_s=90)
def killed(r):
    """Clients of a killed server find every acknowledged byte at the next one, which has the same path."""
    c, path = disk(r, pool=24 * MIB)
    client = nbd.Client(path)
    pages = fill(client, 3000)
    client.trim(0, 100 * PAGE)
    pages.update({i: bytes(PAGE) for i in range(100)})
    second = subprocess.run([r.session.canvas, "disk", "--size", "4M", "--nbd", path], capture_output=True, text=True,
                            timeout=20)
    r.same((second.returncode, second.stdout), (2, ""), "a second disk")
    r.require(f"--nbd: {path} is in use: another process listens there" in second.stderr, second.stderr)
    writers = [Writer(path, 4000 + n * 1000, 1000, n) for n in range(3)]
    rng = random.Random(4)
    pauses = []
    for n, sig in enumerate((signal.SIGKILL, signal.SIGABRT, signal.SIGKILL, signal.SIGILL)):
        before = [w.writes for w in writers]
        wait_until(r, "they write", lambda: all(w.writes > b + 150 for w, b in zip(writers, before)), 30)
        began = time.monotonic()
        kill_server(r, c, sig)
        try:
            client.read(0, PAGE)
            raise Failure("a dead server answers")
        except ConnectionError:
            pass
        client = nbd.Client(path)
        r.require(client.read(2999 * PAGE, PAGE) == pages[2999], "a page at the next server")
        pauses.append(time.monotonic() - began)
        looks(r, client, pages, rng, 600)
        client.write(n * PAGE, page(n + 7))
        pages[n] = page(n + 7)
    for w in writers:
        w.stop()
    got = settled(r, "it is told", lambda s: s["restarts"] == 4)
    r.same((got["lost_pages"], got["counters"]["damaged"]), (0, 0), "lost, damaged")
    for i, data in pages.items():
        r.require(client.read(i * PAGE, PAGE) == data, f"page {i} in the end")
    for w in writers:
        w.check(r, client)
    client.zero(0, SIZE)
    settled(r, "everything is free", lambda s: (s["stored_pages"], s["stored_bytes"], s["pool_bytes"]) == (0, 0, 0))
    r.note(f"answered again after {max(pauses) * 1000:.0f} ms at most; {sum(w.writes for w in writers)} writes beside")
    said = c.err()
    r.require("its server died of SIGABRT; another one takes over the stored data" in said, said)
    ends(r, c, path)


@check("disk-killed-often", modes=("signal",), timeout_s=60)
def killed_often(r):
    """Servers that die too often are not replaced, with one sentence; afterwards the next disk can use the
    path."""
    c, path = disk(r, "-o", "restarts=2")
    nbd.Client(path).write(0, page(1))
    for _ in range(2):
        kill_server(r, c)
        r.require(nbd.Client(path).read(0, PAGE) == page(1), "what is stored")
    os.kill(server_of(r, c), signal.SIGKILL)
    r.wait(c, expect=1)
    r.require("its servers died 3 times within a minute, the last one died of SIGKILL; no other is started" in c.err(),
              c.err())
    r.same([p for p in (path, path + ".lock") if os.path.exists(p)], [], "what is left of the socket")
    c, path = disk(r, "-o", "restarts=0")
    client = nbd.Client(path)
    client.write(0, page(1))
    r.same(procs.tree(c.pid, include_root=False), [], "processes beside it")
    r.stop(c, signal.SIGKILL, expect=-9)
    try:
        client.read(0, PAGE)
        raise Failure("a dead server answers")
    except ConnectionError:
        pass
    r.require(os.path.exists(path), "the socket is gone")
    c, path = disk(r, "-o", "codec=none")
    client = nbd.Client(path)
    r.require(client.read(0, PAGE) == bytes(PAGE), "something outlived the disk")
    client.write(0, page(2))
    settled(r, "it is stored as it is", lambda s: s["stored_bytes"] == PAGE + 16)
    ends(r, c, path)


@check("disk-holder-killed", modes=("signal",), timeout_s=60)
def holder_killed(r):
    """A server whose holder is killed goes on, and ends on SIGTERM; a server that gets SIGTERM ends its
    holder."""
    c, path = disk(r)
    client = nbd.Client(path)
    client.write(0, page(1))
    server = server_of(r, c)
    r.stop(c, signal.SIGKILL, expect=-9)
    r.require(client.read(0, PAGE) == page(1), "a page without the holder")
    other = nbd.Client(path)
    other.write(PAGE, page(2))
    r.require(client.read(PAGE, PAGE) == page(2), "what another client wrote")
    second = subprocess.run([r.session.canvas, "disk", "--size", "4M", "--nbd", path], capture_output=True, text=True,
                            timeout=20)
    r.same(second.returncode, 2, "a second disk beside it")
    os.kill(server, signal.SIGTERM)
    # This process has inherited the server.
    pid, code = wait_until(r, "it has ended", lambda: (end := os.waitpid(server, os.WNOHANG))[0] and end, 20)
    r.same((pid, code), (server, 0), "how it ended")
    r.same([p for p in (path, path + ".lock") if os.path.exists(p)], [], "what is left of the socket")
    # Killed at any step of its start.
    for i in range(r.size(8, 20)):
        c, path = disk(r, tag=f"again-{i}")
        server = server_of(r, c)
        time.sleep(i * 0.0005)
        os.kill(server, signal.SIGTERM)
        r.wait(c, expect=0)
        r.same([p for p in (path, path + ".lock") if os.path.exists(p)], [], f"what is left of socket {i}")


class Peak:
    """The state with the most stored pages, and the last one with any, sampled twice a second."""

    def __init__(self, r, on=None):
        """Calls `on` with each state until it returns something true."""
        self.run, self.most, self.last = r, {"stored_pages": 0, "ratio": 0}, {"stored_pages": 0}
        self.on = on
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self):
        while not self.ended.wait(0.5):
            now = state(self.run)
            if now.get("stored_pages", 0) > 2:
                self.last = now
            if now.get("stored_pages", 0) > self.most["stored_pages"]:
                self.most = now
            if self.on and now and self.on(now):
                self.on = None

    def stop(self):
        self.ended.set()
        self.thread.join()


# A guest with half of the memory that its program needs. Discards pages that the guest frees itself before
# the rest.
SWAPS = """
    echo 0 > /sys/block/vda/queue/rotational
    mkswap /dev/vda > /dev/null || exit 10
    swapon -d /dev/vda || exit 11
    grep vda /proc/swaps
    swapped 144 2 || exit 12
    grep -E 'pswp(in|out) ' /proc/vmstat
    swapoff /dev/vda || exit 13
    sleep 3
    blkdiscard /dev/vda || exit 14
"""


def attached(path):
    """qemu arguments that attach a disk over NBD, and wait for another server when one dies."""
    node = f"driver=nbd,node-name=far,server.type=unix,server.path={path},discard=unmap,reconnect-delay=60"
    device = "virtio-blk-pci,drive=far,werror=report,rerror=report,logical_block_size=4096,physical_block_size=4096"
    return ("-blockdev", node, "-device", device)


def shared(path, queues=1, memory_mib=96):
    """qemu arguments that attach a disk over vhost-user."""
    return ("-object", f"memory-backend-memfd,share=on,id=ram,size={memory_mib}M", "-machine", "memory-backend=ram", "-chardev",
            f"socket,id=far,path={path},reconnect=1", "-device", f"vhost-user-blk-pci,chardev=far,num-queues={queues}")


def vm_missing():
    for name in ("mkswap", "swapon", "swapoff", "blkdiscard"):
        if not shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
            return f"no {name} (Debian package util-linux)"
    return guest.missing()


def swaps(r, words, script=SWAPS, **o):
    """Runs the guest above; returns how many pages were swapped in and out."""
    result = guest.run("set -u\n" + script, files={"/usr/bin/swapped": r.binary("swapped-static")}, modules=("virtio_blk",),
                       programs=("mkswap", "swapon", "swapoff"), memory_mib=96, work=r.dir, qemu=words,
                       **{"timeout_s": 220, **o})
    r.note(f"{result.seconds:.0f} s in the guest")
    if result.code != 0:
        raise Failure(f"code {result.code} of the script\n{result.tail()}")
    r.require("round 1 is right" in result.output, result.tail())
    for said in (result.output, result.log):
        r.require("I/O error" not in said, f"an I/O error in the guest\n{result.tail()}")
    return {k: int(v) for k, v in (line.split() for line in result.output.splitlines() if line.startswith("pswp"))}


@check("vm-disk", modes=("signal",), slow_only=True, timeout_s=240, needs=vm_missing)
def vm(r):
    """A stock guest swaps onto the disk over NBD: every byte is right, and discarded pages are freed."""
    c, path = disk(r, size=512 * MIB, pool=256 * MIB)
    peak = Peak(r)
    moved = swaps(r, attached(path))
    peak.stop()
    r.require(moved["pswpout"] > 20_000 and moved["pswpin"] > 20_000, f"{moved}")
    got = settled(r, "the guest is gone", lambda s: s["clients"] == 0)
    r.require(peak.most["stored_pages"] > 15_000, f"at most {peak.most['stored_pages']} pages were stored")
    r.require(got["stored_pages"] <= 2 and got["pool_bytes"] < MIB, f"{got}")
    r.same((got["counters"]["refused"], got["counters"]["damaged"]), (0, 0), "refused, damaged")
    r.note(f"{moved['pswpout']} out, {moved['pswpin']} in, ratio {peak.most['ratio']:.2f}; "
           f"{peak.last['stored_pages']} pages stored at the last look before the end")
    ends(r, c, path)


@check("vm-disk-vhost", modes=("signal",), slow_only=True, timeout_s=240, needs=vm_missing)
def vm_vhost(r):
    """A guest swaps over vhost-user, in the guest's own memory, with two queues; a second guest can use the
    disk afterwards."""
    c, path = disk(r, "--queues", "2", size=512 * MIB, pool=256 * MIB, by="--vhost-user")
    peak = Peak(r)
    moved = swaps(r, shared(path, queues=2))
    peak.stop()
    r.require(moved["pswpout"] > 20_000 and moved["pswpin"] > 20_000, f"{moved}")
    got = settled(r, "the guest is gone", lambda s: s["clients"] == 0)
    r.require(peak.most["stored_pages"] > 15_000, f"at most {peak.most['stored_pages']} pages were stored")
    r.require(got["stored_pages"] <= 2 and got["pool_bytes"] < MIB, f"{got}")
    r.same((got["counters"]["refused"], got["counters"]["damaged"]), (0, 0), "refused, damaged")
    r.note(f"{moved['pswpout']} out, {moved['pswpin']} in, ratio {peak.most['ratio']:.2f}")
    second = guest.run("dd if=/dev/vda of=/dev/null bs=1M count=8 && dd if=/dev/urandom of=/dev/vda bs=4k count=64",
                       modules=("virtio_blk",), memory_mib=96, timeout_s=60, work=r.dir, qemu=shared(path, queues=2))
    r.same(second.code, 0, f"a second guest\n{second.tail()}")
    settled(r, "what it wrote is stored", lambda s: s["stored_pages"] >= 64)
    ends(r, c, path)


@check("disk-vhost-refused", modes=("signal",), timeout_s=60)
def vhost_refused(r):
    """Guest memory that could be truncated under the disk is refused in one line, and the disk goes on."""
    c, path = disk(r, by="--vhost-user")
    size = 16 * MIB
    with open(r.path("ram"), "wb+") as plain, open(os.memfd_create("ram", os.MFD_ALLOW_SEALING), "wb+") as sealed:
        for f in plain, sealed:
            f.truncate(size)
        fcntl.fcntl(sealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        for f, taken in (plain, False), (plain, False), (sealed, True):
            monitor = vhost.Monitor(path)
            r.same(monitor.takes_memory(f.fileno(), size), taken, "whether it takes the memory")
            monitor.close()
    r.same(c.err().count("-object memory-backend-memfd,share=on"), 1, f"lines about it\n{c.err()}")
    r.require(c.alive(), "the disk has ended")
    ends(r, c, path)


# Pages of one request, where it does not matter how many there are.
TOGETHER = 16


def fill(client, count, seed=0, random_bytes=2500):
    """Writes a number of pages; returns their contents."""
    pages = {i: page(seed * 1_000_003 + i, random_bytes) for i in range(count)}
    for first in range(0, count, TOGETHER):
        client.write(first * PAGE, b"".join(pages[i] for i in range(first, min(first + TOGETHER, count))))
    return pages


def all_right(r, client, pages):
    """Every one of the pages is what was written."""
    for first in range(0, max(pages) + 1, TOGETHER):
        got = client.read(first * PAGE, TOGETHER * PAGE)
        for i in range(first, first + TOGETHER):
            at = (i - first) * PAGE
            r.require(i not in pages or got[at:at + PAGE] == pages[i], f"page {i} in the end")


def looks(r, client, pages, rng, looks):
    for i in rng.sample(sorted(pages), looks):
        r.require(client.read(i * PAGE, PAGE) == pages[i], f"page {i}")


@check("disk-far", modes=("signal",), timeout_s=120)
def far(r):
    """Pages are demoted from a full pool to far memory, and come back; discards free space beyond the pool as
    well."""
    # More than a slab of them goes beyond the pool.
    size, count = 128 * MIB, r.size(18_500, 24_000)
    c, path = disk(r, "--far", "512M", "--to", f"disk:{r.dir}", size=size, pool=6 * MIB)
    client = nbd.Client(path)
    pages = fill(client, count, random_bytes=PAGE)
    got = settled(r, "most of it is beyond the pool",
                  lambda s: s["far_bytes"] > SLAB and s["stored_pages"] == count)
    r.require(got["pool_bytes"] <= 8 * MIB, f"{got}")
    rng = random.Random(2)
    for turn in range(r.size(2, 3)):
        looks(r, client, pages, rng, r.size(700, 2500))
        for i in rng.sample(sorted(pages), r.size(300, 600)):
            pages[i] = page(turn * 77_777 + i, rng.choice((0, 900, PAGE)))
            client.write(i * PAGE, pages[i])
    all_right(r, client, pages)
    got = settled(r, "reads beyond the pool are counted", lambda s: s["counters"]["far_reads"] > 1000)
    r.same([got["counters"][k] for k in ("damaged", "unreachable", "refused")], [0, 0, 0], "failures")
    agent = wait_for_agent(r, c)
    os.kill(agent, signal.SIGKILL)
    looks(r, client, pages, rng, r.size(300, 1000))
    client.zero(0, size)
    # The slab being filled stays.
    settled(r, "all is free", lambda s: s["stored_pages"] == 0 and s["far_bytes"] <= SLAB)
    r.require(client.read(0, MIB) == bytes(MIB), "what was discarded is not zeros")
    r.note(f"{got['counters']['far_reads']} reads beyond the pool")
    ends(r, c, path)
    wait_until(r, "its agent has ended", lambda: agent_of(c) is None, 20)


@check("disk-far-lost", modes=("signal",), timeout_s=120)
def far_lost(r):
    """With two copies a donor may die; without any copy a read fails after -o far-wait, and never returns
    zeros."""
    canvas_only(r)
    lending, servers = lenders(r, 2)
    c, path = disk(r, "--far", "256M", "--to", ",".join(servers), "--copies", "2", "-o", "far-wait=1s", pool=4 * MIB)
    client = nbd.Client(path)
    pages = fill(client, 4000, random_bytes=3000)
    settled(r, "most of it is at donors", lambda s: s["far_bytes"] > 0)
    rng = random.Random(5)
    looks(r, client, pages, rng, r.size(200, 500))
    r.stop(lending[0], signal.SIGKILL, expect=-9)
    looks(r, client, pages, rng, r.size(500, 1500))
    r.stop(lending[1], signal.SIGKILL, expect=-9)
    failed, right = 0, 0
    for i in rng.sample(sorted(pages), 200):
        try:
            r.require(client.read(i * PAGE, PAGE) == pages[i], f"page {i} is not what was written")
            right += 1
        except nbd.Refused as e:
            r.same(e.number, nbd.EIO, "the error")
            failed += 1
            if failed == 3:
                break
    r.same(failed, 3, f"reads that failed; {right} were right")
    settled(r, "failures are counted", lambda s: s["counters"]["unreachable"] >= 1)
    # It does not wait for donors that are gone.
    ends(r, c, path)


@check("disk-lanes", modes=("signal",), timeout_s=120)
def disk_lanes(r):
    """A disk reads pages directly from a donor, also after its server was replaced; with `-o lanes=off` it
    does not. When a donor dies, the agent reads the other copy. Every byte is right."""
    canvas_only(r)
    for flags in ((), ("-o", "lanes=off")):
        lending, servers = lenders(r, 2)
        tag = "lanes-" + (flags[-1] if flags else "on")
        c, path = disk(r, "--far", "256M", "--to", ",".join(servers), "--copies", "2", *flags, pool=4 * MIB, tag=tag)
        client = nbd.Client(path)
        pages = fill(client, 4000, random_bytes=3000)
        settled(r, "most of it is at donors", lambda s: s["far_bytes"] > 0 and s["pool_bytes"] < 4 * MIB, tag)
        rng = random.Random(5)
        looks(r, client, pages, rng, 600)
        got = settled(r, "reads are counted", lambda s: s["counters"]["far_reads"] > 250, tag)["counters"]
        r.note(f"{tag}: {got['lane_reads']} of {got['far_reads']} reads over lanes")
        if flags:
            r.same(got["lane_reads"], 0, "reads over lanes that nobody wanted")
            ends(r, c, path)
            continue
        # On a busy host the first reads come before the lanes.
        r.require(got["lane_reads"] > 100, f"reads over lanes: {got}")
        kill_server(r, c)
        client = nbd.Client(path)
        looks(r, client, pages, rng, 400)
        after = settled(r, "the next server reads over lanes",
                        lambda s: s["restarts"] == 1 and s["counters"]["lane_reads"] > got["lane_reads"] + 100, tag)
        r.stop(lending[0], signal.SIGKILL, expect=-9)
        looks(r, client, pages, rng, 600)
        r.same(settled(r, "it is told", lambda s: s["counters"]["far_reads"] > 0, tag)["counters"]["damaged"], 0, "damaged")
        r.require(after["counters"]["damaged"] == 0, f"{after}")
        ends(r, c, path)


@check("disk-donor-back", modes=("signal",), timeout_s=120)
def donor_back(r):
    """Two copies on two donors: while one is dead nothing leaves the pool, which fills; when it is back,
    writes go on."""
    canvas_only(r)
    lending, servers = lenders(r, 2)
    env = {"CANVAS_RUN_DIR": r.path("runs")}
    c, path = disk(r, "--tenant", "vm", "--far", "256M", "--to", ",".join(servers), "--copies", "2", "-o", "far-wait=2s",
                   pool=4 * MIB, env=env)

    def codes():
        done = subprocess.run([r.session.canvas, "status", "vm", "--json"], capture_output=True, text=True, timeout=20,
                              env={**os.environ, **env})
        return [p["code"] for p in json.loads(done.stdout)["health"]]

    client = nbd.Client(path)
    pages = fill(client, 3000, random_bytes=PAGE)
    # Its threshold: there is room for some of what comes then.
    settled(r, "most of it is at donors", lambda s: s["far_bytes"] > 0 and s["pool_bytes"] < 3.5 * MIB)
    r.stop(lending[0], signal.SIGKILL, expect=-9)
    rng, refused, slowest = random.Random(7), 0, 0
    for i in range(3000, 5000):
        data, began = page(i, PAGE), time.monotonic()
        try:
            client.write(i * PAGE, data)
            pages[i] = data
        except nbd.Refused as e:
            r.same(e.number, nbd.ENOSPC, "the error")
            refused += 1
        slowest = max(slowest, time.monotonic() - began)
    taken = len(pages) - 3000
    r.require(50 < taken < 1100 and refused > 0, f"{taken} were taken, {refused} refused")
    r.require(slowest < 10, f"one write took {slowest:.1f} s")
    said = codes()
    r.require("C001" in said and "C004" in said, f"{said}")
    looks(r, client, pages, rng, r.size(400, 1500))
    began = time.monotonic()
    again = r.start([r.session.canvas, "serve", "--listen", servers[0], "--memory", "256M", "--reserve", "0"],
                    tag="again", canvas_on=False)
    wait_until(r, "the donor listens", lambda: "listening on" in again.err() or not again.alive())

    wait_until(r, "all is well", lambda: codes() == [], 40, state=codes)
    r.note(f"{taken} writes taken, the slowest refused after {slowest:.1f} s; well {time.monotonic() - began:.1f} s after "
           "the donor was started")
    for i in range(5000, r.size(6000, 7000)):
        pages[i] = page(i, PAGE)
        client.write(i * PAGE, pages[i])
    looks(r, client, pages, rng, r.size(700, 3000))
    ends(r, c, path)


@check("vm-disk-far", modes=("signal",), slow_only=True, timeout_s=300, needs=vm_missing)
def vm_far(r):
    """A guest's swap beyond the pool, with copies on two of three donors, one of which dies: every byte is
    right."""
    canvas_only(r)
    lending, servers = lenders(r, 3)
    c, path = disk(r, "--far", "512M", "--to", ",".join(servers), "--copies", "2", "--queues", "2", size=512 * MIB,
                   pool=24 * MIB, by="--vhost-user")
    peak = Peak(r, on=lambda s: s["far_bytes"] and s["counters"]["reads"] > 20_000 and not lending[0].signal(signal.SIGKILL))
    moved = swaps(r, shared(path, queues=2))
    peak.stop()
    r.require(not lending[0].alive(), "no donor was killed")
    got = settled(r, "the guest is gone", lambda s: s["clients"] == 0)
    r.same([got["counters"][k] for k in ("damaged", "unreachable", "refused")], [0, 0, 0], "failures")
    r.require(peak.most["far_bytes"] > 0, "nothing was beyond the pool")
    r.note(f"{moved['pswpout']} out, {moved['pswpin']} in, {got['counters']['far_reads']} reads beyond the pool")
    ends(r, c, path)


# The swapped pages are lost, and programs that need them get SIGBUS: here one program, since only its group
# has little memory.
LOSES = """
    mkswap /dev/vda > /dev/null || exit 10
    swapon -d /dev/vda || exit 11
    echo +memory > /sys/fs/cgroup/cgroup.subtree_control
    mkdir /sys/fs/cgroup/little
    echo 48M > /sys/fs/cgroup/little/memory.max
    sh -c 'echo $$ > /sys/fs/cgroup/little/cgroup.procs; exec swapped 144 500'
    code=$?
    echo "swapped ended with $code"
    [ $code -gt 128 ] || exit 12
    echo lives > /out/lives
"""


@check("vm-disk-lost", modes=("signal",), slow_only=True, timeout_s=120, needs=vm_missing)
def vm_lost(r):
    """Killing a disk with all its processes kills the program that swapped, and nothing else: guest and host
    go on."""
    c, path = disk(r, "-o", "restarts=0", size=512 * MIB, pool=256 * MIB)
    peak = Peak(r, on=lambda s: s["stored_pages"] > 12_000 and not c.signal(signal.SIGKILL))
    words = [w.replace(",reconnect-delay=60", "") for w in attached(path)]
    result = guest.run("set -u\n" + LOSES, files={"/usr/bin/swapped": r.binary("swapped-static")}, modules=("virtio_blk",),
                       programs=("mkswap", "swapon"), memory_mib=256, timeout_s=100, work=r.dir, qemu=words)
    peak.stop()
    r.same((result.code, result.files.get("lives")), (0, b"lives\n"), f"the guest\n{result.tail()}")
    r.note(result.output.splitlines()[-1])
    r.wait(c, expect=-9)


class Killer:
    """Kills a disk's server every few seconds once the guest swaps."""

    def __init__(self, r, c, times, every_s):
        self.run, self.command, self.times, self.every_s = r, c, times, every_s
        self.kills, self.ended = 0, threading.Event()
        self.thread = threading.Thread(target=self._kill, daemon=True)
        self.thread.start()

    def _kill(self):
        while self.kills < self.times and not self.ended.wait(self.every_s):
            before = state(self.run)
            if before.get("stored_pages", 0) < 5000 or before["restarts"] != self.kills or not before["clients"]:
                continue
            kill_server(self.run, self.command)
            self.kills += 1

    def stop(self):
        self.ended.set()
        self.thread.join()


KILLED = SWAPS.replace("swapped 144 2", "swapped 144 8") + "    dmesg | grep -c 'I/O error' | sed 's/^/errors: /'\n"


def vm_killed(r, by, words, *flags, pool=256 * MIB):
    c, path = disk(r, "-o", "restarts=8", "--queues", "2", *flags, size=512 * MIB, pool=pool, by=by)
    killer = Killer(r, c, times=6, every_s=5)
    moved = swaps(r, words(path), script=KILLED, timeout_s=420)
    killer.stop()
    r.require(killer.kills >= 4, f"the server was killed {killer.kills} times only")
    got = settled(r, "the guest is gone", lambda s: s["clients"] == 0 and s["stored_pages"] <= 2)
    r.same((got["restarts"], got["lost_pages"]), (killer.kills, 0), "servers that died, pages lost")
    r.same([got["counters"][k] for k in ("refused", "damaged", "unreachable")], [0, 0, 0], "refused, damaged, unreachable")
    r.note(f"{killer.kills} servers killed; {moved['pswpout']} out, {moved['pswpin']} in")
    ends(r, c, path)


@check("vm-disk-killed", modes=("signal",), slow_only=True, timeout_s=500, needs=vm_missing)
def vm_killed_vhost(r):
    """A guest swaps over vhost-user while the disk's server is killed repeatedly: the guest sees pauses, and
    no error."""
    vm_killed(r, "--vhost-user", lambda path: shared(path, queues=2))


@check("vm-disk-killed-nbd", modes=("signal",), slow_only=True, timeout_s=500, needs=vm_missing)
def vm_killed_nbd(r):
    """A guest swaps over NBD, by qemu's own client, while the disk's server is killed repeatedly."""
    vm_killed(r, "--nbd", attached)
