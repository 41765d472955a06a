"""Files, sockets, waiting and signals of Python programs, with buffers that are away."""

import asyncio
import errno
import fcntl
import os
import pickle
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time

from conformance import (MIB, MUCH, PAGE, absent, away, case, child, content, ended, error, expect, expect_content, main,
                         same)


def in_thread(fn, *arguments):
    t = threading.Thread(target=fn, args=arguments)
    t.start()
    return t


def file_of(size, salt=0):
    f = tempfile.TemporaryFile()
    f.write(content(size, salt))
    f.flush()
    f.seek(0)
    return f


# -- files

@case
def readinto():
    with file_of(MUCH) as f:
        data = absent(MUCH, salt=9)
        same(f.readinto(data), MUCH)
        expect_content(data)


@case
def readinto_unbuffered():
    with file_of(MUCH) as f:
        data = absent(MUCH, salt=9)
        same(f.raw.readinto(data), MUCH)
        expect_content(data)


@case
def preadv_to_many_buffers():
    with file_of(8 * MIB) as f:
        buffers = [absent(2 * MIB, salt=i + 5) for i in range(4)]
        same(os.preadv(f.fileno(), buffers, 0), 8 * MIB)
        expect_content(b"".join(buffers))


@case
def pwritev_from_many_buffers():
    with tempfile.TemporaryFile() as f:
        buffers = [away(bytearray(content(8 * MIB)[i * 2 * MIB:(i + 1) * 2 * MIB])) for i in range(4)]
        same(os.pwritev(f.fileno(), buffers, 0), 8 * MIB)
        expect_content(f.read())


@case
def write_and_read_by_buffers():
    with open("file", "w+b") as f:
        data = absent(MUCH)
        for at in range(0, MUCH, 1000):
            f.write(data[at:at + 1000])
        f.seek(0)
        expect_content(f.read())


@case
def text_of_many_lines():
    with open("file", "w+", encoding="utf-8") as f:
        f.writelines(f"line {i} ä\n" for i in range(150_000))
        f.seek(0)
        same(sum(line == f"line {i} ä\n" for i, line in enumerate(f)), 150_000)


@case
def sendfile_and_copies():
    with file_of(4 * MIB) as source, tempfile.TemporaryFile() as copy:
        done = 0
        while done < 4 * MIB:
            done += os.copy_file_range(source.fileno(), copy.fileno(), 4 * MIB - done)
        copy.seek(0)
        expect_content(copy.read())
        a, b = socket.socketpair()
        got = bytearray()
        reader = in_thread(lambda: [got.extend(x) for x in iter(lambda: b.recv(1 << 16), b"")])
        source.seek(0)
        same(a.sendfile(source), 4 * MIB)
        a.close()
        reader.join()
        expect_content(got)


@case
def locks_between_processes():
    with open("file", "w+b") as f:
        fcntl.lockf(f, fcntl.LOCK_EX, 100, 50)

        def work():
            error(errno.EAGAIN, fcntl.lockf, f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 60)
            fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 50, 0)

        same(ended(child(work)), 0)


@case
def ioctl_changes_a_buffer():
    r, w = os.pipe()
    os.write(w, b"x" * 1234)
    ready = bytearray(4)
    fcntl.ioctl(r, termios.FIONREAD, ready)
    same(struct.unpack("i", ready), (1234,))
    buffer = away(bytearray(2 * MIB))
    fcntl.ioctl(r, termios.FIONREAD, buffer)
    same(struct.unpack_from("i", buffer), (1234,))


@case
def names_of_many_files():
    names = {f"file {i} " + "n" * 100 for i in range(1500)}
    for name in names:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600))
    same({e.name for e in os.scandir(".") if e.stat().st_size == 0} >= names, True)
    same(len([os.unlink(name) for name in names]), 1500)


# -- pipes and sockets

@case
def large_write_to_a_pipe():
    r, w = os.pipe()
    data = absent(MUCH)

    def work():
        os.close(r)
        with open(w, "wb", buffering=0, closefd=False) as f:
            view = memoryview(data)
            while view:
                view = view[f.write(view):]

    pid = child(work)
    os.close(w)
    with open(r, "rb") as f:
        expect_content(f.read())
    same(ended(pid), 0)


@case
def pickles_through_pipes():
    text = "import pickle, sys; pickle.dump(pickle.load(sys.stdin.buffer), sys.stdout.buffer)"
    rows = [{"number": i, "text": "x" * (i % 50), "list": (i, [i])} for i in range(30_000)]
    p = subprocess.run([sys.executable, "-c", text], input=pickle.dumps(rows), capture_output=True, check=True)
    expect(pickle.loads(p.stdout) == rows, "the objects came back otherwise")


