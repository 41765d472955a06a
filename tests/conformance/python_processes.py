"""Children of Python programs: subprocess, fork, posix_spawn, waiting, multiprocessing, limits."""

import ctypes
import errno
import hashlib
import multiprocessing
import os
import pty
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import shared_memory

from conformance import (MIB, MUCH, absent, away, case, child, content, ended, error, expect, expect_content, main,
                         root_case, same, skip)

# Prints the descriptors that fstat sees.
OPEN = """
import os
found = []
for fd in range(4096):
    try:
        os.fstat(fd)
        found.append(fd)
    except OSError:
        pass
print(*found)
"""


def python(text, *words, **o):
    return subprocess.run([sys.executable, "-c", text, *words], capture_output=True, check=True, **o).stdout


# -- subprocess

@case
def close_fds_leaves_three():
    same(python(OPEN), b"0 1 2\n", "what the child has open")


@case
def close_fds_leaves_three_by_directory():
    said = python("import os; print(*sorted(map(int, os.listdir('/proc/self/fd'))))")
    same(said, b"0 1 2 3\n", "what the child has open")


@case
def pass_fds_passes_those():
    kept, closed = os.pipe(), os.pipe()
    os.set_inheritable(closed[0], True)
    said = python(OPEN, pass_fds=(kept[0], kept[1]))
    same(said, b"0 1 2 %d %d\n" % kept, "what the child has open")


@case
def pass_fds_of_a_high_number():
    r, w = os.pipe()
    high = 900
    os.dup2(r, high)
    os.write(w, b"through 900")
    same(python(f"import os; print(os.read({high}, 100))", pass_fds=(high,)), b"b'through 900'\n")


@case
def inheritable_without_close_fds():
    r, w = os.pipe()
    os.set_inheritable(r, True)
    said = python(OPEN, close_fds=False)
    same(said, b"0 1 2 %d\n" % r, "what the child has open")


@case
def preexec_has_all_memory():
    data = absent(MUCH)

    def look():
        expect_content(data)
        data[:] = bytes(len(data))
        os.umask(0o27)

    said = python("import os; print(oct(os.umask(0)))", preexec_fn=look)
    same(said, b"0o27\n", "the mask that preexec_fn set")
    expect_content(data)


@case
def preexec_that_raises_is_told():
    def wrong():
        raise ValueError

    try:
        subprocess.run(["true"], preexec_fn=wrong)
    except subprocess.SubprocessError:
        return
    raise AssertionError("no SubprocessError")


def ignored(**o):
    said = subprocess.run(["grep", "SigIgn", "/proc/self/status"], capture_output=True, check=True, **o).stdout
    return int(said.split()[1], 16)


@case
def restore_signals():
    pipe = 1 << signal.SIGPIPE - 1
    same((ignored() & pipe, ignored(restore_signals=False) & pipe), (0, pipe), "SIGPIPE ignored with and without")


@case
def signal_mask_of_a_child():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM})
    said = subprocess.run(["grep", "SigBlk", "/proc/self/status"], capture_output=True, check=True).stdout
    same(int(said.split()[1], 16), 1 << signal.SIGUSR1 - 1 | 1 << signal.SIGTERM - 1, "the child's mask")


@case
def communicate_of_much():
    data = away(content(MUCH))
    p = subprocess.run(["cat"], input=data, capture_output=True, check=True)
    expect_content(p.stdout)


@case
def communicate_by_text_both_ways():
    lines = "".join(f"{i} line\n" for i in range(200_000))
    p = subprocess.run([sys.executable, "-c", "import sys\nfor l in sys.stdin: sys.stdout.write(l); sys.stderr.write('.')"],
                       input=lines, capture_output=True, text=True, check=True)
    same((p.stdout == lines, len(p.stderr)), (True, 200_000))


@case
def program_that_is_not_there():
    error(errno.ENOENT, subprocess.run, ["/no/such/program"])
    error(errno.ENOENT, subprocess.run, ["true"], cwd="/no/such/directory")
    error(errno.EACCES, subprocess.run, ["/etc/passwd"])


