"""Probes that a host's tools put into libc (uprobes: bpftrace, perf probe) while a program is paged."""

import os
import shutil
import subprocess

from lib.harness import MIB, Skip, WantOfRoot, check

# Runs a command with probes on three functions of libc. Arguments: mount point of tracefs, the probes' group, libc,
# the functions' offsets, the command.
WITH_PROBES = """
home=$1 group=$2 libc=$3
shift 3
mount -t tracefs none "$home" && [ -w "$home/uprobe_events" ] || exit 77
trap 'echo 0 > "$home/events/$group/enable"
      for f in getppid write madvise; do echo "-:$group/$f" >> "$home/uprobe_events"; done' EXIT
for f in getppid write madvise; do
    echo "p:$group/$f $libc:$1" >> "$home/uprobe_events" || exit 77
    shift
done
echo 1 > "$home/events/$group/enable"
"$@"
"""


def missing():
    if os.getuid() != 0:
        return WantOfRoot("probes need root")
    gone = [c for c in ("unshare", "nm") if not shutil.which(c)]
    return f"{', '.join(gone)} not installed" if gone else None


def places(libc, names):
    out = subprocess.run(["nm", "-D", libc], capture_output=True, text=True, check=True).stdout
    at = {w[2].split("@")[0]: "0x" + w[0] for w in map(str.split, out.splitlines()) if len(w) == 3}
    return [at[name] for name in names]


@check("uprobes", modes=("signal", "thread"), timeout_s=60, needs=missing)
def uprobes(r):
    """Programs behave as without the probes."""
    program = r.session.compile("probed")
    out = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    libc = next(os.path.realpath(w[2]) for w in map(str.split, out.splitlines()) if w[0] == "libc.so.6")
    script, home = r.write("probes.sh", WITH_PROBES), os.path.join(r.dir, "tracing")
    os.mkdir(home)
    group = f"canvas_test_{os.getpid()}_{r.mode}"
    at = places(libc, ("getppid", "write", "madvise"))
    with subprocess.Popen(["unshare", "-m", "sh", script, home, group, libc, *at, "sh", "-c", "echo there; read end"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as probes:
        if probes.stdout.readline() != "there\n":
            raise Skip("this kernel has no uprobes, or they cannot be set here")
        c = r.call([program], tag="probed", local=16 * MIB)
    r.same(c.out(), "bad 0\n", "what the program says")
    r.judge(paged=True)
