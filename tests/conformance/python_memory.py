"""Memory of Python programs: the mmap module, memory files, large objects, foreign functions, faults."""

import array
import ctypes
import errno
import faulthandler
import fcntl
import gc
import hashlib
import mmap
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
import zlib

from conformance import (MIB, MUCH, PAGE, absent, away, case, child, content, ended, error, expect, expect_content, main,
                         same, skip)

PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
F_ADD_SEALS, F_SEAL_WRITE, F_SEAL_SHRINK = 1033, 8, 2


def private(size, **o):
    m = mmap.mmap(-1, size, flags=PRIVATE, **o)
    m[:] = content(size)
    return away(m)


def file_of(size):
    with open("file", "wb") as f:
        f.write(content(size))
    return open("file", "r+b")


# -- the mmap module

@case
def anonymous_and_private():
    m = private(MUCH)

    def work():
        expect_content(m)
        m[:] = content(MUCH, salt=1)
        expect_content(away(m), salt=1)

    same(ended(child(work)), 0)
    expect_content(m)


@case
def anonymous_and_shared():
    m = mmap.mmap(-1, MUCH)
    m[:] = content(MUCH)

    def work():
        expect_content(m)
        m[:] = content(MUCH, salt=1)

    same(ended(child(work)), 0)
    expect_content(m, salt=1)


@case
def file_written_through():
    with file_of(MUCH) as f, mmap.mmap(f.fileno(), 0) as m:
        expect_content(m)
        m[:] = content(MUCH, salt=2)
        m.flush()
        f.seek(0)
        expect_content(f.read(), salt=2)


@case
def file_copied_on_write():
    with file_of(MUCH) as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY) as m:
        m[:] = content(MUCH, salt=2)
        expect_content(m, salt=2)
        expect_content(f.read())


@case
def file_read_only():
    with file_of(MIB) as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
        expect_content(m)
        try:
            m[0] = 1
        except TypeError:
            return
    raise AssertionError("a read-only mapping was written to")


@case
def file_with_an_offset():
    with file_of(MIB) as f, mmap.mmap(f.fileno(), PAGE * 2, offset=PAGE * 3) as m:
        same(m[:], content(MIB)[PAGE * 3:PAGE * 5])


@case
def file_resized():
    with file_of(MIB) as f:
        m = mmap.mmap(f.fileno(), 0)
        m.resize(MUCH)
        same((len(m), os.fstat(f.fileno()).st_size), (MUCH, MUCH))
        expect_content(m[:MIB])
        expect(not any(m[MIB:]), "what was added is not zeros")
        m.resize(PAGE)
        same((len(m), os.fstat(f.fileno()).st_size), (PAGE, PAGE))


@case
def private_resized():
    m = private(4 * MIB)
    m.resize(MUCH)
    expect_content(m[:4 * MIB])
    expect(not any(m[4 * MIB:]), "what was added is not zeros")
    m[:] = content(MUCH)
    away(m)
    m.resize(3 * MIB)
    expect_content(m)


@case
def searched_and_moved():
    m = private(MUCH)
    mark = b"a mark that is nowhere else"
    m[9 * MIB - 10:9 * MIB - 10 + len(mark)] = mark
    away(m)
    same((m.find(mark), m.rfind(mark), m.find(b"nowhere at all")), (9 * MIB - 10, 9 * MIB - 10, -1))
    m[9 * MIB - 10:9 * MIB - 10 + len(mark)] = content(MUCH)[9 * MIB - 10:9 * MIB - 10 + len(mark)]
    m.move(MIB, 0, 5 * MIB)
    expect_content(m[:MIB])
    same(hashlib.sha256(m[MIB:6 * MIB]).digest(), hashlib.sha256(content(5 * MIB)).digest())


@case
def read_line_by_line():
    m, lines = mmap.mmap(-1, 4 * MIB, flags=PRIVATE), 4 * MIB // 16
    for i in range(lines):
        m.write(b"%015d\n" % i)
    away(m)
    m.seek(0)
    same(sum(m.readline() == b"%015d\n" % i for i in range(lines)), lines)


