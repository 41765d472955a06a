"""A guest's file system in memory: a cpio archive ("newc") made from files of the host."""

import lzma
import os
import re
import stat
import subprocess

# The guest's PATH; the kernel calls /sbin/modprobe by this name.
DIRECTORIES = ("bin", "sbin", "usr/bin", "usr/sbin", "dev", "proc", "sys", "run", "tmp", "var/tmp", "etc", "root",
               "out")
_DEPENDS = re.compile(rb"\0depends=([^\0]*)\0")


class Missing(Exception):
    """The host lacks something that the guest needs."""


def libraries(program):
    """Libraries that the loader maps for `program`: {path: path with links resolved}. Empty if static."""
    p = subprocess.run(["ldd", program], capture_output=True, text=True)
    if p.returncode:
        if "not a dynamic executable" in p.stderr + p.stdout:
            return {}
        raise Missing(f"ldd {program}: {p.stderr.strip()}")
    found = {}
    for line in p.stdout.splitlines():
        if "not found" in line:
            raise Missing(f"{program} needs a library that is not here: {line.strip()}")
        path = re.search(r"(/\S+) \(0x", line)
        if path:
            found[path.group(1)] = os.path.realpath(path.group(1))
    return found


def _name(path):
    """A module's name by its file."""
    return os.path.basename(path).split(".ko")[0].replace("-", "_")


class Modules:
    """The modules of a kernel package, by name."""

    def __init__(self, kernel):
        self.kernel = kernel
        self.files = {}
        for at, _, names in os.walk(os.path.join(kernel.modules, "kernel")):
            self.files.update({_name(n): os.path.join(at, n) for n in names if ".ko" in n})
        with open(os.path.join(kernel.modules, "modules.builtin")) as f:
            self.builtin = {_name(line.strip()) for line in f}
        self.read = {}

    def content(self, name):
        """The module's file, uncompressed."""
        if name not in self.read:
            path = self.files[name]
            with (lzma.open if path.endswith(".xz") else open)(path, "rb") as f:
                self.read[name] = f.read()
        return self.read[name]

    def with_dependencies(self, names):
        """`names` and all their dependencies, in the order in which they can be loaded."""
        order = []

        def add(name):
            name = name.replace("-", "_")
            if name in order or name in self.builtin:
                return
            if name not in self.files:
                raise Missing(f"Linux {self.kernel.version} has no module {name}")
            depends = _DEPENDS.search(self.content(name))
            for other in depends.group(1).decode().split(",") if depends else ():
                if other:
                    add(other)
            order.append(name)

        for name in names:
            add(name)
        return order

    def write(self, names, root):
        """Puts modules where modprobe finds them below `root`, with its tables."""
        for name in names:
            # Uncompressed: unpacking is slow on an emulated processor.
            inside = os.path.relpath(self.files[name], self.kernel.modules).removesuffix(".xz")
            target = os.path.join(root, "lib/modules", self.kernel.version, inside)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as f:
                f.write(self.content(name))
        tables = os.path.join(root, "lib/modules", self.kernel.version)
        os.makedirs(tables, exist_ok=True)
        for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
            with open(os.path.join(self.kernel.modules, name), "rb") as source, \
                    open(os.path.join(tables, name), "wb") as f:
                f.write(source.read())
        p = subprocess.run(["depmod", "-b", root, self.kernel.version], capture_output=True, text=True)
        if p.returncode:
            raise Missing(f"depmod failed: {p.stderr.strip()}")


class Archive:
    """Files, directories and links of the guest, in the order in which they were added."""

    def __init__(self):
        # Path in the guest, without the leading slash -> (mode, content).
        self.entries = {}
        for name in DIRECTORIES:
            self.directory(name)

    def directory(self, path):
        path = path.strip("/")
        if path and path not in self.entries:
            self.directory(os.path.dirname(path))
            self.entries[path] = (stat.S_IFDIR | (0o1777 if path.endswith("tmp") else 0o755), b"")

    def file(self, path, content, mode=0o644):
        path = path.strip("/")
        self.directory(os.path.dirname(path))
        self.entries[path] = (stat.S_IFREG | mode, content)

    def link(self, path, target):
        path = path.strip("/")
        self.directory(os.path.dirname(path))
        self.entries[path] = (stat.S_IFLNK | 0o777, target.encode())

    def copy(self, path, source):
        """Adds a file of the host; an executable with its libraries."""
        with open(source, "rb") as f:
            content = f.read()
        executable = os.access(source, os.X_OK)
        self.file(path, content, 0o755 if executable else 0o644)
        if executable and content.startswith(b"\x7fELF"):
            for name, real in libraries(source).items():
                if name.strip("/") not in self.entries:
                    with open(real, "rb") as f:
                        self.file(name, f.read(), 0o755)

    def tree(self, root):
        """Adds everything below a directory of the host."""
        for at, _, names in os.walk(root):
            for name in names:
                path = os.path.join(at, name)
                with open(path, "rb") as f:
                    self.file(os.path.relpath(path, root), f.read())

    def write(self, path):
        """Writes the archive to a file, uncompressed: unpacking is slow on an emulated processor."""
        with open(path, "wb") as f:
            for number, (name, (mode, content)) in enumerate([*self.entries.items(), ("TRAILER!!!", (0, b""))]):
                raw = name.encode() + b"\0"
                fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(raw), 0)
                head = b"070701" + b"".join(b"%08X" % v for v in fields) + raw
                for part in (head, content):
                    f.write(part + b"\0" * (-len(part) % 4))