@case
def recv_into():
    a, b = socket.socketpair()
    sender = in_thread(a.sendall, absent(8 * MIB))
    data, at = absent(8 * MIB, salt=4), 0
    view = memoryview(data)
    while at < len(data):
        at += b.recv_into(view[at:])
    sender.join()
    expect_content(data)


@case
def recv_into_of_all():
    a, b = socket.socketpair()
    sender = in_thread(a.sendall, absent(8 * MIB))
    data = absent(8 * MIB, salt=4)
    same(b.recv_into(data, 0, socket.MSG_WAITALL), 8 * MIB)
    sender.join()
    expect_content(data)


@case
def messages_of_many_buffers():
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    want = content(40 * PAGE)
    parts = [away(bytearray(2 * MIB)) for _ in range(4)]
    for i, part in enumerate(parts):
        part[:10 * PAGE] = want[i * 10 * PAGE:(i + 1) * 10 * PAGE]
        away(part)
    for s in (a, b):
        s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)
    same(a.sendmsg([memoryview(part)[:10 * PAGE] for part in parts]), 40 * PAGE)
    got = [away(bytearray(2 * MIB)) for _ in range(4)]
    size, _, flags, _ = b.recvmsg_into([memoryview(part)[:10 * PAGE] for part in got])
    same((size, flags & socket.MSG_TRUNC), (40 * PAGE, 0))
    expect_content(b"".join(part[:10 * PAGE] for part in got))


@case
def descriptors_through_a_socket():
    a, b = socket.socketpair()
    with file_of(MIB) as f:
        pid = child(lambda: socket.send_fds(a, [b"here"], [f.fileno(), f.fileno()]))
        said, fds, _, _ = socket.recv_fds(b, 100, 5)
        same((ended(pid), said, len(fds)), (0, b"here", 2))
        expect_content(os.pread(fds[1], MIB, 0))


@case
def datagrams():
    a, b = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
    b.bind(("127.0.0.1", 0))
    data = absent(2 * MIB)
    for i in range(20):
        a.sendto(memoryview(data)[i * 60_000:(i + 1) * 60_000], b.getsockname())
        got = away(bytearray(2 * MIB))
        size, peer = b.recvfrom_into(got)
        same((size, peer), (60_000, ("127.0.0.1", a.getsockname()[1])))
        expect(got[:size] == content(2 * MIB)[i * 60_000:(i + 1) * 60_000], "a datagram is wrong")


@case
def server_and_clients():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            for _ in range(4):
                s, _ = listener.accept()
                with s, s.makefile("rwb") as f:
                    size = int(f.readline())
                    f.write(f.read(size)[::-1])

        server = in_thread(serve)
        for i in range(4):
            with socket.create_connection(listener.getsockname()) as s, s.makefile("rwb") as f:
                data = absent(2 * MIB, salt=i)
                f.write(b"%d\n" % len(data) + data)
                f.flush()
                expect_content(f.read()[::-1], salt=i)
        server.join()


# -- waiting

@case
def select_of_many():
    pairs = [os.pipe() for _ in range(200)]
    for i in (3, 77, 199):
        os.write(pairs[i][1], b"x")
    got = select.select([r for r, _ in pairs], [pairs[0][1]], [], 5)
    same(got, ([pairs[i][0] for i in (3, 77, 199)], [pairs[0][1]], []))
    same(select.select([pairs[0][0]], [], [], 0.01), ([], [], []))


@case
def epoll_moves_large_buffers():
    """Non-blocking pipes, written and read as epoll says, in both directions at one time."""
    data, got = absent(8 * MIB), bytearray()
    r, w = os.pipe()
    os.set_blocking(r, False)
    os.set_blocking(w, False)
    sent = 0
    with select.epoll() as e:
        e.register(r, select.EPOLLIN | select.EPOLLET)
        e.register(w, select.EPOLLOUT | select.EPOLLET)
        while len(got) < len(data):
            for fd, _ in e.poll():
                try:
                    while fd == w and sent < len(data):
                        sent += os.write(w, memoryview(data)[sent:])
                    while fd == r:
                        got += os.read(r, MIB)
                except BlockingIOError:
                    pass
    expect_content(got)


@case
def selectors_with_many_sockets():
    s = selectors.DefaultSelector()
    pairs = [socket.socketpair() for _ in range(50)]
    data = absent(2 * MIB)
    for i, (a, b) in enumerate(pairs):
        s.register(b, selectors.EVENT_READ, i)
        a.send(memoryview(data)[i * PAGE:i * PAGE + PAGE])
    seen = set()
    while len(seen) < 50:
        for key, _ in s.select():
            same(key.fileobj.recv(2 * PAGE), content(2 * MIB)[key.data * PAGE:key.data * PAGE + PAGE])
            seen.add(key.data)


