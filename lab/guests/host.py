"""Processes and files of one run. The laboratory, which started the run, removes what is left of them."""

import os
import subprocess
import time

MIB = 1 << 20
SLAB_MIB = 64


def read(path, default=""):
    try:
        with open(path) as f:
            return f.read()
    except OSError:
        return default


class Host:
    """Processes that were started and have not ended yet."""

    def __init__(self):
        self.children, self.numbers = [], 0

    def unique(self, what):
        self.numbers += 1
        return f"{what}-{os.getpid()}-{self.numbers}"

    def start(self, argv, **more):
        self.children.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, **more))
        return self.children[-1]

    def end(self, child):
        """Ends a process that `start` started; returns its exit code."""
        if child in self.children:
            self.children.remove(child)
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                child.kill()
        return child.wait()

    def end_all(self):
        for child in reversed(self.children[:]):
            self.end(child)


def file_of(path, size):
    """Creates a file without holes."""
    with open(path, "wb") as f:
        os.posix_fallocate(f.fileno(), 0, size)


def is_direct(place):
    """Whether files in the directory can be read past the page cache."""
    name = os.path.join(place, "direct")
    try:
        os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600))
        return True
    except OSError:
        return False
    finally:
        if os.path.exists(name):
            os.unlink(name)


class Donor:
    """`canvas serve` on this host."""

    def __init__(self, host, canvas, place, mib):
        log = os.path.join(place, host.unique("serve"))
        with open(log, "w") as err:
            self.child = host.start([canvas, "serve", "--memory", f"{mib}M", "--reserve", "0", "--listen", "127.0.0.1:0"],
                                    stderr=err)
        end = time.monotonic() + 10
        while "listening on" not in read(log):
            if time.monotonic() > end or self.child.poll() is not None:
                raise OSError(f"the donor does not listen: {read(log).strip()}")
            time.sleep(0.02)
        self.address = read(log).split("listening on ")[1].split(",")[0]
