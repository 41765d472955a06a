"""Small processes under one limit.

`crowd.py PROCESSES MIB [FILE]`: PROCESSES programs (not forks), each of which rewrites and checks MIB MiB and
prints an answer for each round; they go on until FILE exists, or for three rounds without FILE. `crowd.py
storm N`: N short-lived forks, eight at a time, each of which changes and checks its inherited memory.
`crowd.py redis SOURCE DIRECTORY UNITS...`: parts of Redis's own tests, four at a time, on the installed
Redis. `crowd.py timed COMMAND...`: duration of a command, in the bench's format.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time

PAGE = 4096


def content(page, turn):
    return hashlib.sha512(b"%d %d" % (page, turn)).digest() * (PAGE // 64)


def member(mib, until):
    pages = [content(i, 0) for i in range(mib * 256)]
    turn = 0
    while turn < 3 or (until and not os.path.exists(until)):
        turn += 1
        for i, page in enumerate(pages):
            if page != content(i, turn - 1):
                sys.exit(f"page {i} is wrong in turn {turn}")
            pages[i] = content(i, turn)
        print("turn", turn, flush=True)
    print("right", flush=True)


def crowd(processes, mib, until):
    argv = [sys.executable, __file__, "member", str(mib), until]
    all_of_them = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    for p in all_of_them:
        p.stdout.readline()
    print("all have made a turn", flush=True)
    for p in all_of_them:
        if "right" not in p.communicate()[0] or p.returncode != 0:
            sys.exit(f"process {p.pid} ended with {p.returncode}")
    print("crowd right", flush=True)


def storm(forks):
    pages = [bytearray(content(i, 0)) for i in range(2048)]

    def child(n):
        for i in range(n % 16, len(pages), 16):
            if pages[i] != content(i, 0):
                os._exit(1)
            pages[i][:] = content(i, n)
        ok = all(pages[i] == content(i, n if i % 16 == n % 16 else 0) for i in range(0, len(pages), 7))
        os._exit(0 if ok else 2)

    alive, ended = 0, 0
    for n in range(forks):
        if os.fork() == 0:
            child(n + 1)
        alive += 1
        while alive == 8 or (n == forks - 1 and alive):
            _, status = os.wait()
            if status != 0:
                sys.exit(f"a child ended with {status}")
            alive -= 1
            ended += 1
    if any(page != content(i, 0) for i, page in enumerate(pages)):
        sys.exit("a child's write reached its parent")
    print("storm right", ended, flush=True)


def redis_tests(source, directory, units):
    shutil.copytree(os.path.join(source, "tests"), os.path.join(directory, "tests"))
    os.makedirs(os.path.join(directory, "src"))
    for name in ("redis-server", "redis-cli", "redis-benchmark", "redis-check-aof"):
        os.symlink(shutil.which(name), os.path.join(directory, "src", name))
    singles = [word for unit in units for word in ("--single", unit)]
    argv = ["tclsh8.6", "tests/test_helper.tcl", "--clients", "4", *singles]
    run = subprocess.run(argv, cwd=directory, stdout=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(run.stdout[-2000:])


def timed(argv):
    began = time.monotonic()
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    print(json.dumps({"answer": "ended well", "seconds": round(time.monotonic() - began, 3)}))


if __name__ == "__main__":
    if sys.argv[1] == "timed":
        timed(sys.argv[2:])
    elif sys.argv[1] == "storm":
        storm(int(sys.argv[2]))
    elif sys.argv[1] == "redis":
        redis_tests(sys.argv[2], sys.argv[3], sys.argv[4:])
    elif sys.argv[1] == "member":
        member(int(sys.argv[2]), sys.argv[3])
    else:
        crowd(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
