"""A monitor's side of vhost-user, as far as it names the guest's memory."""

import array
import socket
import struct

GET_FEATURES, SET_FEATURES, SET_OWNER, SET_MEM_TABLE = 1, 2, 3, 5
GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES = 15, 16
VERSION, NEED_REPLY = 1, 1 << 3
# Of the features: that there are those of the protocol, and of these that a message is answered.
PROTOCOL_FEATURES, REPLY_ACK = 1 << 30, 1 << 3


class Monitor:
    """A connection to a device."""

    def __init__(self, path, timeout_s=30):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(timeout_s)
        self.sock.connect(path)
        self._send(SET_OWNER, b"")
        for get, set_, features in ((GET_FEATURES, SET_FEATURES, PROTOCOL_FEATURES),
                                    (GET_PROTOCOL_FEATURES, SET_PROTOCOL_FEATURES, REPLY_ACK)):
            self._send(get, b"")
            self._answer(get)
            self._send(set_, struct.pack("<Q", features))

    def _send(self, request, payload, fds=(), flags=VERSION):
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.sock.sendmsg([struct.pack("<III", request, flags, len(payload)) + payload], passed)

    def takes_memory(self, fd, size):
        """Whether the device takes `size` bytes of a file as the guest's memory; it hangs up when it does not."""
        region = struct.pack("<QQQQ", 0, size, 0x10000000, 0)
        self._send(SET_MEM_TABLE, struct.pack("<II", 1, 0) + region, [fd], VERSION | NEED_REPLY)
        return self._answer(SET_MEM_TABLE) == 0

    def _answer(self, request):
        """The number that a message is answered with, or None."""
        answer = self.sock.recv(20, socket.MSG_WAITALL)
        if not answer:
            return None
        of, _, _, number = struct.unpack("<IIIQ", answer)
        if of != request:
            raise ValueError(f"an answer to message {of} instead of {request}")
        return number

    def close(self):
        self.sock.close()