@case
def words_and_environment_are_long():
    words = [f"word {i} " + "x" * 4000 for i in range(200)]
    env = {f"NAME{i}": "y" * 2000 for i in range(200)}
    said = python("import sys, os, hashlib\n"
                  "print(hashlib.sha256('|'.join(sys.argv[1:]).encode()).hexdigest())\n"
                  "print(sum(v == 'y' * 2000 for k, v in os.environ.items() if k.startswith('NAME')))",
                  *words, env={**os.environ, **env})
    same(said.split(), [hashlib.sha256("|".join(words).encode()).hexdigest().encode(), b"200"])


@case
def environment_is_what_was_given():
    out = subprocess.run(["/usr/bin/env"], env={"A": "1", "B": "2"}, capture_output=True, text=True, check=True).stdout
    same(sorted(l for l in out.splitlines() if not l.startswith(("CANVAS_", "LD_PRELOAD="))), ["A=1", "B=2"])


@case
def session_and_group():
    said = python("import os; print(os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid())", start_new_session=True)
    same(said, b"True True\n")


@root_case
def user_and_group():
    said = subprocess.run(["id", "-u"], user=65534, group=65534, extra_groups=[], capture_output=True, check=True)
    same(said.stdout, b"65534\n")


@case
def ends_are_told():
    codes = [subprocess.run(["sh", "-c", text]).returncode for text in ("exit 3", "kill -9 $$", "kill -15 $$", ":")]
    same(codes, [3, -9, -15, 0])


@case
def timeout_kills():
    try:
        subprocess.run(["sleep", "60"], timeout=0.1)
    except subprocess.TimeoutExpired:
        return
    raise AssertionError("no TimeoutExpired")


@case
def many_children_at_once():
    children = [subprocess.Popen(["sh", "-c", f"exit {i}"]) for i in range(40)]
    same([p.wait() for p in children], list(range(40)))


@case
def no_descriptor_is_left_by_children():
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(10):
        subprocess.run(["true"], check=True)
        same(ended(child(lambda: None)), 0)
    same(sorted(os.listdir("/proc/self/fd")), before, "descriptors")


# -- fork, spawn, wait

@case
def fork_has_all_and_keeps_its_own():
    data = absent(MUCH)

    def work():
        expect_content(data)
        data[:] = content(MUCH, salt=7)
        expect_content(away(data), salt=7)

    pid = child(work)
    expect_content(data)
    same(ended(pid), 0)
    expect_content(data)


@case
def forks_of_forks():
    data = absent(6 * MIB)

    def deeper(depth):
        expect_content(data)
        if depth:
            same(ended(child(deeper, depth - 1)), 0)

    same(ended(child(deeper, 5)), 0)


@case
def fork_beside_threads():
    data = absent(6 * MIB)
    stop, wrong = threading.Event(), []

    def hashes():
        want = hashlib.sha256(content(6 * MIB)).digest()
        while not stop.is_set():
            if hashlib.sha256(data).digest() != want:
                wrong.append(1)

    threads = [threading.Thread(target=hashes) for _ in range(3)]
    for t in threads:
        t.start()
    codes = [ended(child(expect_content, data)) for _ in range(8)]
    stop.set()
    for t in threads:
        t.join()
    same((codes, wrong), ([0] * 8, []))


@case
def fork_runs_its_hooks():
    said = []
    os.register_at_fork(before=lambda: said.append("before"), after_in_parent=lambda: said.append("parent"),
                        after_in_child=lambda: said.append("child"))
    pid = child(lambda: same(said, ["before", "child"]))
    same((ended(pid), said), (0, ["before", "parent"]))


@case
def pty_of_a_child():
    pid, terminal = pty.fork()
    if pid == 0:
        os.write(1, b"".join(b"%06d\n" % i for i in range(20_000)))
        os._exit(9)
    got = bytearray()
    while True:
        try:
            got += os.read(terminal, 65536)
        except OSError as e:
            same(e.errno, errno.EIO)
            break
    same(got.split(), [b"%06d" % i for i in range(20_000)])
    same(ended(pid), 9)


@case
def spawn_with_actions():
    with open("in", "wb") as f:
        f.write(b"from the file")
    actions = [(os.POSIX_SPAWN_OPEN, 0, "in", os.O_RDONLY, 0),
               (os.POSIX_SPAWN_OPEN, 1, "out", os.O_WRONLY | os.O_CREAT, 0o600),
               (os.POSIX_SPAWN_DUP2, 1, 2), (os.POSIX_SPAWN_CLOSE, 9)]
    os.dup2(0, 9)
    text = "cat; echo; echo $A >&2; [ -e /proc/self/fd/9 ] || echo closed"
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", text], {"A": "b"}, file_actions=actions)
    same(ended(pid), 0)
    with open("out", "rb") as f:
        same(f.read(), b"from the file\nb\nclosed\n")


