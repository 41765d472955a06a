"""`canvas read` and `canvas dump`: the bytes of managed programs, read from outside and by gdb."""

import contextlib
import os
import re
import shutil
import signal
import struct
import subprocess

from lib import canvas, procs
from lib.clients import Redis, wait_socket
from lib.harness import MIB, ONCE, Skip, check

from .operate import wait_until

PAGE = 4096
PT_LOAD = 1


def command(r, *words, prefix=()):
    """Runs a canvas command: exit code, stdout, stderr."""
    done = subprocess.run([*prefix, r.session.canvas, *map(str, words)], capture_output=True, timeout=120,
                          cwd=r.dir)
    return done.returncode, done.stdout, done.stderr.decode()


def whole(r, *words):
    """Runs a command that must succeed without output on stderr."""
    code, out, err = command(r, *words)
    r.require((code, err) == (0, ""), f"canvas {words}: exit code {code}, {err}")
    return out


def holder(r, mib=32, kind="private", **o):
    """tests/c/holder.c under canvas: child, process, first address, contents."""
    expected = r.path("expected.bin")
    c = r.start([r.binary("holder"), mib, expected, kind], tag="holder", stdin=subprocess.PIPE, **o)
    wait_until(r, "the program holds its memory", lambda: "\n" in c.out() or not c.alive())
    addr, size = c.out().split()[:2]
    pid = next(p for p in procs.tree(c.pid, False) if "holder" in open(f"/proc/{p}/comm").read())
    with open(expected, "rb") as f:
        want = f.read()
    r.same(len(want), int(size), "bytes of the program")
    return c, pid, int(addr, 16), want


def dumped(r, pid, name):
    """The file that `canvas dump` writes."""
    core = r.path(name)
    whole(r, "dump", pid, "-o", core)
    return core


def whole_is_right(r, what, got, want):
    """Checks that all bytes are as expected."""
    wrong = differs(got, want)
    r.require(not wrong, f"{what}: {wrong}")


def end(r, c, left="pages_out"):
    """Has the program check its own bytes, and end."""
    c.p.stdin.close()
    r.wait(c, timeout_s=60)
    r.require("right" in c.out(), f"the program found its bytes wrong\n{c.tail()}")
    stats = r.load_stats(c)
    r.same(canvas.find(stats, "verify_failures"), 0, "verify_failures")
    r.require(canvas.find(stats, left) > 4000, "hardly anything was far: the test shows nothing")
    return stats


def differs(got, want):
    """The first page that differs, as text; empty if none does."""
    if got == want:
        return ""
    for i in range(0, len(want), PAGE):
        if got[i:i + PAGE] != want[i:i + PAGE]:
            return f"page {i // PAGE} of {len(want) // PAGE} (kind {i // PAGE % 5}) differs"
    return f"{len(got)} bytes instead of {len(want)}"


