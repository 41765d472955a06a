"""Memory-limited cgroups (v1 and v2) and swap on zram(lz4), always undone."""

import atexit
import os
import shutil
import subprocess
import threading
import time

MIB = 1 << 20
_undo = []


def _run_undo():
    while _undo:
        step = _undo.pop()
        try:
            step()
        except OSError:
            pass


atexit.register(_run_undo)


def _write(path, text):
    with open(path, "w") as f:
        f.write(str(text))


def _read(path):
    with open(path) as f:
        return f.read().strip()


class Unavailable(Exception):
    """The machine cannot do it; says why."""


def _memory_root():
    """(version, directory) of the memory controller."""
    v1 = "/sys/fs/cgroup/memory"
    if os.path.exists(f"{v1}/memory.limit_in_bytes") or os.path.exists(f"{v1}/memory.usage_in_bytes"):
        return 1, v1
    for v2 in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        controllers = f"{v2}/cgroup.controllers"
        if os.path.exists(controllers) and "memory" in _read(controllers).split():
            return 2, v2
    raise Unavailable("no cgroup memory controller (v1 or v2)")


class Cgroup:
    """A memory cgroup; used as `with Cgroup(name, bytes) as g: g.wrap(argv)`."""

    def __init__(self, name, limit_bytes, swap=True):
        if os.getuid() != 0:
            raise Unavailable("limiting memory by cgroup needs root")
        self.version, root = _memory_root()
        self.path = os.path.join(root, f"canvas-bench-{os.getpid()}-{name}")
        self.limit_bytes, self.swap = limit_bytes, swap

    def __enter__(self):
        try:
            if self.version == 2:
                parent = os.path.dirname(self.path)
                try:
                    _write(f"{parent}/cgroup.subtree_control", "+memory")
                except OSError:
                    pass
            os.mkdir(self.path)
            _undo.append(self._remove)
            if self.version == 1:
                _write(f"{self.path}/memory.limit_in_bytes", self.limit_bytes)
                if not self.swap:
                    _write(f"{self.path}/memory.swappiness", 0)
            else:
                _write(f"{self.path}/memory.max", self.limit_bytes)
                _write(f"{self.path}/memory.swap.max", "max" if self.swap else 0)
        except OSError as e:
            self._remove()
            raise Unavailable(f"cgroup {self.path}: {e}") from None
        return self

    def wrap(self, argv):
        """`argv` started inside the group: the shell moves itself, then becomes the program."""
        return ["sh", "-c", f'echo $$ > {self.path}/cgroup.procs && exec "$@"', "sh", *argv]

    def peak_bytes(self):
        name = "memory.max_usage_in_bytes" if self.version == 1 else "memory.peak"
        try:
            return int(_read(f"{self.path}/{name}"))
        except OSError:
            return 0

    def oom_kills(self):
        name = "memory.oom_control" if self.version == 1 else "memory.events"
        try:
            for line in _read(f"{self.path}/{name}").splitlines():
                word, value = line.split()
                if word == "oom_kill":
                    return int(value)
        except OSError:
            pass
        return 0

    def kill_all(self):
        try:
            pids = [int(p) for p in _read(f"{self.path}/cgroup.procs").split()]
        except OSError:
            return
        for pid in pids:
            try:
                os.kill(pid, 9)
            except OSError:
                pass

    def _remove(self):
        for _ in range(50):
            if not os.path.isdir(self.path):
                return
            self.kill_all()
            try:
                if self.version == 1:
                    try:
                        _write(f"{self.path}/memory.force_empty", 0)
                    except OSError:
                        pass
                os.rmdir(self.path)
                return
            except OSError:
                time.sleep(0.05)

    def __exit__(self, *_):
        self._remove()


