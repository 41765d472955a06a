"""Small pipelining clients for redis (RESP) and memcached (text protocol) over UNIX sockets."""

import os
import socket
import time


class ProtocolError(Exception):
    pass


class Stream:
    """A buffered socket."""

    def __init__(self, path, timeout_s=60):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(timeout_s)
        self.sock.connect(path)
        self.file = self.sock.makefile("rb", buffering=1 << 18)

    def close(self):
        self.file.close()
        self.sock.close()

    def line(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ProtocolError(f"connection ended in the middle of a line: {line[:80]!r}")
        return line[:-2]

    def exactly(self, n):
        data = self.file.read(n)
        if len(data) != n:
            raise ProtocolError(f"connection ended: {len(data)} of {n} bytes")
        return data


def wait_socket(path, child, timeout_s=30):
    """Waits until a server accepts connections on `path`; fails when the server ends first."""
    end = time.monotonic() + timeout_s
    while True:
        if not child.alive():
            raise ProtocolError(f"server exited with {child.p.returncode}:\n{child.tail()}")
        if os.path.exists(path):
            try:
                return Stream(path).close()
            except OSError:
                pass
        if time.monotonic() > end:
            raise ProtocolError(f"server does not listen after {timeout_s} s:\n{child.tail()}")
        time.sleep(0.02)


def resp_command(*args):
    out = [b"*%d\r\n" % len(args)]
    for a in args:
        a = a if isinstance(a, bytes) else str(a).encode()
        out.append(b"$%d\r\n%s\r\n" % (len(a), a))
    return b"".join(out)


class Redis(Stream):
    """Sends commands one at a time with `do`, or in a pipeline with `send` and `answer`."""

    def send(self, *commands):
        self.sock.sendall(b"".join(resp_command(*c) for c in commands))

    def answer(self):
        line = self.line()
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            n = int(rest)
            return None if n < 0 else self.exactly(n + 2)[:-2]
        if kind == b":":
            return int(rest)
        if kind == b"+":
            return rest
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        raise ProtocolError(line.decode(errors="replace"))

    def do(self, *command):
        self.send(command)
        return self.answer()

    def pipeline(self, commands, batch=128):
        """Yields the answer to each command, in batches of `batch`."""
        todo = []
        for c in commands:
            todo.append(c)
            if len(todo) == batch:
                self.send(*todo)
                for _ in todo:
                    yield self.answer()
                todo = []
        if todo:
            self.send(*todo)
            for _ in todo:
                yield self.answer()


class Memcached(Stream):
    """set and multi-key get."""

    def set_many(self, items):
        """Stores (key, value) pairs; each answer must be STORED."""
        self.sock.sendall(b"".join(b"set %s 0 0 %d\r\n%s\r\n" % (k, len(v), v) for k, v in items))
        for k, _ in items:
            line = self.line()
            if line != b"STORED":
                raise ProtocolError(f"set {k!r}: {line!r}")

    def get_many(self, keys):
        """A dictionary of the keys found."""
        self.sock.sendall(b"get " + b" ".join(keys) + b"\r\n")
        found = {}
        while True:
            line = self.line()
            if line == b"END":
                return found
            word = line.split()
            if len(word) != 4 or word[0] != b"VALUE":
                raise ProtocolError(f"get: {line!r}")
            found[word[1]] = self.exactly(int(word[3]) + 2)[:-2]