@case
def spawn_with_masks_and_groups():
    pid = os.posix_spawnp("grep", ["grep", "Sig[BI]", "/proc/self/status"], os.environ, setpgroup=0,
                          setsigmask=[signal.SIGUSR2], setsigdef=[signal.SIGPIPE],
                          file_actions=[(os.POSIX_SPAWN_OPEN, 1, "out", os.O_WRONLY | os.O_CREAT, 0o600)])
    same(ended(pid), 0)
    with open("out") as f:
        masks = [int(line.split()[1], 16) for line in f]
    same((masks[0], masks[1] & 1 << signal.SIGPIPE - 1), (1 << signal.SIGUSR2 - 1, 0))


@case
def spawn_of_nothing():
    error(errno.ENOENT, os.posix_spawn, "/no/such/program", ["x"], {})


@case
def exec_with_long_words():
    words = [f"{i}" * 1000 for i in range(100)]
    text = "import sys, hashlib; sys.exit(hashlib.sha256(''.join(sys.argv[1:]).encode()).digest()[0])"
    pid = child(os.execv, sys.executable, [sys.executable, "-c", text, *words])
    same(ended(pid), hashlib.sha256("".join(words).encode()).digest()[0])


@case
def waitid_tells():
    pid = child(os._exit, 23)
    info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    same((info.si_pid, info.si_status, info.si_code), (pid, 23, os.CLD_EXITED))
    same(ended(pid), 23)
    error(errno.ECHILD, os.waitid, os.P_PID, pid, os.WEXITED)


@case
def waitid_of_a_pidfd():
    pid = child(signal.pause)
    fd = os.pidfd_open(pid)
    same(os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG), None)
    signal.pidfd_send_signal(fd, signal.SIGKILL)
    info = os.waitid(os.P_PIDFD, fd, os.WEXITED)
    same((info.si_pid, info.si_status, info.si_code), (pid, signal.SIGKILL, os.CLD_KILLED))


@case
def wait_of_all_children():
    pids = {child(os._exit, i): i for i in range(1, 9)}
    got = {}
    for _ in pids:
        pid, status, usage = os.wait3(0)
        got[pid] = os.waitstatus_to_exitcode(status)
        expect(usage.ru_maxrss > 0, "a child without memory")
    same(got, pids)
    error(errno.ECHILD, os.wait)


@case
def stopped_and_continued():
    pid = child(signal.pause)
    os.kill(pid, signal.SIGSTOP)
    same(os.WSTOPSIG(os.waitpid(pid, os.WUNTRACED)[1]), signal.SIGSTOP)
    os.kill(pid, signal.SIGCONT)
    expect(os.WIFCONTINUED(os.waitpid(pid, os.WCONTINUED)[1]), "not continued")
    os.kill(pid, signal.SIGTERM)
    same(ended(pid), -signal.SIGTERM)


@case
def scheduling_read_back():
    cpus = os.sched_getaffinity(0)
    one = {min(cpus)}
    os.sched_setaffinity(0, one)
    same(ended(child(lambda: same(os.sched_getaffinity(0), one))), 0)
    os.sched_setaffinity(0, cpus)
    same(os.sched_getaffinity(0), cpus)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    same((os.sched_getscheduler(0), os.nice(3) - os.nice(0)), (os.SCHED_BATCH, 0))
    error(errno.EINVAL, os.sched_setaffinity, 0, [])


# -- multiprocessing

def square(n):
    return n * n


def add(counter, times):
    for _ in range(times):
        with counter.get_lock():
            counter.value += 1


def check_and_change(name, size):
    memory = shared_memory.SharedMemory(name)
    expect_content(memory.buf[:size])
    memory.buf[:size] = content(size, salt=3)
    memory.close()


def echo(connection, other):
    other.close()
    while True:
        try:
            connection.send(connection.recv())
        except EOFError:
            return