class Zram:
    """Swap on a zram device of our own, lz4, switched on between enter and exit."""

    def __init__(self, size_bytes):
        self.size_bytes = size_bytes
        self.number = None

    @staticmethod
    def reason_not():
        """Why zram cannot be had here, or None."""
        if os.getuid() != 0:
            return "needs root"
        for tool in ("mkswap", "swapon", "swapoff"):
            if not shutil.which(tool):
                return f"{tool} is not installed"
        if not os.path.exists("/sys/class/zram-control"):
            if shutil.which("modprobe"):
                subprocess.run(["modprobe", "zram"], capture_output=True)
            if not os.path.exists("/sys/class/zram-control"):
                return "the kernel has no zram"
        with open("/proc/swaps") as f:
            if len(f.read().splitlines()) > 1:
                return "swap is already on; the bench leaves it alone"
        try:
            _memory_root()
        except Unavailable as e:
            return str(e)
        return None

    def __enter__(self):
        reason = self.reason_not()
        if reason:
            raise Unavailable(reason)
        try:
            self.number = int(_read("/sys/class/zram-control/hot_add"))
            self.sys = f"/sys/block/zram{self.number}"
            self.dev = f"/dev/zram{self.number}"
            _undo.append(self._remove)
            for _ in range(100):
                if os.path.exists(self.dev):
                    break
                time.sleep(0.02)
            else:
                major, minor = (int(x) for x in _read(f"{self.sys}/dev").split(":"))
                os.mknod(self.dev, 0o600 | 0o060000, os.makedev(major, minor))
            _write(f"{self.sys}/comp_algorithm", "lz4")
            _write(f"{self.sys}/disksize", self.size_bytes)
            subprocess.run(["mkswap", self.dev], check=True, capture_output=True)
            subprocess.run(["swapon", "-p", "100", self.dev], check=True, capture_output=True)
        except (OSError, ValueError, subprocess.CalledProcessError) as e:
            detail = getattr(e, "stderr", b"") or b""
            self._remove()
            raise Unavailable(f"zram: {e} {detail.decode(errors='replace').strip()}") from None
        self.most = (0, 0)
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def _watch(self):
        while not self._over.wait(0.5):
            self.most = max(self.most, self.figures())

    def figures(self):
        """(bytes stored, bytes they take) now."""
        try:
            v = [int(x) for x in _read(f"{self.sys}/mm_stat").split()]
            return v[0], v[1]
        except (OSError, ValueError):
            return 0, 0

    def _remove(self):
        if self.number is None:
            return
        with open("/proc/swaps") as f:
            on = self.dev in f.read()
        if on:
            subprocess.run(["swapoff", self.dev], capture_output=True)
        try:
            _write(f"{self.sys}/reset", 1)
            _write("/sys/class/zram-control/hot_remove", self.number)
            self.number = None
        except OSError:
            pass

    def __exit__(self, *_):
        self._over.set()
        self._remove()


def machine():
    """What the figures depend on."""

    def quiet(path):
        try:
            return _read(path)
        except OSError:
            return None

    cpu = "?"
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    kdamonds = "/sys/kernel/mm/damon/admin/kdamonds"
    damon = {}
    if os.path.isdir(kdamonds):
        damon["nr_kdamonds"] = quiet(f"{kdamonds}/nr_kdamonds")
        for name in sorted(os.listdir(kdamonds)):
            if name.isdigit():
                damon[name] = quiet(f"{kdamonds}/{name}/state")
    with open("/proc/meminfo") as f:
        memory_kib = int(f.readline().split()[1])
    config = {}
    if os.path.exists("/proc/config.gz"):
        text = subprocess.run(["zcat", "/proc/config.gz"], capture_output=True, text=True).stdout
        for key in ("CONFIG_PREEMPT_DYNAMIC", "CONFIG_ZRAM", "CONFIG_ZRAM_BACKEND_LZ4", "CONFIG_USERFAULTFD",
                    "CONFIG_LRU_GEN", "CONFIG_MEM_SOFT_DIRTY", "CONFIG_IDLE_PAGE_TRACKING", "CONFIG_DAMON"):
            config[key] = f"\n{key}=y" in text
    return {
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "virtual": "hypervisor" in open("/proc/cpuinfo").read(),
        "memory_mib": memory_kib // 1024,
        "kernel": os.uname().release,
        "kernel_config": config,
        "thp": quiet("/sys/kernel/mm/transparent_hugepage/enabled"),
        "unprivileged_userfaultfd": quiet("/proc/sys/vm/unprivileged_userfaultfd"),
        "swappiness": quiet("/proc/sys/vm/swappiness"),
        "damon": damon,
        "load_average": os.getloadavg(),
    }
