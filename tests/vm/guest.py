"""A guest: runs one script on its own Linux 6.12 in an emulated machine (qemu, no KVM).

The guest is in memory only (initramfs.py); the caller names the host's files to copy into it. Output, exit
code and the files that the script leaves in /out return over virtual serial ports, the kernel's messages over
a real one.
"""

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import time

from lib.harness import PATIENCE, Failure, Skip

from . import kernel
from .initramfs import Archive, Missing, Modules
from .machine import BUSYBOX, KERNEL_LINE, PROCESSOR, QEMU, TOOLS

DISK_MODULES = ("virtio_blk", "crc32c_generic", "ext4")


class NotBooted(Failure):
    """The guest's kernel ended before the script started."""


def missing():
    """Reason why no guest can run here, or None."""
    if os.uname().machine != "x86_64":
        return "virtual machines of tests are x86-64"
    for name, package in ((QEMU, "qemu-system-x86"), ("kmod", "kmod"), ("depmod", "kmod"), ("mkfs.ext4", "e2fsprogs"),
                          (BUSYBOX, "busybox-static")):
        if not _which(name):
            return f"no {name} (Debian package {package})"
    if kernel.find() is None:
        return f"no Linux {kernel.SERIES} for virtual machines (make deps-test fetches it)"
    return None


def _which(name):
    # An ordinary user's PATH may lack the directories of mkfs and depmod.
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


BEGUN = "guest: init"
# Sometimes the emulator makes the kernel panic before the script starts (once in some hundred boots): boot
# again then.
BOOTS_MAX = 2


class Result:
    """Result of a script."""

    def __init__(self, code, output, files, log, seconds):
        # Exit code, or a word for what kept the script from running.
        self.code, self.output, self.log, self.seconds = code, output, log, seconds
        # Name below /out -> bytes.
        self.files = files
        self.boots = 1

    def tail(self, lines=25):
        """Last lines of script and kernel."""
        said = self.output.splitlines()[-lines:] + ["-- kernel:"] + self.log.splitlines()[-40:]
        return "\n".join(line[:300] for line in said)


def run(script, *, modules=(), loadable=(), programs=(), files=None, disks=(), memory_mib=1024, cpus=2,
        nodes_mib=(), qemu=(), under=(), timeout_s=120, work=None):
    """Boots a guest, runs the text `script` with its sh as root, and returns a Result.

    Loads `modules` before the script; `loadable` (and all dependencies of both) are available to modprobe.
    `programs` are commands of the host, found by PATH, copied with their libraries. `files` maps paths in the
    guest to paths on the host; executables are copied with their libraries, too. Each of `disks` is the size
    in MiB of an empty ext4 disk at /disk/vda, /disk/vdb ... Each of `nodes_mib` is the memory of a NUMA node
    without a processor, nodes 1, 2 ..., in addition to the `memory_mib` of node 0, which has all processors.
    `qemu` are further arguments of qemu, `under` the words before its command. The guest has no network but
    lo. `work` is the directory of its files (a temporary directory by default).

    Raises Skip when the host lacks something, Failure when the guest does not end in `timeout_s` or returns
    no exit code.
    """
    reason = missing()
    if reason:
        raise Skip(reason)
    with tempfile.TemporaryDirectory(prefix="vm-", dir=work) as home:
        try:
            archive = _archive(home, script, modules, loadable, programs, files or {}, disks)
        except Missing as e:
            raise Skip(str(e)) from None
        initrd = os.path.join(home, "initrd")
        archive.write(initrd)
        for boot in range(1, BOOTS_MAX + 1):
            try:
                result = _boot(home, initrd, disks, memory_mib, cpus, nodes_mib, qemu, under, timeout_s)
            except NotBooted:
                if boot == BOOTS_MAX:
                    raise
            else:
                result.boots = boot
                return result


