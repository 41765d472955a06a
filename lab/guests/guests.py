"""Guests of the bench: a stock Linux in qemu with a shell that takes commands, and a server reached over TCP.

Kernel and file system are those of the tests' guests (tests/vm). The guest reads commands from a virtual
serial port and answers on it; a balloon grows and shrinks its memory, as in FastSwap's figure 2.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import time

from vm import kernel
from vm.initramfs import Archive, Missing, Modules
from vm.machine import BUSYBOX, KERNEL_LINE, PROCESSOR, QEMU, TOOLS

from .host import MIB, read

PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
# In two parts, because lab contains this file: canvas treats a program whose file has the whole name as one
# that runs guests, and would put lab into thread mode.
KVM = os.path.join("/dev", "kvm")
# Address and port of the guest's server; slirp gives the guest this address.
ADDRESS, SERVER_PORT = "10.0.2.15", 6379
# Allows for emulation next to compilers; a guest alone boots in six seconds.
BOOT_S = 240
# Size of the translated code, in MiB: without a limit it grows beyond the guest's own memory.
CODE_MIB = 64
MODULES = ("virtio_blk", "virtio_net", "virtio_balloon")
SCRIPT = f"""
cd /sys/class/virtio-ports
port=/dev/$(grep -l '^control$' */name | cut -d/ -f1)
cd /root
ip addr add {ADDRESS}/24 dev eth0
ip link set eth0 up
exec 3<>"$port"
echo ready >&3
while read -r line <&3; do
    (eval "$line") > /run/said 2>&1 < /dev/null
    code=$?
    cat /run/said >&3
    echo "=$code=" >&3
done
"""


def accelerator(wanted="auto", cpuinfo=None):
    """qemu's word for KVM if the processor supports it, else for emulation; and the reason."""
    flags = set(re.findall(r"\w+", read("/proc/cpuinfo") if cpuinfo is None else cpuinfo))
    if wanted != "auto":
        return wanted, "as --accel says"
    if not os.access(KVM, os.R_OK | os.W_OK):
        return "tcg", f"there is no {KVM} that may be opened"
    if not flags & {"vmx", "svm"}:
        # Seen: a device of another kind, under which a stock Linux prints nothing.
        return "tcg", f"{KVM} is there, but the processor has neither VMX nor SVM"
    return "kvm", KVM


def which(name):
    return shutil.which(name, path=PATH)


