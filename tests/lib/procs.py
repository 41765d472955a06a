"""Processes: starts them, samples their whole tree's memory, and ends exactly those started."""

import ctypes
import os
import re
import signal
import subprocess
import threading
import time

PR_SET_CHILD_SUBREAPER = 36
SYS_KCMP = {"x86_64": 312, "aarch64": 272}[os.uname().machine]
KCMP_VM = 1
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def become_subreaper():
    """Adopts orphans of our children, so that daemons can be found and ended by pid."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _parents():
    """pid -> parent pid of every process."""
    table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as f:
                rest = f.read().rsplit(b")", 1)[1].split()
        except (OSError, IndexError):
            continue
        table[int(name)] = (int(rest[1]), rest[0])
    return table


def children(parent):
    """Pids of the living children of `parent`."""
    return [pid for pid, (its, state) in _parents().items() if its == parent and state != b"Z"]


def tree(root, include_root=True):
    """Living pids of `root` and all its descendants, parents first."""
    table = _parents()
    children = {}
    for pid, (parent, state) in table.items():
        if state != b"Z":
            children.setdefault(parent, []).append(pid)
    out, todo = [], [root]
    while todo:
        pid = todo.pop(0)
        if pid != root or (include_root and pid in table):
            out.append(pid)
        todo.extend(children.get(pid, ()))
    return out


def memories(pids):
    """The processes, without those that share another's memory (a child of vfork before its exec)."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    for pid in pids:
        # 0 means the same memory; if a process is gone, or the kernel cannot tell, it counts as different.
        if all(libc.syscall(SYS_KCMP, pid, other, KCMP_VM, 0, 0) != 0 for other in found):
            found.append(pid)
    return found


_ROLLUP = re.compile(rb"^(Pss_Anon|Anonymous|Swap|SwapPss|Rss):\s+(\d+) kB", re.M)


def rollup(pid):
    """Fields of /proc/PID/smaps_rollup in bytes; {} if the process is gone."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as f:
            return {k.decode(): int(v) * 1024 for k, v in _ROLLUP.findall(f.read())}
    except OSError:
        return {}


def rss_anon(pid):
    """Anonymous memory in bytes, from the kernel's own counter; 0 if the process is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as f:
            found = re.search(rb"^RssAnon:\s+(\d+) kB", f.read(), re.M)
            return int(found.group(1)) * 1024 if found else 0
    except OSError:
        return 0


def anon_bytes(pids):
    """Anonymous memory of these processes in total; shared copies count once.

    The smaller of two upper bounds. The walk over a process's maps takes milliseconds, in which pages that
    move towards its end are counted twice; the counter is read at once, but counts shared pages in each
    process.
    """
    return sum(min(rollup(p).get("Pss_Anon", 0), rss_anon(p)) for p in pids)


# Size of the mapping in which libcanvas keeps the compressed pool in every process (canvas-preload,
# areas.rs); its address is random for each run. The kernel lists it in adjacent parts: those writable so far,
# those only readable, and with --numa those of each node.
POOL_BYTES = 4 << 40

# Size of the mapping in which libcanvas keeps the swap cache's pages.
CACHE_BYTES = 128 << 20


def _resident_in(smaps, span):
    """Resident bytes in mappings of `span` bytes, from the lines of /proc/PID/smaps."""
    # Begin, end and KiB of readable mappings, each joined with those adjacent to it.
    found, inside = [], False
    for line in smaps:
        if line[:4] == b"Pss:":
            if inside:
                found[-1][2] += int(line.split()[1])
        elif line[0] in b"0123456789abcdef":
            ends, access = line.split()[:2]
            begin, end = (int(n, 16) for n in ends.split(b"-"))
            inside = access.startswith(b"r") and access.endswith(b"p")
            if inside and found and found[-1][1] == begin:
                found[-1][1] = end
            elif inside:
                found.append([begin, end, 0])
    return sum(kib * 1024 for begin, end, kib in found if end - begin == span)


def _shares_of(pids, span):
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps", "rb") as f:
                total += _resident_in(f, span)
        except OSError:
            continue
    return total


def pool_bytes(pids):
    """Memory of the pools of these processes in total; copies shared after a fork count once."""
    return _shares_of(pids, POOL_BYTES)