class Core:
    """The mappings of a core dump."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.bytes = f.read()
        at, = struct.unpack_from("<Q", self.bytes, 32)
        n, = struct.unpack_from("<H", self.bytes, 56)
        self.loads = []
        for i in range(n):
            kind, _, offset, addr, _, size, _, _ = struct.unpack_from("<IIQQQQQQ", self.bytes, at + i * 56)
            if kind == PT_LOAD:
                self.loads.append((addr, offset, size))

    def read(self, addr, size):
        """Bytes of the process, which may span several mappings."""
        out = b""
        while len(out) < size:
            at = addr + len(out)
            found = [(a, o, n) for a, o, n in self.loads if a <= at < a + n]
            if not found:
                return out
            start, offset, length = found[0]
            n = min(size - len(out), start + length - at)
            out += self.bytes[offset + at - start:offset + at - start + n]
        return out


def refusals(r, pid, addr):
    """Requests that cannot be met: each gets its sentence and exit code 2, and nothing is written."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    stranger = []
    if os.getuid() == 0 and r.session.user:
        u = r.session.user
        stranger = ["setpriv", "--reuid", str(u.pw_uid), "--regid", str(u.pw_gid), "--clear-groups", "--"]
    cases = [
        (["read", gone.pid, addr, 64], (), f"there is no process {gone.pid}"),
        (["read", os.getpid(), addr, 64], (), "is not managed by canvas"),
        (["read", pid, "0x1000", 64], (), "nothing is mapped at 0x1000"),
        (["read", pid, "here", 64], (), "it is not an address"),
        (["read", pid, addr, 0], (), "the range is empty"),
        (["dump", gone.pid, "-o", r.path("no.core")], (), f"there is no process {gone.pid}"),
        (["dump", os.getpid(), "-o", r.path("no.core")], (), "is not managed by canvas"),
        (["dump", pid, "-o", r.path("expected.bin")], (), "write another name after -o"),
    ]
    if stranger:
        cases.append((["read", pid, addr, 64], stranger, "may not be read"))
        cases.append((["dump", pid, "-o", r.path("no.core")], stranger, "may not be read"))
    for words, prefix, sentence in cases:
        code, out, err = command(r, *words, prefix=prefix)
        r.same((code, out), (2, b""), f"canvas {words}")
        r.require(sentence in err and err.count("\n") == 1, f"canvas {words}: {err}")
    r.require(not os.path.exists(r.path("no.core")), "a refused dump left a file")


@check("inspect", normal=ONCE, timeout_s=120)
def inspect(r):
    """Bytes of a running program by `canvas read` and `canvas dump`, compared with its own afterwards."""
    if not r.managed:
        return
    c, pid, addr, want = holder(r, local=16 * MIB, pool=64 * MIB)
    out = r.path("read.bin")
    for _ in range(r.size(1, 3)):
        whole(r, "read", pid, hex(addr), len(want), "-o", out)
        with open(out, "rb") as f:
            whole_is_right(r, "canvas read", f.read(), want)
    # A range across pages to stdout; text output.
    r.same(whole(r, "read", pid, addr + 2 * PAGE - 7, 20, "--raw"), want[2 * PAGE - 7:2 * PAGE + 13], "read --raw")
    lines = whole(r, "read", pid, hex(addr + 2 * PAGE), 32).decode().splitlines()
    text = want[2 * PAGE:2 * PAGE + 32]
    r.same(len(lines), 2, "lines of 32 bytes")
    r.same(bytes.fromhex("".join(line.split("  |")[0].split(" ", 1)[1] for line in lines)), text, "read")
    r.require(lines[0].endswith(f"|{text[:16].decode()}|"), lines[0])
    core = dumped(r, pid, "one.core")
    whole_is_right(r, "canvas dump", Core(core).read(addr, len(want)), want)
    r.same(os.stat(core).st_mode & 0o777, 0o600, "mode of the core")
    r.require(os.stat(core).st_blocks * 512 < 2 * len(want) + 32 * MIB, "the core is not sparse")
    refusals(r, pid, hex(addr))
    end(r, c)


# How often to stop a process again that was stopped while canvas evicted its pages.
STOPS = 50


@contextlib.contextmanager
def stopped(r, pid, addr, size):
    """Stops the process while none of its pages is in flight; returns its bytes by `canvas read`."""
    for n in range(STOPS):
        os.kill(pid, signal.SIGSTOP)
        try:
            code, got, err = command(r, "read", pid, hex(addr), size, "--raw")
            if code == 1 and "in transit to or from far memory" in err and n < STOPS - 1:
                continue
            r.same((code, err), (0, ""), "canvas read, stopped")
            yield got
            return
        finally:
            os.kill(pid, signal.SIGCONT)


@check("inspect-deep", timeout_s=120, modes=("signal",))
def inspect_deep(r):
    """Bytes of pages beyond the pool, with the program running and stopped."""
    if not r.managed:
        return
    c, pid, addr, want = holder(r, local=12 * MIB, pool=4 * MIB, extra=["--far", "256M", "--to", f"disk:{r.dir}"])
    whole_is_right(r, "canvas read", whole(r, "read", pid, hex(addr), len(want), "--raw"), want)
    with stopped(r, pid, addr, len(want)) as got:
        whole_is_right(r, "canvas read, stopped", got, want)
        core = dumped(r, pid, "stopped.core")
    whole_is_right(r, "canvas dump", Core(core).read(addr, len(want)), want)
    stats = end(r, c)
    r.require(canvas.find(stats, "pages_demoted") > 1000, "nothing went beyond the pool")


