"""A client of NBD's fixed newstyle, for tests: sends exactly what the test asks for, valid or not."""

import socket
import struct

OPTION_MAGIC, REPLY_MAGIC = 0x49484156454F5054, 0x0003E889045565A9
GO, ABORT, LIST, STRUCTURED_REPLY = 7, 2, 3, 8
READ, WRITE, DISCONNECT, FLUSH, TRIM, WRITE_ZEROES = 0, 1, 2, 3, 4, 6
EIO, EINVAL, ENOSPC, EOVERFLOW = 5, 22, 28, 75


class Refused(Exception):
    """The server answered with this error."""

    def __init__(self, number):
        super().__init__(f"NBD error {number}")
        self.number = number


def dial(path, timeout_s=30):
    """A connection before the handshake."""
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.settimeout(timeout_s)
    s.connect(path)
    return s


class Client:
    """A session after its handshake."""

    def __init__(self, path, timeout_s=30, structured=False):
        """With `structured` reads are answered in chunks; `chunks` counts them by kind."""
        self.sock = dial(path, timeout_s)
        greeting = struct.unpack(">QQH", self.take(18))
        if greeting[:2] != (0x4E42444D41474943, OPTION_MAGIC):
            raise ValueError(f"greeting {greeting}")
        self.sock.sendall(struct.pack(">I", 3))
        self.chunks = {} if structured else None
        if structured:
            list(self.option(STRUCTURED_REPLY))
        self.info = {}
        for kind, data in self.option(GO, struct.pack(">IHH", 0, 1, 3)):
            if kind == 3:
                self.info[struct.unpack(">H", data[:2])[0]] = data[2:]
        self.size, self.flags = struct.unpack(">QH", self.info[0])
        self.blocks = struct.unpack(">III", self.info[3])
        self.cookie = 0

    def take(self, n):
        parts, left = [], n
        while left:
            part = self.sock.recv(min(left, 1 << 20))
            if not part:
                raise ConnectionError("the server hung up")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def option(self, number, data=b""):
        """Answers to an option, up to ACK; raises an error that the server returns."""
        self.sock.sendall(struct.pack(">QII", OPTION_MAGIC, number, len(data)) + data)
        while True:
            magic, option, kind, length = struct.unpack(">QIII", self.take(20))
            data = self.take(length)
            if (magic, option) != (REPLY_MAGIC, number):
                raise ValueError(f"answer {magic:x} to option {option}")
            if kind & 1 << 31:
                raise Refused(kind)
            if kind == 1:
                return
            yield kind, data

    def request(self, command, offset, length, data=b"", flags=0):
        self.cookie += 1
        self.sock.sendall(struct.pack(">IHHQQI", 0x25609513, flags, command, self.cookie, offset, length) + data)

    def reply(self, length=0):
        magic, error, cookie = struct.unpack(">IIQ", self.take(16))
        if magic != 0x67446698:
            raise ValueError(f"reply {magic:x}")
        if error:
            raise Refused(error)
        return self.take(length)

    def read(self, offset, length):
        self.request(READ, offset, length)
        return self.reply(length) if self.chunks is None else self.in_chunks(offset, length)

    def in_chunks(self, offset, length):
        """The bytes of a read, each of which must arrive once."""
        parts, flags, error = [], 0, None
        while not flags:
            magic, flags, kind, cookie, size = struct.unpack(">IHHQI", self.take(20))
            payload = self.take(size)
            if (magic, cookie) != (0x668E33EF, self.cookie):
                raise ValueError(f"chunk {magic:x} of {cookie}")
            self.chunks[kind] = self.chunks.get(kind, 0) + 1
            if kind & 1 << 15:
                error = struct.unpack(">I", payload[:4])[0]
            elif kind:
                at = struct.unpack(">Q", payload[:8])[0]
                parts.append((at, payload[8:] if kind == 1 else bytes(struct.unpack(">I", payload[8:])[0])))
        if error:
            raise Refused(error)
        got = b""
        for at, part in sorted(parts):
            if at != offset + len(got):
                raise ValueError(f"a chunk at {at} behind {len(got)} bytes")
            got += part
        if len(got) != length:
            raise ValueError(f"{len(got)} bytes instead of {length}")
        return got

    def write(self, offset, data):
        self.request(WRITE, offset, len(data), data)
        self.reply()

    def trim(self, offset, length):
        self.request(TRIM, offset, length)
        self.reply()

    def zero(self, offset, length):
        self.request(WRITE_ZEROES, offset, length)
        self.reply()

    def close(self):
        self.request(DISCONNECT, 0, 0)
        self.sock.close()