def cache_bytes(pids):
    """Memory of the swap caches of these processes in total; copies shared after a fork count once."""
    return _shares_of(pids, CACHE_BYTES)


class Sampler:
    """Samples the memory of a process tree until stopped.

    With `managed`, `root` is `canvas run` itself and is left out, and local memory is the anonymous memory
    without the pools. The pools are read from the maps: a counter lags behind them, and after a fork cannot
    know which pool pages are still shared. The walks over the maps are not atomic. If this thread had to wait
    for a processor during a walk, the pool may have been larger in between than before and after, so the
    sample is not used for local memory. Neither is a sample during which a process started or ended, since
    its shared pages move between the walks.
    """

    # Longest walk that is used for local memory. Walks take a few milliseconds.
    WALK_S_MAX = 0.03

    def __init__(self, root, managed=False, interval_s=0.1, looks=True):
        self.root, self.managed, self.interval_s = root, managed, interval_s
        self.anon_peak_bytes = 0
        self.local_peak_bytes = 0
        # Peak of the smaller of two consecutive samples: memory that lasts longer than the walk between them.
        self.local_lasting_peak_bytes = 0
        self._local_before_bytes = 0
        self.pool_peak_bytes = 0
        self.samples = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)
        if looks:
            self._thread.start()

    def _loop(self):
        # Frequent at first: short programs reach their peak within a fraction of a second. A managed program,
        # whose samples are expensive, costs a tenth of a processor at most.
        used_s = 0
        while not self._stop.wait(max(0.02 if self.samples < 50 else self.interval_s, self.managed * 9 * used_s)):
            began_s = time.thread_time()
            try:
                self.once()
            except (OSError, ValueError):
                continue
            finally:
                used_s = time.thread_time() - began_s

    def once(self):
        whole = tree(self.root, not self.managed)
        pids = memories(whole)
        began = time.monotonic()
        before = pool_bytes(pids) if self.managed else 0
        anon = anon_bytes(pids)
        self.samples += 1
        self.anon_peak_bytes = max(self.anon_peak_bytes, anon)
        if self.managed:
            # The pool may change while the maps are walked: only the certain part counts.
            pool = max(before, pool_bytes(pids))
            self.pool_peak_bytes = max(self.pool_peak_bytes, pool)
            if time.monotonic() - began > self.WALK_S_MAX or tree(self.root, False) != whole:
                return
            local = anon - pool
            self.local_peak_bytes = max(self.local_peak_bytes, local)
            lasting = min(local, self._local_before_bytes)
            self.local_lasting_peak_bytes = max(self.local_lasting_peak_bytes, lasting)
            self._local_before_bytes = local

    def stop(self):
        self._stop.set()
        if self._thread.ident:
            self._thread.join(timeout=5)


class Child:
    """A started process, with its output in files."""

    def __init__(self, argv, cwd, env, tag, stdin=None):
        self.argv = argv
        self.out_path = os.path.join(cwd, f"{tag}.out")
        self.err_path = os.path.join(cwd, f"{tag}.err")
        self.started_s = time.monotonic()
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.p = subprocess.Popen(
                argv,
                cwd=cwd,
                env=env,
                stdin=stdin if stdin is not None else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.pid = self.p.pid

    def out(self):
        with open(self.out_path, "r", errors="replace") as f:
            return f.read()

    def err(self):
        with open(self.err_path, "r", errors="replace") as f:
            return f.read()

    def tail(self, lines=15):
        text = [l[:300] for l in (self.err() + self.out()).splitlines()[-lines:]]
        return "\n".join(text)

    def wait(self, timeout_s=None):
        return self.p.wait(timeout=timeout_s)

    def alive(self):
        return self.p.poll() is None

    def signal(self, sig):
        if self.alive():
            self.p.send_signal(sig)

    def kill_tree(self):
        """Ends the process and all its descendants, found by parentage, not by name."""
        for _ in range(3):
            pids = tree(self.pid)
            if not pids:
                break
            for pid in reversed(pids):
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            time.sleep(0.02)
        try:
            self.p.wait(timeout=10)
        except subprocess.TimeoutExpired:
            pass


def end_orphans(keep=()):
    """Ends daemons that have left our children; as a subreaper this process is their parent."""
    me = os.getpid()
    for pid in tree(me, include_root=False):
        if pid in keep:
            continue
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