@case
def given_up_by_madvise():
    m = private(MUCH)
    m.madvise(mmap.MADV_DONTNEED, 0, 5 * MIB)
    expect(not any(m[:5 * MIB]), "what was given up is not zeros")
    same(m[5 * MIB:], content(MUCH)[5 * MIB:])
    m.madvise(mmap.MADV_DONTFORK)
    same(ended(child(lambda: m[0])), -signal.SIGSEGV)


@case
def wrong_madvise():
    m = private(MUCH)
    error(errno.EINVAL, m.madvise, 9999)


@case
def too_large():
    error(errno.ENOMEM, mmap.mmap, -1, 1 << 55, flags=PRIVATE)
    try:
        bytearray(1 << 55)
    except MemoryError:
        return
    raise AssertionError("no MemoryError")


@case
def memory_file():
    fd = os.memfd_create("name", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, MUCH)
    same(os.pwrite(fd, absent(MUCH), 0), MUCH)
    data = away(bytearray(MUCH))
    same(os.preadv(fd, [data], 0), MUCH)
    expect_content(data)
    fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK)
    error(errno.EPERM, os.pwrite, fd, b"x", 0)
    error(errno.EPERM, os.ftruncate, fd, 0)
    same(subprocess.run(["sha256sum", f"/proc/self/fd/{fd}"], pass_fds=(fd,), capture_output=True,
                        check=True).stdout.split()[0].decode(), hashlib.sha256(data).hexdigest())


# -- large objects