def _archive(home, script, modules, loadable, programs, files, disks):
    k = kernel.find()
    archive = Archive()
    known = Modules(k)
    modules = (*(DISK_MODULES if disks else ()), *modules)
    root = os.path.join(home, "root")
    known.write(known.with_dependencies([*modules, *loadable]), root)
    archive.tree(root)
    for path, name in {**TOOLS, "/bin/busybox": BUSYBOX}.items():
        archive.copy(path, _which(name))
    for name in programs:
        path = _which(name)
        if not path:
            raise Missing(f"no {name} for the virtual machine")
        archive.copy("/usr/bin/" + name, path)
    for path, source in files.items():
        archive.copy(path, source)
    with open(os.path.join(os.path.dirname(__file__), "init.sh"), "rb") as f:
        archive.file("/init", f.read(), 0o755)
    archive.file("/script", script.encode())
    archive.file("/etc/modules", " ".join(modules).encode())
    names = ["vd" + chr(ord("a") + i) for i in range(len(disks))]
    archive.file("/etc/disks", " ".join(names).encode())
    archive.file("/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    archive.file("/etc/group", b"root:x:0:\nnogroup:x:65534:\n")
    return archive


def _nodes(memory_mib, nodes_mib, cpus):
    """Arguments that give the machine its memory: as a whole, or by node."""
    if not nodes_mib:
        return ["-m", str(memory_mib)]
    words = ["-m", str(memory_mib + sum(nodes_mib))]
    for i, mib in enumerate((memory_mib, *nodes_mib)):
        node = f"node,nodeid={i},memdev=memory{i}" + (f",cpus=0-{cpus - 1}" if i == 0 else "")
        words += ["-object", f"memory-backend-ram,id=memory{i},size={mib}M", "-numa", node]
    return words


def _boot(home, initrd, disks, memory_mib, cpus, nodes_mib, qemu, under, timeout_s):
    k = kernel.find()
    log = os.path.join(home, "console")
    argv = [*under, QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35,accel=tcg", "-cpu", PROCESSOR,
            "-smp", str(cpus), *_nodes(memory_mib, nodes_mib, cpus), "-no-reboot", "-kernel", k.image, "-initrd", initrd,
            "-append", KERNEL_LINE, "-serial", f"file:{log}", "-device", "virtio-serial-pci"]
    ports = {}
    for name in ("output", "code", "files"):
        ports[name] = os.path.join(home, name)
        argv += ["-chardev", f"file,id={name},path={ports[name]}", "-device",
                 f"virtserialport,chardev={name},name={name}"]
    for i, size_mib in enumerate(disks):
        path = os.path.join(home, f"disk{i}")
        # A sparse file, which takes only the space that is written.
        with open(path, "wb") as f:
            f.truncate(size_mib << 20)
        subprocess.run([_which("mkfs.ext4"), "-q", "-F", path], check=True, stdin=subprocess.DEVNULL)
        argv += ["-drive", f"file={path},if=none,id=disk{i},format=raw,cache=unsafe,discard=unmap", "-device",
                 f"virtio-blk-pci,drive=disk{i}"]
    argv += qemu
    began = time.monotonic()
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    late = False
    try:
        said, _ = child.communicate(timeout=timeout_s * PATIENCE)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        if child.poll() is None:
            if under:
                # The prefix passes SIGTERM on; if it were killed, the machine would keep running.
                child.terminate()
                try:
                    child.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    pass
            child.kill()
            said, _ = child.communicate()
    seconds = time.monotonic() - began

    def content(path):
        try:
            with open(path, "rb") as f:
                return f.read()
        except OSError:
            return b""

    code = content(ports["code"]).decode().strip()
    result = Result(int(code) if code.isdigit() else code, content(ports["output"]).decode(errors="replace"), {},
                    content(log).decode(errors="replace"), seconds)
    if late:
        raise Failure(f"the virtual machine did not end within {timeout_s * PATIENCE} s\n{result.tail()}")
    if not isinstance(result.code, int):
        why = code or said.decode(errors="replace").strip() or "no exit code"
        panicked = "Kernel panic" in result.log and BEGUN not in result.log
        raise (NotBooted if panicked else Failure)(f"the virtual machine did not run its script: {why}\n{result.tail()}")
    try:
        with tarfile.open(fileobj=io.BytesIO(content(ports["files"]))) as t:
            result.files = {m.name.removeprefix("./"): t.extractfile(m).read() for m in t if m.isfile()}
    except tarfile.TarError as e:
        raise Failure(f"the virtual machine ended while it sent its files: {e}\n{result.tail()}") from None
    return result
