"""The Debian package: its contents, and its life in a bare system (tests/fresh, tests/e2e/package.py)."""

import os
import re
import subprocess

# Paths that a bare system may change by itself while packages are installed and removed.
CHURN = ("./proc", "./sys", "./dev", "./run", "./tmp", "./root", "./opt", "./var/lib/dpkg", "./var/lib/apt",
         "./var/cache/apt", "./var/cache/ldconfig", "./var/cache/debconf", "./var/log", "./etc/ld.so.cache")
# A program of the bare system that needs more memory than its limit: 48 MiB that do not repeat.
PAGES = ("my ($x, @all) = (1); for my $i (0 .. 767) { my $s = ''; "
         "for (1 .. 16384) { $x = ($x * 1103515245 + 12345) & 0x7fffffff; $s .= pack('V', $x) } push @all, $s } "
         "my $sum = 0; $sum += unpack('%32C*', $_) for @all; print \"$sum\\n\";")


class Wrong(Exception):
    """The package is not what it should be."""


def require(truth, text):
    if not truth:
        raise Wrong(text)


def files(root):
    """All files in a root, without those that change by themselves."""
    found = subprocess.run(["find", ".", "-xdev", "-print"], cwd=root, capture_output=True, text=True, check=True)
    return {f for f in found.stdout.splitlines() if not any(f == c or f.startswith(c + "/") for c in CHURN)}


def told(package, *field):
    return subprocess.run(["dpkg-deb", "-f", package, *field], capture_output=True, text=True, check=True).stdout.strip()


def contents(package):
    """Paths in the package with their mode and owner."""
    p = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True)
    lines = [line.split(None, 5) for line in p.stdout.splitlines()]
    return {w[5]: (w[0], w[1]) for w in lines}


def judge(package, commands):
    """Checks the package's contents, including a manual page for each of `commands`."""
    here = contents(package)
    require(all(owner == "root/root" for _, owner in here.values()), f"not all root's: {here}")
    wanted = ["./usr/bin/canvas", "./etc/canvas/canvas.toml", "./usr/share/man/man1/canvas.1.gz",
              "./usr/lib/systemd/system/canvas-agent.service", "./usr/lib/systemd/system/canvas-serve.service",
              "./usr/share/bash-completion/completions/canvas", "./usr/share/zsh/vendor-completions/_canvas",
              "./usr/share/fish/vendor_completions.d/canvas.fish", "./usr/share/doc/canvas/copyright",
              "./usr/share/doc/canvas/changelog.gz", "./usr/share/doc/canvas/crates.gz",
              "./usr/include/canvas.h"]
    wanted += [f"./usr/share/man/man1/canvas-{c}.1.gz" for c in commands]
    missing = [f for f in wanted if f not in here]
    for name in ("libcanvas-api.so.1", "libcanvas-api.a", "pkgconfig/canvas-api.pc"):
        require(any(f.startswith("./usr/lib/") and f.endswith("/" + name) for f in here), f"the package has no {name}")
    require(not missing, f"the package has no {', '.join(missing)}")
    require(re.fullmatch(r"libc6 \(>= 2\.\d+\)(, libgcc-s1)?", told(package, "Depends")), told(package, "Depends"))
    text = subprocess.run(f"dpkg-deb --fsys-tarfile '{package}' | tar -xO --wildcards './usr/lib/systemd/*'",
                          shell=True, capture_output=True, text=True, check=True).stdout
    starts = re.findall(r"^ExecStart=(\S+)", text, re.M)
    require(starts == ["/usr/bin/canvas"] * 2, f"the units start {starts}")


def life(root, package):
    """Installs the package in a bare `root` (tests/lib/fresh.py), uses it, and purges it: no file of it may
    be left."""

    def command(text):
        code, said = root.run(text, capture=True, timeout_s=600)
        require(code == 0, f"`{text}` ended with {code}: {said[-1500:]}")
        return said

    command("apt-get update -q")
    name = "/root/" + os.path.basename(package)
    with open(package, "rb") as f, open(root.dir + name, "wb") as out:
        out.write(f.read())
    # Dependencies stay when the package is purged, so they are installed before the comparison.
    depends = ", ".join(d.split(" ")[0] for d in told(package, "Depends").split(", "))
    command(f"DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends {depends.replace(',', '')}")
    wants = "/etc/systemd/system/multi-user.target.wants"
    command(f"mkdir -p {wants}")
    before = files(root.dir)
    command(f"DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends {name}")
    version = command("cd / && canvas --version").strip()
    require(version.startswith("canvas "), f"canvas --version: {version}")
    command("canvas config check")
    # An ordinary user's program with paging; then with the agent, started by the unit's command line.
    user = "setpriv --reuid 65534 --regid 65534 --clear-groups"
    plain = command(f"{user} perl -e '{quoted(PAGES)}'")
    stats = "/tmp/canvas-stats.json"
    managed = command(f"cd /tmp && {user} canvas run --local 16M --require --stats {stats} -- perl -e '{quoted(PAGES)}' "
                      f"&& grep -o '\"pages_out\": [0-9]*' {stats} >&2")
    require(managed.startswith(plain), f"managed: {managed}; plain: {plain}")
    out = re.search(r'"pages_out": (\d+)', managed)
    require(out and int(out[1]) > 0, f"nothing was paged out: {managed}")
    with open(root.dir + "/usr/lib/systemd/system/canvas-agent.service") as f:
        start = re.search(r"^ExecStart=(.*)$", f.read(), re.M)[1]
    said = command(f"mkdir -m 755 /run/canvas && {{ {start} & agent=$!; }} && "
                   "for i in $(seq 100); do [ -S /run/canvas/agent.sock ] && break; sleep 0.1; done && "
                   f"canvas run --to agent --local 16M --pool 8M --far 128M -- perl -e '{quoted(PAGES)}' && "
                   "kill $agent && wait $agent")
    require(plain.strip() in said, f"with the agent: {said}; plain: {plain}")
    # Files that an administrator adds: a key, and an enabled unit.
    command("canvas keygen /etc/canvas/key && mkdir -p /var/cache/canvas/far")
    # As `systemctl enable` does; systemd is not in this root.
    command(f"ln -s /usr/lib/systemd/system/canvas-serve.service {wants}/canvas-serve.service")
    command("apt-get purge -q -y canvas")
    left = sorted(files(root.dir) - before)
    require(not left, f"purge left {left}")


def quoted(perl):
    return perl.replace("'", "'\\''")
