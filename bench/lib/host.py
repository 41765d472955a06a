"""What the benches change on the host, and how it is changed back.

Each change is written to a journal under /run before it is made, as `lab run` does it. At the end, and on Ctrl-C,
SIGTERM and SIGHUP, the changes are undone, newest first. When the bench is killed, its guardian does it: a process in a
session of its own that waits on a pipe whose other end only the bench holds. When both are killed, the next bench does.
"""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time

MIB = 1 << 20
# The lock of all benches of this host (lab/bench/src/host/lock.rs).
LOCK = "/run/canvas-lab/lock"
JOURNAL = "/run/canvas-lab-programs.json"
ZRAM_CONTROL = "/sys/class/zram-control"


def lab(canvas):
    """The laboratory's command, which has the built-in workloads; it is built beside canvas."""
    return os.path.join(os.path.dirname(os.path.abspath(canvas)), "lab")


def read(path, default=""):
    try:
        with open(path) as f:
            return f.read()
    except OSError:
        return default


def write(path, text):
    with open(path, "w") as f:
        f.write(str(text))


def run(*argv, **more):
    """A tool; what it said when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, **more)
    if done.returncode:
        raise OSError(f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


def started(pid):
    """When a process was started, in ticks of the host; None when there is none."""
    try:
        fields = read(f"/proc/{pid}/stat").rsplit(")", 1)[1].split()
        return None if fields[0] in "ZX" else int(fields[19])
    except (IndexError, ValueError):
        return None


def swap_areas():
    return [line.split()[0] for line in read("/proc/swaps").splitlines()[1:]]


def _end(pid, when):
    for number, wait_s in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        if started(pid) != when:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        end = time.monotonic() + wait_s
        while started(pid) == when and time.monotonic() < end:
            time.sleep(0.01)


def _retry(step, wait_s=5):
    """What is busy for a moment is tried again."""
    end = time.monotonic() + wait_s
    while True:
        try:
            return step()
        except FileNotFoundError:
            return None
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def _zram(number):
    home = f"/sys/block/zram{number}"

    def step():
        if os.path.exists(home):
            write(f"{home}/reset", 1)
            write(f"{ZRAM_CONTROL}/hot_remove", number)
    _retry(step)


def _swapoff(path):
    if path in swap_areas():
        run("swapoff", path)


# What undoes a change, by its name in the journal.
STEPS = {
    "end": _end,
    "swapoff": _swapoff,
    "zram": _zram,
    "loop": lambda device: _retry(lambda: run("losetup", "-d", device)),
    "group": lambda path: _retry(lambda: os.rmdir(path)),
    "file": lambda path: _retry(lambda: os.unlink(path)),
    "tree": lambda path: shutil.rmtree(path, ignore_errors=True),
    "link": lambda name: subprocess.run(["ip", "link", "delete", name], capture_output=True),
    "namespace": lambda name: subprocess.run(["ip", "netns", "delete", name], capture_output=True),
    "write": write,
}


class Stopped(SystemExit):
    pass


class Host:
    """The changes that were made and not undone yet; one bench at a time."""

    def __init__(self, name):
        self.name, self.steps, self.guardian, self.numbers = name, [], None, 0

    def __enter__(self):
        os.makedirs(os.path.dirname(LOCK), 0o700, exist_ok=True)
        self.lock = open(LOCK, "a+")  # noqa: SIM115 (closed in __exit__)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"{self.name}: another bench runs on this host (see {LOCK})")
        self.lock.truncate(0)
        self.lock.write(str(os.getpid()))
        self.lock.flush()
        for step in reversed(json.loads(read(JOURNAL) or "[]")):
            print(f"{self.name}: undoes what a bench before left behind: {step}", file=sys.stderr)
            self._undo(step)
        self._watch()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop)
        return self

    def _watch(self):
        wait, self.hold_open = os.pipe()
        sys.stdout.flush()
        if os.fork() == 0:
            os.setsid()
            os.close(self.hold_open)
            # What the bench starts does not have the pipe (os.pipe() is not inherited), so it ends with the bench.
            if not os.read(wait, 1):
                for step in reversed(json.loads(read(JOURNAL) or "[]")):
                    self._undo(step)
                with contextlib.suppress(OSError):
                    os.unlink(JOURNAL)
            os._exit(0)
        os.close(wait)

    @staticmethod
    def _stop(number, _frame):
        # A second one changes nothing: what is undone is undone to the end.
        for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(other, signal.SIG_IGN)
        raise Stopped(128 + number)

    def __exit__(self, *_why):
        while self.steps:
            self.undo(self.steps[-1])
        os.write(self.hold_open, b"x")
        os.close(self.hold_open)
        with contextlib.suppress(ChildProcessError):
            os.wait()
        for path in (JOURNAL, LOCK):
            with contextlib.suppress(OSError):
                os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(LOCK))
        self.lock.close()

    def _note(self):
        write(JOURNAL + ".new", json.dumps(self.steps))
        os.replace(JOURNAL + ".new", JOURNAL)

    def hold(self, *step):
        """Writes down how the change that comes now is undone."""
        step = list(step)
        self.steps.append(step)
        self._note()
        return step

    def _undo(self, step):
        try:
            STEPS[step[0]](*step[1:])
        except OSError as e:
            print(f"{self.name}: cannot undo {step}: {e}", file=sys.stderr)

    def undo(self, step):
        if step in self.steps:
            self._undo(step)
            self.steps.remove(step)
            self._note()

    @contextlib.contextmanager
    def part(self):
        """What is changed in here is undone at its end."""
        before = len(self.steps)
        try:
            yield
        finally:
            while len(self.steps) > before:
                self.undo(self.steps[-1])

    def unique(self, what):
        self.numbers += 1
        return f"canvas-{what}-{os.getpid()}-{self.numbers}"

    def place(self):
        """A directory on disk, which goes with the bench."""
        path = f"/var/tmp/{self.unique('place')}"
        self.hold("tree", path)
        os.mkdir(path, 0o700)
        return path

    def start(self, argv, **more):
        """A process that is ended with the bench."""
        child = subprocess.Popen(argv, **more)
        self.hold("end", child.pid, started(child.pid))
        return child

    def end(self, child):
        """Ends what `start` began; its exit code."""
        self.undo(next((s for s in self.steps if s[:2] == ["end", child.pid]), None))
        return child.wait()

    def swap_on_zram(self, size):
        """Swap on a new device, lz4; its number."""
        self.free_of_swap()
        if not os.path.exists(ZRAM_CONTROL):
            run("modprobe", "zram")
        number = int(read(f"{ZRAM_CONTROL}/hot_add"))
        self.hold("zram", number)
        write(f"/sys/block/zram{number}/comp_algorithm", "lz4")
        write(f"/sys/block/zram{number}/disksize", size)
        device = f"/dev/zram{number}"
        end = time.monotonic() + 1
        while not os.path.exists(device) and time.monotonic() < end:
            time.sleep(0.01)
        if not os.path.exists(device):
            self.hold("file", device)
            run("mknod", "-m", "600", device, "b", *read(f"/sys/block/zram{number}/dev").strip().split(":"))
        run("mkswap", device)
        self.hold("swapoff", device)
        run("swapon", "-p", "100", device)
        return number

    def file_of(self, path, size):
        """A file without holes."""
        self.hold("file", path)
        with open(path, "wb") as f:
            os.fchmod(f.fileno(), 0o600)
            os.posix_fallocate(f.fileno(), 0, size)
        return path

    def swap_on(self, path, priority=100):
        run("mkswap", path)
        self.hold("swapoff", path)
        run("swapon", "-p", str(priority), path)

    def free_of_swap(self):
        if swap_areas():
            sys.exit(f"{self.name}: this host has swap already; take it off first (swapoff)")

    def loop(self, path):
        device = run("losetup", "--show", "--direct-io=on", "-f", path)
        self.hold("loop", device)
        return device


def zram_bytes(number):
    """The memory that a device takes."""
    return int((read(f"/sys/block/zram{number}/mm_stat").split() + [0] * 3)[2])


def controller(name):
    """Where a controller of control groups is mounted, and its version; (None, 0) without one."""
    for line in read("/proc/self/mounts").splitlines():
        _, root, kind, options, *_ = line.split()
        if kind == "cgroup" and name in options.split(","):
            return root, 1
        if kind == "cgroup2" and name in read(os.path.join(root, "cgroup.controllers")).split():
            return root, 2
    return None, 0


class Group:
    """A control group for memory."""

    def __init__(self, host, what):
        root, self.version = controller("memory")
        if not root:
            sys.exit(f"{host.name}: no memory controller of control groups is mounted")
        self.path = os.path.join(root, host.unique(what))
        host.hold("group", self.path)
        os.mkdir(self.path)

    def at(self, name):
        return os.path.join(self.path, name)

    def join(self):
        """The calling process enters; for preexec_fn."""
        write(self.at("cgroup.procs"), os.getpid())

    def pids(self):
        return [int(pid) for pid in read(self.at("cgroup.procs")).split()]

    def usage(self):
        return int(read(self.at("memory.usage_in_bytes" if self.version == 1 else "memory.current")))

    def major_faults(self):
        return int(dict(line.split() for line in read(self.at("memory.stat")).splitlines())["pgmajfault"])

    def limit(self, size):
        """Bounds it; None takes the bound off."""
        if self.version == 1:
            write(self.at("memory.limit_in_bytes"), -1 if size is None else size)
        else:
            write(self.at("memory.max"), "max" if size is None else size)

    def reclaim(self, size):
        """Takes so many bytes from it. False when it has not so much to give."""
        try:
            if self.version == 2:
                write(self.at("memory.reclaim"), size)
                return True
            # Version 1 has no memory.reclaim. To lower the limit reclaims what is above it first, and fails where that
            # cannot be had, so that the limit is never below what is in use, and nobody is ended for want of memory.
            try:
                self.limit(max(self.usage() - size, MIB) & ~4095)
            finally:
                self.limit(None)
            return True
        except OSError:
            return False


def facts():
    """The machine, without its name."""
    models = [line.split(":")[1].strip() for line in read("/proc/cpuinfo").splitlines() if "model name" in line]
    model = models[0] if models else ""
    memory = int(next(line.split()[1] for line in read("/proc/meminfo").splitlines() if "MemTotal" in line))
    return {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "processors": os.cpu_count(), "model": model,
            "memory_mib": memory >> 10, "kernel": os.uname().release,
            "huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled").strip(),
            "page_cluster": read("/proc/sys/vm/page-cluster").strip(),
            "swappiness": read("/proc/sys/vm/swappiness").strip(),
            "lru_gen": read("/sys/kernel/mm/lru_gen/enabled").strip()}


def load_average():
    return float(read("/proc/loadavg").split()[0])