@check("inspect-shared", timeout_s=120, modes=("signal",), slow_only=True)
def inspect_shared(r):
    """Bytes of memory that forks share."""
    if not r.managed:
        return
    c, pid, addr, want = holder(r, kind="shared", local=24 * MIB, pool=64 * MIB, extra=["--shared", "8M"])
    whole_is_right(r, "canvas read", whole(r, "read", pid, hex(addr), len(want), "--raw"), want)
    # The program walks over it all the time: a stop often falls into an eviction, and must not be the last
    # one.
    for n in range(r.size(2, 4)):
        core = dumped(r, pid, f"shared-{n}.core")
        whole_is_right(r, "canvas dump", Core(core).read(addr, len(want)), want)
        os.unlink(core)
    end(r, c, "shared_pages_out")


@check("inspect-shared-deep", timeout_s=120, modes=("signal",))
def inspect_shared_deep(r):
    """Bytes of shared memory beyond the pool."""
    if not r.managed:
        return
    c, pid, addr, want = holder(r, kind="shared", local=24 * MIB, pool=MIB,
                                extra=["--shared", "4M", "--far", "512M", "--to", f"disk:{r.dir}"])
    whole_is_right(r, "canvas read", whole(r, "read", pid, hex(addr), len(want), "--raw"), want)
    core = dumped(r, pid, "shared-deep.core")
    whole_is_right(r, "canvas dump", Core(core).read(addr, len(want)), want)
    end(r, c, "shared_pages_demoted")


# Marks each page of 12 MiB, private and shared, and excludes [3, 9) MiB of both from dumps, but includes [5,
# 6) again; a child inherits that.
MARKS = """
import mmap, os, sys
MIB = 1 << 20
for kind, flags in (b"private", mmap.MAP_PRIVATE), (b"shared", mmap.MAP_SHARED):
    m = mmap.mmap(-1, 12 * MIB, flags=flags | mmap.MAP_ANONYMOUS)
    for page in range(12 * 256):
        m[page * 4096:page * 4096 + 64] = b"%s=%05d;" % (kind[::-1], page) + bytes(range(64, 64 + 51))[:64 - len(kind) - 7]
    m.madvise(mmap.MADV_DONTDUMP, 3 * MIB, 6 * MIB)
    m.madvise(mmap.MADV_DODUMP, 5 * MIB, MIB)
    globals()[kind.decode()] = m
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(os.getpid(), child, flush=True)
sys.stdin.read()
os.waitpid(child, 0)
"""


@check("inspect-left-out", normal=ONCE, timeout_s=120)
def inspect_left_out(r):
    """Memory that the program excludes from core dumps (MADV_DONTDUMP) is not in that of `canvas dump`, and
    all other memory is, managed or native, near or far, also in a fork's child."""
    if not r.managed:
        return
    want = {n for n in range(12 * 256) if not (3 * 256 <= n < 5 * 256 or 6 * 256 <= n < 9 * 256)}
    for n, flags in enumerate([(), ("--shared", "4M")] if r.mode == "signal" else [()]):
        c = r.start(["python3", "-c", MARKS], local=14 * MIB, pool=64 * MIB, extra=flags, stdin=subprocess.PIPE)
        wait_until(r, "the program holds its memory", lambda c=c: "\n" in c.out() or not c.alive())
        for who, pid in zip(("parent", "child"), c.out().split()):
            with open(dumped(r, pid, f"{who}-{n}.core"), "rb") as f:
                core = f.read()
            for kind in b"private", b"shared":
                got = {int(page) for page in re.findall(kind[::-1] + rb"=(\d{5});@", core)}
                r.same((sorted(got - want), sorted(want - got)), ([], []), f"{who}, {kind}, {flags}")
        c.p.stdin.close()
        r.wait(c, timeout_s=60)
        r.require(canvas.find(r.load_stats(c), "pages_out") > 500, "hardly anything was far: the test shows nothing")