def image(place, name, programs, files, loadable=()):
    """Makes the guest's file system with the host's `programs`, and `files` by their path in the guest;
    returns its path."""
    found = kernel.find()
    if found is None:
        raise Missing(f"there is no Linux {kernel.SERIES} for virtual machines; make deps-test fetches it")
    archive, known = Archive(), Modules(found)
    root = os.path.join(place, "modules")
    known.write(known.with_dependencies([*MODULES, *loadable]), root)
    archive.tree(root)
    for path, name in {**TOOLS, "/bin/busybox": BUSYBOX, **{f"/usr/bin/{p}": p for p in programs}}.items():
        source = which(name)
        if not source:
            raise Missing(f"there is no {name}, which the guest needs")
        archive.copy(path, source)
    for path, source in files.items():
        archive.copy(path, source)
    with open(os.path.join(os.path.dirname(kernel.__file__), "init.sh"), "rb") as f:
        archive.file("/init", f.read(), 0o755)
    archive.file("/script", SCRIPT.encode())
    archive.file("/etc/modules", " ".join(MODULES).encode())
    archive.file("/etc/disks", b"")
    archive.file("/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    archive.file("/etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    path = os.path.join(place, name)
    archive.write(path)
    shutil.rmtree(root)
    return path


class Guest:
    """A running guest. Raises OSError if it stops."""

    def __init__(self, host, place, initrd, memory_mib, words, accel="tcg", cpus=2, before=(), is_shared=True,
                 page_cluster=3):
        """`words` are further arguments of qemu; `before` precedes the whole command."""
        self.host, self.home = host, os.path.join(place, host.unique("vm"))
        os.mkdir(self.home)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        memory = ["-m", str(memory_mib)]
        if is_shared:
            memory += ["-object", f"memory-backend-memfd,share=on,id=ram,size={memory_mib}M", "-machine",
                       "memory-backend=ram"]
        where = kernel.find()
        argv = [*before, QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-accel",
                f"tcg,tb-size={CODE_MIB}" if accel == "tcg" else accel,
                "-cpu", PROCESSOR if accel == "tcg" else "host", "-smp", str(cpus), *memory, "-no-reboot", "-kernel",
                where.image, "-initrd", initrd, "-append", KERNEL_LINE, "-serial", f"file:{self._at('console')}",
                "-device", "virtio-balloon-pci", "-qmp", f"unix:{self._at('qmp')},server=on,wait=off",
                "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{self.port}-{ADDRESS}:{SERVER_PORT}",
                "-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-serial-pci"]
        for name in ("output", "code", "files"):
            argv += ["-chardev", f"file,id={name},path={self._at(name)}", "-device",
                     f"virtserialport,chardev={name},name={name}"]
        argv += ["-chardev", f"socket,id=control,path={self._at('control')},server=on,wait=on", "-device",
                 "virtserialport,chardev=control,name=control", *words]
        with open(self._at("said"), "w") as said:
            self.child = host.start(argv, stdout=said, stderr=said)
        self.control, self.heard = self._connect("control"), b""
        self.qmp = self._connect("qmp").makefile("rw")
        self._until(b"ready\n", BOOT_S)
        self.run(f"echo {page_cluster} > /proc/sys/vm/page-cluster")
        self.qmp.readline()
        self.ask("qmp_capabilities")

    def _at(self, name):
        return os.path.join(self.home, name)

    def _connect(self, name):
        end = time.monotonic() + 30
        while True:
            s = socket.socket(socket.AF_UNIX)
            try:
                s.connect(self._at(name))
                return s
            except OSError:
                s.close()
                if time.monotonic() > end or self.child.poll() is not None:
                    raise OSError(f"qemu did not start: {read(self._at('said')).strip()[-300:]}") from None
                time.sleep(0.02)

    def _until(self, word, timeout_s):
        """The guest's output up to `word`."""
        end = time.monotonic() + timeout_s
        while word not in self.heard:
            self.control.settimeout(max(0.01, end - time.monotonic()))
            try:
                more = self.control.recv(1 << 16)
            except TimeoutError:
                raise OSError(f"the guest did not answer in {timeout_s} s: {self._tail()}") from None
            if not more:
                raise OSError(f"the guest has ended: {self._tail()}")
            self.heard += more
        said, self.heard = self.heard.split(word, 1)
        return said.decode(errors="replace")

    def _tail(self):
        return (self.heard.decode(errors="replace")[-200:] + " | " + read(self._at("said"))[-200:] + " | "
                + read(self._at("console"))[-400:])

    def begin(self, command):
        """Sends a command; `answer` returns its output."""
        self.control.sendall(" ".join(command.split("\n")).encode() + b"\n")

    def answer(self, timeout_s=120):
        end = time.monotonic() + timeout_s
        said = self._until(b"=\n", timeout_s)
        while not re.search(r"(?:^|\n)=\d+$", said):
            said += "=\n" + self._until(b"=\n", max(0.1, end - time.monotonic()))
        said, code = said.rsplit("=", 1)
        if code != "0":
            raise OSError(f"a command of the guest ended with {code}: {said.strip()[-300:]}")
        return said

    def run(self, command, timeout_s=120):
        """Output of a line of shell in the guest."""
        self.begin(command)
        return self.answer(timeout_s)

    def ask(self, command, **arguments):
        """Sends a command to qemu's monitor."""
        self.qmp.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.qmp.flush()
        while line := self.qmp.readline():
            got = json.loads(line)
            if "error" in got:
                raise OSError(f"qemu: {command}: {got['error']['desc']}")
            if "return" in got:
                return got["return"]
        raise OSError(f"qemu has ended: {self._tail()}")

    def balloon(self, mib, timeout_s=30):
        """Sets the guest's memory with the balloon."""
        self.ask("balloon", value=mib * MIB)
        end = time.monotonic() + timeout_s
        while abs(self.ask("query-balloon")["actual"] - mib * MIB) > MIB:
            if time.monotonic() > end:
                raise OSError(f"the balloon does not come to {mib} MiB")
            time.sleep(0.1)

    def serve(self, command):
        """Starts the guest's server; the client waits until it answers."""
        self.run(f"setsid {command} > /dev/null 2>&1 &")

    def end(self):
        with contextlib.suppress(OSError, ValueError):
            self.ask("quit")
        with contextlib.suppress(Exception):
            self.child.wait(10)
        self.control.close()
        self.host.end(self.child)
        shutil.rmtree(self.home, ignore_errors=True)
