#!/usr/bin/env python3
"""The guests' kernel: Debian's Linux 6.12 with its modules, unpacked into the user's cache.

Debian 12 has it in bookworm-backports. apt downloads it with separate package lists, so the host's package
sources stay unchanged, nothing is installed, and root is not needed. `make deps-test` runs this file; the
tests themselves never download anything.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile

CACHE = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "canvas-tests")
SUITE = "bookworm-backports"
SERIES = "6.12"
# An empty package that depends on the suite's current kernel.
META = "linux-image-amd64"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEFAULT_MIRROR = "http://deb.debian.org/debian"


class Unavailable(Exception):
    """No kernel can be downloaded; has the reason."""


class Kernel:
    """An unpacked kernel package."""

    def __init__(self, root):
        # DIR/lib/modules/VERSION is the only entry there.
        (self.version,) = os.listdir(os.path.join(root, "lib/modules"))
        self.image = os.path.join(root, "boot", "vmlinuz-" + self.version)
        self.modules = os.path.join(root, "lib/modules", self.version)


def _home():
    return os.path.join(CACHE, "linux-" + SERIES)


def find():
    """The kernel in the cache, or None."""
    try:
        kernel = Kernel(_home())
    except (OSError, ValueError):
        return None
    return kernel if os.path.isfile(kernel.image) else None


def _run(argv, **o):
    try:
        p = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=900, **o)
    except OSError as e:
        raise Unavailable(f"{argv[0]} cannot be run: {e}") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{' '.join(argv)}: not done after 15 minutes") from None
    if p.returncode:
        raise Unavailable(f"{argv[0]} failed: {(p.stdout.strip().splitlines() or ['(said nothing)'])[-1]}")
    return p.stdout


def mirror():
    """The mirror from which this host gets Debian 12."""
    try:
        targets = _run(["apt-get", "indextargets", "--format", "$(ORIGIN)|$(CODENAME)|$(REPO_URI)"])
    except Unavailable:
        targets = ""
    for line in targets.splitlines():
        origin, codename, uri = line.split("|", 2)
        if origin == "Debian" and codename == "bookworm":
            return uri.rstrip("/")
    return DEFAULT_MIRROR


def fetch():
    """Puts the kernel into the cache. Raises Unavailable."""
    if not os.path.exists(KEYRING):
        raise Unavailable(f"no {KEYRING}, with which Debian's packages are checked (debian-archive-keyring)")
    os.makedirs(CACHE, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="linux-", dir=CACHE) as work:
        for name in ("lists/partial", "archives/partial", "deb"):
            os.makedirs(os.path.join(work, name))
        sources = os.path.join(work, "sources.list")
        with open(sources, "w") as f:
            f.write(f"deb [arch=amd64 signed-by={KEYRING}] {mirror()} {SUITE} main\n")
        options = {
            "Dir::Etc::sourcelist": sources, "Dir::Etc::sourceparts": "/dev/null", "Dir::State": work,
            "Dir::State::status": "/dev/null", "Dir::Cache": work, "APT::Architecture": "amd64",
            "APT::Architectures::": "amd64", "Acquire::Languages": "none",
        }
        if os.getuid() == 0:
            # apt's download user may not be allowed to write to this directory.
            options["APT::Sandbox::User"] = "root"
        flags = [x for key, value in options.items() for x in ("-o", f"{key}={value}")]
        _run(["apt-get", "-q", *flags, "update"])
        depends = _run(["apt-cache", *flags, "depends", META])
        found = re.search(rf"linux-image-{re.escape(SERIES)}\.\S+", depends)
        if not found:
            raise Unavailable(f"{SUITE} has no Linux {SERIES}: {' '.join(depends.split())}")
        _run(["apt-get", "-q", *flags, "download", found.group()], cwd=os.path.join(work, "deb"))
        (deb,) = os.listdir(os.path.join(work, "deb"))
        root = os.path.join(work, "root")
        _run(["dpkg-deb", "-x", os.path.join(work, "deb", deb), root])
        shutil.rmtree(_home(), ignore_errors=True)
        os.rename(root, _home())


def main():
    os.makedirs(CACHE, exist_ok=True)
    with open(os.path.join(CACHE, "kernel.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if find():
            return 0
        try:
            print(f"fetching Linux {SERIES} for virtual machines from {SUITE} (110 MB)", flush=True)
            fetch()
        except Unavailable as e:
            # As with other missing packages: tests that need it are skipped.
            print(f"no kernel for virtual machines, their tests are skipped: {e}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
