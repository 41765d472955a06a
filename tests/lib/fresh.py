"""A newcomer's machine: a minimal Debian (12 by default) with gcc, make, git, CA certificates and a Rust
toolchain, in its own directory, and commands that run in it with chroot(8).

Needs root, debootstrap and the right to mount. The bare system is made once and kept in the cache of the
tests (tests/vm/kernel.py); each root is unpacked from it and removed afterwards. Rust's toolchain and cargo's
registry are those of the host.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import threading

from vm import kernel

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SUITE = "bookworm"
# A newcomer's packages; the commands under test install all others.
HAS = ("gcc", "libc6-dev", "make", "git", "ca-certificates")
# Paths of the project and of the toolchain in a root.
PROJECT = "/root/canvas"
RUST = "/opt/rust"
PATH = RUST + "/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Certificates that the host trusts, for networks with their own authority.
TRUSTED = ("/usr/share/ca-certificates", "/usr/local/share/ca-certificates", "/etc/ssl/certs")
# Runs as root of a new mount and process namespace, so that mounts and processes end with it.
ENTER = r"""
set -eu
mount --bind "$RUST_HERE" "$NEW$RUST_THERE"
mount -o remount,bind,ro "$NEW$RUST_THERE"
mount --bind "$REGISTRY" "$NEW/root/.cargo/registry"
mount -t proc proc "$NEW/proc"
mount --rbind /sys "$NEW/sys"
mount --rbind /dev "$NEW/dev"
mount -t tmpfs -o mode=755 tmpfs "$NEW/run"
exec chroot "$NEW" /usr/bin/env -i "$@"
"""


class Unavailable(Exception):
    """A root cannot be made here; has the reason."""


def missing():
    """Reason why no root can be made here, or None; and whether the reason is missing privilege."""
    if os.getuid() != 0:
        return "needs root", True
    for name in ("debootstrap", "unshare", "chroot", "cargo", "git"):
        if not shutil.which(name):
            return f"{name} is not installed", False
    p = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True)
    if p.returncode:
        return "needs the right to make namespaces", True
    if os.path.realpath(_sysroot()) == "/usr":
        # Bound into a root, /usr would bring along all programs of the host.
        return "needs a Rust toolchain in a directory of its own (https://rustup.rs)", False
    return None, False


def _sysroot():
    return _checked(["rustc", "--print", "sysroot"], cwd=ROOT)


def _checked(argv, **o):
    p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **o)
    if p.returncode:
        raise Unavailable(f"{' '.join(argv)}: {p.stdout.strip()[-500:]}")
    return p.stdout.strip()


def _base(suite):
    """The bare system as an archive, made if missing."""
    path = os.path.join(kernel.CACHE, f"fresh-{suite}.tar")
    if os.path.exists(path):
        return path
    os.makedirs(kernel.CACHE, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="canvas-fresh-", dir="/var/tmp") as new:
        _checked(["debootstrap", "--variant=minbase", "--include=" + ",".join(HAS), suite, new,
                  kernel.mirror()])
        part = f"{path}.{os.getpid()}"
        _checked(["tar", "-C", new, "--one-file-system", "-cf", part, "."])
        os.rename(part, path)
    return path


def _copy_sources(to):
    """A clone of this checkout, with its uncommitted changes."""
    _checked(["git", "clone", "-q", ROOT, to])
    git = ["git", "-C", ROOT, "ls-files", "-z"]
    changed = subprocess.check_output([*git, "--modified", "--others", "--exclude-standard"], text=True)
    for name in filter(None, changed.split("\0")):
        here, there = os.path.join(ROOT, name), os.path.join(to, name)
        if os.path.lexists(here):
            os.makedirs(os.path.dirname(there), exist_ok=True)
            shutil.copy2(here, there, follow_symlinks=False)
        elif os.path.lexists(there):
            os.unlink(there)


class Root:
    """A new root, removed at the end of its block."""

    def __init__(self, keep=False, suite=SUITE):
        self.keep, self.suite = keep, suite
        self.dir = tempfile.mkdtemp(prefix="canvas-fresh-", dir="/var/tmp")
        try:
            self._fill()
        except BaseException:
            self._remove()
            raise

    def _fill(self):
        _checked(["tar", "-C", self.dir, "-xf", _base(self.suite)])
        os.chmod(self.dir, 0o755)
        self._network()
        _copy_sources(self.dir + PROJECT)
        home = os.environ.get("CARGO_HOME") or os.path.expanduser("~/.cargo")
        self.registry = os.path.join(home, "registry")
        os.makedirs(self.registry, exist_ok=True)
        for name in (RUST, "/root/.cargo/registry"):
            os.makedirs(self.dir + name)
        # Settings of the network, such as a mirror.
        for name in ("config.toml", "config"):
            if os.path.isfile(os.path.join(home, name)):
                shutil.copy(os.path.join(home, name), self.dir + "/root/.cargo")

    def _network(self):
        """Copies names, package sources and certificates of the host, without which the root has no network."""
        for name in ("/etc/resolv.conf", "/etc/hosts"):
            if os.path.exists(name):
                shutil.copy(name, self.dir + name)
        with open(self.dir + "/etc/apt/sources.list", "w") as f:
            f.write(f"deb {kernel.mirror()} {self.suite} main\n")
        proxy = _checked(["apt-config", "shell", "http", "Acquire::http::Proxy"])
        if proxy:
            with open(self.dir + "/etc/apt/apt.conf.d/proxy", "w") as f:
                f.write(f'Acquire::http::Proxy "{proxy.split("=", 1)[1].strip(chr(39))}";\n')
        for name in TRUSTED:
            if os.path.isdir(name):
                os.makedirs(self.dir + name, exist_ok=True)
                _checked(["cp", "-a", name + "/.", self.dir + name])

    def has(self, pattern):
        """Whether a file matching the wildcards is in the root: in the system or the project."""
        return bool(_checked(["find", self.dir + "/usr", self.dir + PROJECT, "-xdev", "-name", "target", "-prune",
                              "-o", "-name", pattern, "-print"]))

    def run(self, command, env=None, timeout_s=3600, capture=False):
        """Runs a shell's `command` in the project's directory, as root; returns (exit code, output). Shows
        the output as it comes, unless `capture`. Ends all processes that the command started."""
        inside = {"PATH": PATH, "HOME": "/root", "LANG": "C.UTF-8", **(env or {})}
        for name, value in os.environ.items():
            if name.lower().endswith("_proxy") or name == "SSL_CERT_FILE":
                inside[name] = value
        argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private",
                "sh", "-c", ENTER, "fresh", *(f"{k}={v}" for k, v in inside.items()),
                "sh", "-c", f"cd {PROJECT} && {command}"]
        places = {"NEW": self.dir, "RUST_HERE": _sysroot(), "RUST_THERE": RUST, "REGISTRY": self.registry}
        child = subprocess.Popen(argv, env={**os.environ, **places}, stdin=subprocess.DEVNULL, text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
        # Killing unshare ends the first process of the namespace, and with it all others.
        alarm = threading.Timer(timeout_s, child.kill)
        alarm.start()
        said = []
        try:
            for line in child.stdout:
                said.append(line)
                if not capture:
                    print(line, end="", flush=True)
            return child.wait(), "".join(said)
        finally:
            alarm.cancel()
            if child.poll() is None:
                child.kill()
                child.wait()

    def _remove(self):
        if self.keep:
            print(f"kept {self.dir}", file=sys.stderr)
        else:
            subprocess.run(["rm", "-rf", "--one-file-system", self.dir], check=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._remove()