@case
def eventfd_and_timerfd_by_poll():
    fd = os.eventfd(3)
    p = select.poll()
    p.register(fd, select.POLLIN)
    same((p.poll(1000), os.eventfd_read(fd), p.poll(0)), ([(fd, select.POLLIN)], 3, []))


@case
def asyncio_streams():
    async def serve(reader, writer):
        size = int(await reader.readline())
        writer.write(await reader.readexactly(size))
        await writer.drain()
        writer.close()

    async def ask(port, salt):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = absent(2 * MIB, salt=salt)
        writer.write(b"%d\n" % len(data) + data)
        expect_content(await reader.read(-1), salt=salt)
        writer.close()

    async def work():
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            await asyncio.gather(*(ask(port, i) for i in range(3)))

    asyncio.run(work())


@case
def asyncio_children_and_signals():
    async def work():
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(signal.SIGUSR1, told.set)
        data = content(4 * MIB)
        p = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        out, _ = await p.communicate(data)
        same((out == data, p.returncode), (True, 0))
        p = await asyncio.create_subprocess_exec("sh", "-c", f"kill -USR1 {os.getpid()}; exit 4")
        await told.wait()
        same(await p.wait(), 4)
        same(await loop.run_in_executor(None, len, data), len(data))

    asyncio.run(work())


# -- signals

@case
def handlers_during_faults():
    told = []
    signal.signal(signal.SIGALRM, lambda *_: told.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    data = absent(MUCH)
    while len(told) < 20:
        expect_content(away(data))
    signal.setitimer(signal.ITIMER_REAL, 0)


@case
def wakeup_descriptor_tells_numbers():
    r, w = os.pipe()
    os.set_blocking(w, False)
    signal.set_wakeup_fd(w)
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGBUS, signal.SIGSYS):
        signal.signal(number, lambda *_: None)
        os.kill(os.getpid(), number)
        same(os.read(r, 10), bytes([number]))


@case
def read_goes_on_after_a_handler():
    told = []
    signal.signal(signal.SIGALRM, lambda *_: told.append(1))
    r, w = os.pipe()

    def work():
        while not told:
            time.sleep(0.01)
        os.write(w, b"late")

    writer = in_thread(work)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    same(os.read(r, 100), b"late")
    writer.join()


@case
def read_ends_with_what_a_handler_raises():
    class Told(Exception):
        pass

    def handler(*_):
        raise Told

    signal.signal(signal.SIGALRM, handler)
    r, w = os.pipe()
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        os.readv(r, [away(bytearray(2 * MIB))])
    except Told:
        os.write(w, b"next")
        same(os.read(r, 10), b"next")
        return
    raise AssertionError("the read ended otherwise")


@case
def masks_and_waiting():
    for number in (signal.SIGUSR1, signal.SIGBUS, signal.SIGRTMIN + 3):
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        same(number in signal.pthread_sigmask(signal.SIG_BLOCK, []), True)
        os.kill(os.getpid(), number)
        same(signal.sigpending(), {number})
        same(signal.sigwaitinfo({number}).si_pid, os.getpid())
        same(signal.sigtimedwait({number}, 0), None)


@case
def signals_of_threads():
    told = []
    signal.signal(signal.SIGUSR1, lambda *_: told.append(threading.current_thread() is threading.main_thread()))
    stop = threading.Event()
    t = in_thread(stop.wait)
    for i in range(10):
        signal.pthread_kill(t.ident, signal.SIGUSR1)
        while len(told) <= i:
            time.sleep(0.001)
    stop.set()
    t.join()
    same(told, [True] * 10)


@case
def handlers_read_back():
    for number in (signal.SIGBUS, signal.SIGSYS, signal.SIGSEGV, signal.SIGTERM):
        same(signal.getsignal(number), signal.SIG_DFL, f"the action of {number!r}")
        handler = lambda *_: None
        signal.signal(number, handler)
        same(signal.getsignal(number), handler)
        signal.signal(number, signal.SIG_IGN)
        os.kill(os.getpid(), number)
        expect_content(absent(2 * MIB))
        signal.signal(number, signal.SIG_DFL)
        same(ended(child(lambda: os.kill(os.getpid(), number))), -number)


@case
def keyboard_interrupt():
    text = "import time, sys\nd = bytearray(12 << 20)\ntry:\n print('go', flush=True)\n time.sleep(60)\n" \
           "except KeyboardInterrupt:\n print(sum(d)); sys.exit(5)"
    p = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
    same(p.stdout.readline(), b"go\n")
    p.send_signal(signal.SIGINT)
    same((p.communicate()[0], p.returncode), (b"0\n", 5))


if __name__ == "__main__":
    main()
