"""The directory of the tests' files, in which programs can be started, and which the ordinary user of the
tests can reach.

/tmp may not do: it may be mounted noexec, and on a tmpfs its files are memory.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile

USUAL = ("/tmp", "/var/tmp")
# Space that the tests need at one time: disks of the far tier, swap files, images of guests.
FREE_MIB = 3 << 10


def is_open(path):
    """Whether every user can reach files in `path`."""
    path = os.path.realpath(path)
    while True:
        if not os.stat(path).st_mode & stat.S_IXOTH:
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)


def is_memory(path):
    """Whether files in `path` are memory: its innermost mount is a tmpfs."""
    path, innermost, kind = os.path.realpath(path), "", ""
    with open("/proc/mounts") as f:
        for line in f:
            _, place, this, *_ = line.split()
            if (path + "/").startswith(place.rstrip("/") + "/") and len(place) >= len(innermost):
                innermost, kind = place, this
    return kind in ("tmpfs", "ramfs")


def what_is_wrong(path):
    """Reason why tests cannot work in `path`, or None."""
    try:
        with tempfile.NamedTemporaryFile("w", dir=path, prefix="canvas-", delete=False) as f:
            f.write("#!/bin/sh\nexit 0\n")
        try:
            os.chmod(f.name, 0o755)
            if subprocess.run([f.name]).returncode:
                return "programs in it do not run"
        finally:
            os.unlink(f.name)
        if os.getuid() == 0 and not is_open(path):
            return "only its owner can reach it, and tests run as an ordinary user, too"
        if (free := shutil.disk_usage(path).free >> 20) < FREE_MIB:
            return f"{free} MiB are free, and the tests want {FREE_MIB}"
    except PermissionError:
        return "no program can be started there, or nothing can be written (mounted noexec?)"
    except OSError as e:
        return e.strerror
    return None


def find():
    """Finds the directory: TMPDIR first, disks before memory. Ends the program if there is none."""
    places = sorted(USUAL, key=lambda p: os.path.isdir(p) and is_memory(p))
    if os.environ.get("TMPDIR"):
        places.insert(0, os.environ["TMPDIR"])
    wrong = []
    for place in places:
        reason = what_is_wrong(place)
        if reason is None:
            return place
        wrong.append(f"{place}: {reason}")
    sys.exit(f"the tests need a directory for their files; name one by TMPDIR ({'; '.join(wrong)})")


if __name__ == "__main__":
    print(find())