@case
def bytearray_grows_and_shrinks():
    data = bytearray()
    for i in range(MUCH // MIB):
        data += content(MIB, salt=i)
        away(data)
    for i in range(MUCH // MIB):
        expect_content(data[i * MIB:(i + 1) * MIB], salt=i)
    del data[:MUCH - 3 * MIB]
    expect_content(data[:MIB], salt=MUCH // MIB - 3)


@case
def array_sorted():
    numbers = away(array.array("Q", (i * 7919 % 100_003 for i in range(100_003))))
    same(sorted(numbers), list(range(100_003)))


@case
def graph_collected():
    class Node:
        pass

    before = len(gc.get_objects())
    for _ in range(2):
        nodes = [Node() for _ in range(60_000)]
        for a, b in zip(nodes, nodes[1:] + nodes[:1]):
            a.next, b.previous = b, a
        del nodes, a, b
        gc.collect()
    expect(len(gc.get_objects()) < before + 1000, "the collector left objects")


@case
def frozen_graph_in_children():
    tree = {i: {"list": list(range(5)), "text": str(i)} for i in range(20_000)}
    gc.collect()
    gc.freeze()

    def work():
        gc.collect()
        same(sum(len(v["list"]) + len(v["text"]) == 5 + len(str(k)) for k, v in tree.items()), 20_000)

    children = [child(work) for _ in range(3)]
    same([ended(pid) for pid in children], [0] * 3)


@case
def pickled_and_back():
    rows = [{"number": i, "text": f"row {i}", "list": [i, i + 1]} for i in range(40_000)]
    text = away(bytearray(pickle.dumps(rows)))
    expect(pickle.loads(text) == rows, "the objects came back otherwise")


@case
def pickled_out_of_band():
    buffers = []
    frame = pickle.dumps(pickle.PickleBuffer(absent(MUCH)), protocol=5, buffer_callback=buffers.append)
    expect_content(pickle.loads(frame, buffers=[b.raw() for b in buffers]))


@case
def packed_and_hashed():
    data = absent(MUCH)
    same(hashlib.sha256(data).digest(), hashlib.sha256(content(MUCH)).digest())
    packed = away(bytearray(zlib.compress(data, 1) * 8))
    expect_content(zlib.decompress(packed))


@case
def hashed_by_threads():
    data = absent(MUCH)
    want, got = hashlib.sha256(content(MUCH)).digest(), []
    threads = [threading.Thread(target=lambda: got.append(hashlib.sha256(data).digest())) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    same(got, [want] * 6)


@case
def database_in_memory_and_in_a_file():
    for place in (":memory:", "base"):
        base = sqlite3.connect(place)
        base.execute("create table t (n integer primary key, text text)")
        base.executemany("insert into t values (?, ?)", ((i, f"{i} " * 30) for i in range(30_000)))
        base.commit()
        base.execute("create index by_text on t (text)")
        same(base.execute("select count(*), sum(n) from t where text > '5'").fetchone(),
             (sum(str(i) + " " >= "5" for i in range(30_000)), sum(i for i in range(30_000) if str(i) + " " >= "5")))
        same(base.execute("pragma integrity_check").fetchone(), ("ok",))
        base.close()


# -- foreign functions and faults

@case
def callbacks_over_an_absent_array():
    numbers = away(array.array("I", (i * 2654435761 % (1 << 32) for i in range(600_000))))
    less = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(ctypes.c_uint32))
    part = (ctypes.c_uint32 * 2000).from_buffer(numbers, 1_000_000)
    want = sorted(numbers[250_000:252_000])
    sort = ctypes.CDLL(None).qsort
    sort.restype = None
    sort(part, ctypes.c_size_t(2000), ctypes.c_size_t(4), less(lambda a, b: (a[0] > b[0]) - (a[0] < b[0])))
    same(list(numbers[250_000:252_000]), want)


@case
def memory_functions_of_libc():
    a, b = absent(MUCH // 2), absent(MUCH // 2)
    libc = ctypes.CDLL(None)
    one, two = ((ctypes.c_char * len(x)).from_buffer(x) for x in (a, b))
    same(libc.memcmp(one, two, ctypes.c_size_t(len(a))), 0)
    libc.memset(one, 7, ctypes.c_size_t(len(a)))
    away(a)
    libc.memcpy(two, one, ctypes.c_size_t(len(a)))
    same(b.count(7), len(b))


FAULT = """
import faulthandler, ctypes, os, sys
faulthandler.enable()
data = [os.urandom(1 << 20) for i in range(20)]
sums = [hash(d) for d in data]
assert [hash(bytes(bytearray(d))) for d in data] == sums
ctypes.string_at(0)
"""


@case
def fault_is_told():
    p = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True)
    same(p.returncode, -signal.SIGSEGV)
    same((p.stderr.count("Fatal Python error"), "Segmentation fault" in p.stderr), (1, True))


@case
def handler_of_faults_and_absent_pages():
    with open("log", "w") as log:
        faulthandler.enable(log)
        faulthandler.register(signal.SIGUSR1, log)
        data = absent(MUCH)
        os.kill(os.getpid(), signal.SIGUSR1)
        expect_content(data)
        faulthandler.disable()
    with open("log") as log:
        said = log.read()
    same(("Fatal" in said, "handler_of_faults_and_absent_pages" in said), (False, True), "what the handler wrote")


@case
def file_that_shrank_is_a_bus_error():
    f = file_of(4 * PAGE)
    m = mmap.mmap(f.fileno(), 0)
    os.ftruncate(f.fileno(), PAGE)
    same(ended(child(lambda: m[2 * PAGE])), -signal.SIGBUS)


@case
def own_memory_by_proc():
    data = absent(MUCH)
    address = ctypes.addressof(ctypes.c_char.from_buffer(data))
    with open("/proc/self/mem", "rb", buffering=0) as f:
        f.seek(address + 5 * MIB)
        same(f.read(PAGE), content(MUCH)[5 * MIB:5 * MIB + PAGE])


@case
def pages_of_the_process_are_listed():
    with open("/proc/self/maps") as f:
        lines = f.read().splitlines()
    starts = [int(line.split("-")[0], 16) for line in lines]
    same(starts, sorted(starts))
    expect(any("[stack]" in line for line in lines), "no stack")
    try:
        os.stat("/proc/self/smaps_rollup")
    except OSError:
        skip("this kernel has no smaps_rollup")
    with open("/proc/self/smaps_rollup") as f:
        expect("Rss:" in f.read(), "no Rss")


if __name__ == "__main__":
    main()
