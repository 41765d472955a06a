"""multiprocessing and subprocess: forks of a process with far memory, checked in the children."""

import hashlib
import multiprocessing
import subprocess
import sys

words = int(sys.argv[1])
data = [(i * 2654435761) & 0xFFFFFFFF for i in range(words)]
blobs = [hashlib.sha256(b"%d" % i).digest() * 40 for i in range(words // 40)]


def part(bounds):
    lo, hi = bounds
    h = hashlib.sha256()
    for i in range(lo, hi):
        h.update(b"%d" % data[i])
    for i in range(lo // 40, hi // 40):
        h.update(blobs[i])
    return h.hexdigest()


def main():
    step = words // 8
    bounds = [(i * step, (i + 1) * step) for i in range(8)]
    alone = [part(b) for b in bounds]
    with multiprocessing.get_context("fork").Pool(3) as pool:
        for turn in range(2):
            if pool.map(part, bounds) != alone:
                print("a child saw other data than its parent", file=sys.stderr)
                return 1
    far = blobs[:20_000]
    for turn in range(4):
        echo = subprocess.run(["cat"], input=b"".join(far), capture_output=True, close_fds=True)
        if echo.stdout != b"".join(far) or echo.returncode:
            print("cat gave back other bytes", file=sys.stderr)
            return 1
    print(hashlib.sha256("".join(alone).encode()).hexdigest())
    return 0


if __name__ == "__main__":
    sys.exit(main())
