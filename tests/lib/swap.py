"""Swap of a test on a zram device. One at a time on a host, and not while a bench runs: they share a lock."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import time

from lib.harness import MIB, Skip, WantOfRoot

CONTROL = "/sys/class/zram-control"
# The bench's lock (lab/bench/src/host/lock.rs).
LOCK = "/run/canvas-lab/lock"


def areas():
    """Active swap areas."""
    with open("/proc/swaps") as f:
        return [line.split()[0] for line in f.read().splitlines()[1:]]


def missing():
    """Reason why tests cannot have swap here, or None."""
    if os.getuid() != 0:
        return WantOfRoot("switching swap on needs root")
    for command in ("mkswap", "swapon", "swapoff"):
        if not shutil.which(command):
            return f"{command} is not installed (tests/packages.txt)"
    if not os.path.exists(CONTROL) and subprocess.run(["modprobe", "zram"], capture_output=True).returncode:
        return "this kernel has no zram"
    return None


@contextlib.contextmanager
def _locked(timeout_s):
    """Holds the lock of this host's benches, as they take it."""
    end = time.monotonic() + timeout_s
    while True:
        os.makedirs(os.path.dirname(LOCK), 0o700, exist_ok=True)
        try:
            lock = open(LOCK, "a+")  # noqa: SIM115 (closed below)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the file since it was opened.
            if os.stat(LOCK).st_ino == os.fstat(lock.fileno()).st_ino:
                break
        except (BlockingIOError, FileNotFoundError):
            pass
        lock.close()
        if time.monotonic() > end:
            raise Skip(f"a bench has been running for {timeout_s} s")
        time.sleep(0.2)
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    try:
        yield
    finally:
        os.unlink(LOCK)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(LOCK))
        lock.close()


def _write(path, text):
    with open(path, "w") as f:
        f.write(str(text))


def _remove(number):
    end = time.monotonic() + 5
    while os.path.exists(f"/sys/block/zram{number}"):
        # Busy for a moment after swapoff, while udev inspects the device.
        try:
            _write(f"/sys/block/zram{number}/reset", 1)
            _write(f"{CONTROL}/hot_remove", number)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def _device(number):
    """The device's node, which udev creates; without udev this function does, and removes it later."""
    path, end = f"/dev/zram{number}", time.monotonic() + 1
    while not os.path.exists(path):
        if time.monotonic() > end:
            with open(f"/sys/block/zram{number}/dev") as f:
                subprocess.run(["mknod", "-m", "600", path, "b", *f.read().strip().split(":")], check=True)
            return path, True
        time.sleep(0.01)
    return path, False


@contextlib.contextmanager
def zram(size=256 * MIB, timeout_s=60):
    """Swap of `size` bytes, active in its block."""
    with _locked(timeout_s):
        if areas():
            raise Skip(f"swap is already on ({areas()[0]})")
        with open(f"{CONTROL}/hot_add") as f:
            number = int(f.read())
        device, is_ours = None, False
        try:
            _write(f"/sys/block/zram{number}/disksize", size)
            device, is_ours = _device(number)
            for command in (["mkswap", device], ["swapon", device]):
                subprocess.run(command, check=True, capture_output=True)
            yield device
        finally:
            if device in areas():
                subprocess.run(["swapoff", device], check=True)
            _remove(number)
            if is_ours and os.path.exists(device):
                os.unlink(device)
