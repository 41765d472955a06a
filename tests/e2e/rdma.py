"""Far memory over RDMA, in a virtual machine (tests/vm) with the kernel's software device, rdma_rxe."""

import functools
import glob
import json
import os
import subprocess

from lib import canvas
from lib.harness import MIB, ROOT, Failure, Skip, check
from vm import guest
from vm.initramfs import libraries

from .hostile import C
from .vm import boot, text

MODULES = ("crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm")
LIBRARY = "/usr/lib/x86_64-linux-gnu/libibverbs.so.1"
DRIVER = "/etc/libibverbs.d/rxe.driver"
PROVIDERS = "/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so"
# A device over the loopback interface, and the wait until its port is up.
DEVICE = """
rdma link add rxe0 type rxe netdev lo || exit 20
for i in 1 2 3 4 5 6 7 8 9 10; do
    grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state && break
    sleep 0.1
done
ulimit -l unlimited
"""
# Waits for a donor that was started with its standard error in $1.
SERVES = """
serves() {
    for i in $(seq 100); do
        grep -q "listening on" "$1" && return 0
        sleep 0.1
    done
    cat "$1"
    return 1
}
"""


def missing():
    reason = guest.missing()
    if reason:
        return reason
    for path, package in ((LIBRARY, "libibverbs1"), (DRIVER, "ibverbs-providers")):
        if not os.path.exists(path):
            return f"no {path} (Debian package {package})"
    return None


def verbs():
    """What verbs need in a guest: {path in the guest: path here}."""
    found = [os.path.realpath(LIBRARY), *glob.glob(PROVIDERS)]
    files = {path: path for path in found}
    for path in found:
        files.update(libraries(path))
    return {**files, LIBRARY: os.path.realpath(LIBRARY), DRIVER: DRIVER}


@functools.cache
def example():
    """The test program of crates/canvas-server/examples, built once."""
    argv = ["cargo", "build", "--quiet", "--locked", "--package", "canvas-server", "--features", "rdma",
            "--example", "rdma_check"]
    p = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    if p.returncode:
        if "libclang" in p.stderr or "cmake" in p.stderr:
            raise Skip("it cannot be built without cmake and libclang (Debian packages cmake, libclang-dev)")
        raise Failure(f"{' '.join(argv)}:\n{p.stderr[-2000:]}")
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return os.path.join(target, "debug", "examples", "rdma_check")


def needs_rdma(r):
    """Skips when the command under test was built without RDMA."""
    p = subprocess.run([r.session.canvas, "serve", "--rdma", "--listen", "127.0.0.1:0", "--memory", "64M"],
                       capture_output=True, text=True, timeout=20)
    if "built without RDMA" in p.stderr:
        raise Skip("this canvas was built without RDMA (cmake and libclang-dev were missing)")


def rdma_boot(r, script, **o):
    files = {**verbs(), **o.pop("files", {})}
    return boot(r, DEVICE + SERVES + script, modules=MODULES, programs=("rdma",), files=files, **o)


@check("rdma-rights", modes=("signal",), slow_only=True, timeout_s=400, needs=missing)
def rights(r):
    """Keys open what they were given for, as long as it is lent, and reads are timed beside TCP."""
    result = rdma_boot(r, "rdma_check 127.0.0.1 1000 > /out/check.json || exit 10\n",
                       files={"/usr/bin/rdma_check": example()}, timeout_s=300)
    for turn in json.loads(text(result, "check.json"))["latency"]:
        ratio = turn["rdma_p50_us"] / turn["tcp_p50_us"]
        r.note(f"4 KiB read, RDMA {turn['rdma_p50_us']:.0f} us, TCP {turn['tcp_p50_us']:.0f} us: "
               f"{ratio:.2f} times")