def gdb(r, *words):
    """Output of gdb in batch mode."""
    if not shutil.which("gdb"):
        raise Skip("gdb is not installed")
    argv = ["gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", *map(str, words)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=100, cwd=r.dir)
    return done.stdout + done.stderr


@check("inspect-gdb", normal=ONCE, timeout_s=150)
def inspect_gdb(r):
    """gdb opens a dump, with threads, symbols and far bytes; and canvas reads a process that gdb holds."""
    if not r.managed:
        return
    c, pid, addr, want = holder(r, local=16 * MIB, pool=64 * MIB)
    core = dumped(r, pid, "gdb.core")
    pages = [2, 3, 4, 1003, 5008, len(want) // PAGE - 1]
    look = [w for p in pages for w in ("-ex", f"x/1gx {addr + p * PAGE:#x}")]
    text = gdb(r, r.binary("holder"), core, *look, "-ex", "print pages", "-ex", "info threads")
    for p in pages:
        value = int.from_bytes(want[p * PAGE:p * PAGE + 8], "little")
        r.require(re.search(rf"{addr + p * PAGE:#x}:\t0x{value:016x}$", text, re.M), f"page {p} in gdb:\n{text}")
    r.require(f"$1 = {len(want) // PAGE}" in text, f"no symbols in gdb:\n{text}")
    # The program's four threads; canvas may have some of its own. Their states change at each moment.
    r.require(text.count("[New LWP ") >= 4 and f"(LWP {pid})" in text, f"threads are missing in gdb:\n{text}")
    # Under gdb canvas still reads and dumps. Stopped before, since gdb takes seconds to attach.
    live, other = r.path("live.bin"), r.path("live.core")
    with stopped(r, pid, addr, len(want)):
        text = gdb(r, "-p", pid,
                   "-ex", f"shell {r.session.canvas} read {pid} {addr:#x} {len(want)} -o {live}",
                   "-ex", f"shell {r.session.canvas} dump {pid} -o {other}", "-ex", "detach")
    for path, got in ((live, lambda: open(live, "rb").read()), (other, lambda: Core(other).read(addr, len(want)))):
        r.require(os.path.exists(path), f"no {path}:\n{text}")
        whole_is_right(r, f"{path}\n{text}", got(), want)
    end(r, c)


@check("inspect-redis", timeout_s=150, modes=("signal",), slow_only=True)
def inspect_redis(r):
    """All values of a redis with mostly far memory are in its dump."""
    if not r.managed:
        return
    if not shutil.which("redis-server"):
        raise Skip("redis-server is not installed")
    sock = r.path("redis.sock")
    c = r.start(["redis-server", "--port", 0, "--unixsocket", sock, "--save", "", "--appendonly", "no"],
                tag="redis", local=16 * MIB, pool=256 * MIB)
    wait_socket(sock, c)
    client = Redis(sock)
    values = [b"value-%05d:" % i + os.urandom(1488) for i in range(20_000)]
    for answer in client.pipeline((b"SET", b"k%d" % i, v) for i, v in enumerate(values)):
        r.same(answer, b"OK", "SET")
    pid = next(p for p in procs.tree(c.pid, False) if "redis" in open(f"/proc/{p}/comm").read())
    held = Core(dumped(r, pid, "redis.core")).bytes
    # In one pass: searching for each value separately takes half a minute.
    found = {held[m.start():m.start() + 1500] for m in re.finditer(rb"value-\d{5}:", held)}
    r.same(len(set(values) - found), 0, "values that the dump lacks")
    r.same(client.do(b"GET", b"k19999"), values[19999], "redis afterwards")
    r.stop(c, expect=0)
    r.require(canvas.find(r.load_stats(c), "pages_out") > 4000, "hardly anything was far")