@case
def shared_memory_by_name():
    memory = shared_memory.SharedMemory(create=True, size=MUCH)
    try:
        memory.buf[:MUCH] = content(MUCH)
        p = multiprocessing.get_context("spawn").Process(target=check_and_change, args=(memory.name, MUCH))
        p.start()
        p.join()
        same(p.exitcode, 0)
        expect_content(memory.buf[:MUCH], salt=3)
    finally:
        memory.close()
        memory.unlink()
    error(errno.ENOENT, shared_memory.SharedMemory, memory.name)


@case
def counter_of_four_processes():
    context = multiprocessing.get_context("fork")
    counter = context.Value(ctypes.c_long, 0)
    children = [context.Process(target=add, args=(counter, 500)) for _ in range(4)]
    for p in children:
        p.start()
    for p in children:
        p.join()
    same(([p.exitcode for p in children], counter.value), ([0] * 4, 2000))


@case
def pool_by_fork():
    with multiprocessing.get_context("fork").Pool(3) as pool:
        same(pool.map(square, range(5000), chunksize=100), [n * n for n in range(5000)])


@case
def pool_by_spawn():
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        same(list(pool.map(square, range(500), chunksize=50)), [n * n for n in range(500)])


@case
def pool_by_a_server():
    # A socket's name has 107 bytes at most.
    tempfile.tempdir = "/tmp"
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("forkserver")) as pool:
        same(list(pool.map(square, range(500), chunksize=50)), [n * n for n in range(500)])


@case
def large_objects_by_a_connection():
    here, there = multiprocessing.Pipe()
    p = multiprocessing.get_context("fork").Process(target=echo, args=(there, here))
    p.start()
    there.close()
    large = [{"number": i, "text": f"row {i}", "list": [i] * 3} for i in range(30_000)]
    here.send(large)
    expect(here.recv() == large, "the objects came back otherwise")
    here.send(away(content(8 * MIB)))
    expect_content(here.recv())
    here.close()
    p.join()


@case
def large_objects_by_a_queue():
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    p = context.Process(target=lambda: [queue.put(content(2 * MIB, salt=i)) for i in range(6)])
    p.start()
    for i in range(6):
        expect_content(queue.get(), salt=i)
    p.join()
    same(p.exitcode, 0)


# -- limits

def open_all():
    opened = []
    while True:
        try:
            opened.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as e:
            same(e.errno, errno.EMFILE)
            return opened


@case
def as_many_descriptors_as_the_limit_says():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    opened = open_all()
    same(opened, list(range(3, 64)), "the numbers")
    same(ended(child(os._exit, 7)), 7)
    for fd in opened:
        os.close(fd)
    same(subprocess.run(["sh", "-c", "ulimit -n"], capture_output=True, check=True).stdout, b"64\n")


@case
def hard_limit_of_descriptors():
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))
    same(resource.getrlimit(resource.RLIMIT_NOFILE), (256, 1024))
    same(ended(child(os._exit, 7)), 7)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    same(len(open_all()), 253)
    same(ended(child(os._exit, 7)), 7)


@case
def limit_of_a_child_by_prlimit():
    pid = child(signal.pause)
    before = resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
    same((before, resource.prlimit(pid, resource.RLIMIT_CORE)), (resource.getrlimit(resource.RLIMIT_CORE), (0, 0)))
    os.kill(pid, signal.SIGKILL)
    same(ended(pid), -9)


@case
def limit_of_addresses_is_a_memory_error():
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, hard))
    try:
        bytearray(2 << 30)
    except MemoryError:
        pass
    else:
        raise AssertionError("no MemoryError")
    same(len(bytearray(8 * MIB)), 8 * MIB)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    expect_content(absent(MUCH))


@case
def limit_of_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
    with open("file", "wb", buffering=0) as f:
        same(f.write(away(content(4 * MIB))), MIB, "what fits")
        error(errno.EFBIG, f.write, b"more")


@case
def limit_of_processor_time():
    def burn():
        resource.setrlimit(resource.RLIMIT_CPU, (1, 2))
        while True:
            pass

    same(ended(child(burn)), -signal.SIGXCPU)


@case
def limit_of_locked_memory():
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (MIB, MIB))
    except ValueError:
        skip("the hard limit of locked memory is below 1 MiB")
    same(resource.getrlimit(resource.RLIMIT_MEMLOCK), (MIB, MIB))
    same(ended(child(expect_content, absent(MUCH))), 0)


if __name__ == "__main__":
    main()
