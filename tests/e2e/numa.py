"""`--numa`: pages go to memory of NUMA nodes first, and the oldest are demoted into the pool.

Most tests use node 0 of this host; a guest has a node without a processor.
"""

import json
import os
import shutil
import subprocess
import time

from lib import canvas
from lib.clients import Redis, wait_socket
from lib.harness import MIB, ONCE, Skip, check
from vm import guest

from . import slo, vm
from .operate import ask, python, wait_until

find = canvas.find

# 64 MiB of pages that compress to a half. Reads random pages, and writes some, until the file exists; on request
# forks a child that does the same.
USER = """
import hashlib, mmap, os, random, sys
SIZE, PAGES = 4096, 64 << 8
m = mmap.mmap(-1, SIZE * PAGES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
version = [0] * PAGES
def page(i):
    return hashlib.shake_128(b"%d %d" % (i, version[i])).digest(2048)
def put(i):
    m[i * SIZE:i * SIZE + 2048] = page(i)
def see(i):
    if m[i * SIZE:i * SIZE + 2048] != page(i):
        print(f"page {i} is wrong", flush=True)
        os._exit(1)
for i in range(PAGES):
    put(i)
print("filled", flush=True)
end, what = sys.argv[1:]
if what == "forks":
    for round in range(3):
        child = os.fork()
        rng = random.Random(round * 2 + (child == 0))
        for i in rng.sample(range(PAGES), PAGES // 4):
            version[i] += 1 + (child == 0)
            put(i)
        for i in rng.sample(range(PAGES), PAGES // 2):
            see(i)
        if child == 0:
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit("the child is wrong")
    print("forked", flush=True)
rng = random.Random(5)
while not os.path.exists(end):
    i = rng.randrange(PAGES)
    see(i)
    if what == "writes" and i % 5 == 0:
        version[i] += 1
        put(i)
for i in range(PAGES):
    see(i)
print("right", flush=True)
"""


def missing():
    if not os.path.exists("/sys/devices/system/node/node0/meminfo"):
        return "this kernel reports no NUMA nodes"
    return None


def user(r, what, *flags, nodes="0=24M", local=12 * MIB, pool=64 * MIB):
    """Starts the program above; returns it, its name, and the file that ends it."""
    name, end = f"numa-{what}-{r.mode}-{time.time_ns() % 1_000_000}", r.path(f"end-{what}")
    c = r.start([python(), "-c", USER, end, what], tag=f"numa-{what}", local=local, pool=pool,
                extra=["--tenant", name, "--numa", nodes, *flags])
    wait_until(r, "the program is ready", lambda: "filled" in c.out() or not c.alive(), 90)
    return c, name, end


def status(r, name):
    return json.loads(ask(r, "status", name, "--json"))


def on_node(r, name, place=0):
    return status(r, name)["nodes"][place]["used_bytes"]


@check("numa", normal=ONCE, timeout_s=200, needs=missing)
def numa(r):
    """The node is filled first, and its oldest pages are demoted into the pool; `canvas set` drains it, and fills
    it again."""
    if not r.managed:
        return
    c, name, end = user(r, "writes")
    full = wait_until(r, "the node is filled", lambda: on_node(r, name) > 20 * MIB and on_node(r, name), 60,
                      state=lambda: status(r, name)["nodes"])
    got = status(r, name)
    r.same(got["nodes"], [{"node": 0, "limit_bytes": 24 * MIB, "used_bytes": got["nodes"][0]["used_bytes"]}], "node")
    r.same(got["used"]["nodes_bytes"], got["nodes"][0]["used_bytes"], "the sum of nodes")
    r.require("node  0" in ask(r, "status", name), "`canvas status` does not tell of the node")
    for bad, want in (("numa=1=0", "no pages on node 1"), ("numa=0=4K", "write 1M or more"),
                      ("numa=16M", "write N=SIZE"), ("numa=0=1M,0=2M", "given twice")):
        done = subprocess.run([r.session.canvas, "set", name, "local=100M", bad], capture_output=True, text=True)
        r.same((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), bad)
        r.require(want in done.stderr, f"{bad}: {done.stderr}")
    r.same(status(r, name)["limits"]["local_bytes"], 12 * MIB, "what was refused changed something")
    ask(r, "set", name, "numa=0=0")
    wait_until(r, "the node is drained", lambda: on_node(r, name) == 0, 60, state=lambda: status(r, name)["nodes"])
    time.sleep(0.5)
    r.same(on_node(r, name), 0, "bytes on a node that takes nothing")
    ask(r, "set", name, "numa=0=16M")
    wait_until(r, "the node is filled again", lambda: on_node(r, name) > 12 * MIB, 60,
               state=lambda: status(r, name)["nodes"])
    stats = slo.ends_right(r, c, end)
    node = stats["nodes"][0]
    r.same((node["node"], node["limit_bytes"]), (0, 16 * MIB), "the report's node")
    r.require(20 * MIB < node["used_bytes"]["peak"] <= 24 * MIB, f"{node}")
    out, came, sunk = (find(stats, key) for key in ("pages_out_node", "pages_in_node", "node_pages_demoted"))
    r.require(out > 4000 and came > 1000 and sunk > 4000, f"{out} to the node, {came} from it, {sunk} sunk")
    r.same(find(stats, "node_pages_elsewhere"), 0, "pages that lie elsewhere")
    r.note(f"{full / MIB:.0f} MiB on the node; {out} there, {came} back, {sunk} sunk")


@check("numa-full-pool", modes=("signal",), timeout_s=150, needs=missing)
def numa_full_pool(r):
    """With a full pool, pages stay on the node: nothing is lost, and nothing refused."""
    if not r.managed:
        return
    c, _, end = user(r, "reads", nodes="0=44M", pool=24 * MIB)
    time.sleep(2)
    stats = slo.ends_right(r, c, end)
    r.same(stats["limits"]["far_full"], False, "the far limit was reached")
    r.require(stats["nodes"][0]["used_bytes"]["peak"] > 40 * MIB, f"{stats['nodes']}")
    r.require(canvas.memory(stats, "pool_bytes") <= 24 * MIB, f"{stats['memory']['pool_bytes']}")


@check("numa-far", modes=("signal",), timeout_s=200, needs=missing)
def numa_far(r):
    """Beyond the pool as well: from the node into the pool, from the pool to the disk."""
    if not r.managed:
        return
    c, name, end = user(r, "writes", "--far", "256M", "--to", f"disk:{r.dir}", nodes="0=16M", pool=8 * MIB)
    wait_until(r, "pages are beyond the pool", lambda: status(r, name)["used"]["far_bytes"] > 0, 60,
               state=lambda: status(r, name)["used"])
    time.sleep(3)
    stats = slo.ends_right(r, c, end)
    sunk = [find(stats, key) for key in ("node_pages_demoted", "pages_demoted")]
    r.require(min(sunk) > 1000, f"{sunk} pages sunk from the node, and from the pool")
    r.same([stats["far"]["corrupt"], find(stats, "beyond_pool_failures")], [0, 0], "reads that failed")
    r.note(f"{sunk[0]} from the node into the pool, {sunk[1]} beyond it")


@check("numa-fork", normal=ONCE, timeout_s=240, needs=missing)
def numa_fork(r):
    """Parent and child have their own pages on the node; those of a dead process are freed."""
    if not r.managed:
        return
    # For a while the pool holds the pages of both, and is full sooner than a slow host measures that.
    c, name, end = user(r, "forks", pool=160 * MIB)
    wait_until(r, "the last child has ended", lambda: "forked" in c.out() or not c.alive(), 120)
    # Measured at intervals: only the parent's pages stay.
    wait_until(r, "the books are right", lambda: on_node(r, name) <= 24 * MIB, 20,
               state=lambda: status(r, name)["nodes"])
    r.require(on_node(r, name) > 4 * MIB, f"{on_node(r, name)} bytes are left on the node")
    ask(r, "set", name, "numa=0=0")
    wait_until(r, "the node is drained", lambda: on_node(r, name) < MIB, 60, state=lambda: status(r, name)["nodes"])
    stats = slo.ends_right(r, c, end)
    r.same(find(stats, "forks"), 3, "forks")
    r.note(f"peak {stats['nodes'][0]['used_bytes']['peak'] / MIB:.0f} MiB")


@check("numa-redis", timeout_s=150, needs=missing, slow_only=True)
def numa_redis(r):
    """A redis with values on the node and in the pool, which forks to save them; all values are right."""
    if not r.managed:
        return
    if not shutil.which("redis-server"):
        raise Skip("redis-server is not installed")
    sock = r.path("redis.sock")
    c = r.start(["redis-server", "--port", 0, "--unixsocket", sock, "--save", "", "--appendonly", "no",
                 "--dir", r.dir], tag="redis", local=20 * MIB, pool=256 * MIB, extra=["--numa", "0=16M"])
    wait_socket(sock, c)
    client = Redis(sock)
    value = lambda i, turn: (b"%d:%d;" % (i, turn)) * (60 + i % 80)
    count = 60_000
    for turn in range(2):
        commands = ((b"SET", b"key:%d" % i, value(i, turn)) for i in range(turn, count, 1 + turn))
        r.require(all(answer == b"OK" for answer in client.pipeline(commands)), "a value was not stored")
        saving = lambda: b"rdb_bgsave_in_progress:1" in client.do(b"INFO", b"persistence")
        wait_until(r, "the last save ends", lambda: not saving(), 60)
        client.do(b"BGSAVE")
        for i, got in enumerate(client.pipeline((b"GET", b"key:%d" % i) for i in range(count))):
            r.require(got == value(i, 1 if turn and i % 2 else 0), f"key {i}")
    wait_until(r, "the last save ends", lambda: not saving(), 60)
    client.send((b"SHUTDOWN", b"NOSAVE"))
    r.wait(c, timeout_s=60)
    stats = r.load_stats(c)
    r.same([find(stats, key) for key in ("verify_failures", "anomalies")], [0, 0], "verify failures, anomalies")
    out, came, sunk = (find(stats, key) for key in ("pages_out_node", "pages_in_node", "node_pages_demoted"))
    r.require(out > 1000 and came > 500 and sunk > 1000, f"{out} to the node, {came} from it, {sunk} sunk")
    r.require(find(stats, "forks") >= 1, "it did not fork")


@check("numa-refused", modes=("signal",), timeout_s=60)
def numa_refused(r):
    """A setting that cannot work gets one sentence, before anything runs."""
    if not r.managed:
        return
    config = r.write("canvas.toml", '[tenant.refused]\nnuma = ["0=1M", "0=2M"]\n')
    many = ",".join(f"{n}=1M" for n in range(5))
    cases = [
        (["--local", "16M", "--numa", "1"], "write N=SIZE, such as 1=16G"),
        (["--local", "16M", "--numa", "0=1000"], "write 1M or more"),
        (["--local", "16M", "--numa", "0=1T"], "write 256G or less"),
        (["--local", "16M", "--numa", "0=0"], "leaves no room there"),
        (["--local", "16M", "--numa", many], "it names 5 nodes; write 4 at most"),
        (["--local", "16M", "--numa", "0=1M", "--numa", "0=2M"], "names node 0 twice"),
        (["--numa", "0=1M"], "--numa without --local has no effect"),
        (["--local", "16M", "--tenant", "refused"], "names node 0 twice"),
    ]
    if missing() is None:
        cases.append((["--local", "16M", "--numa", "0=1M,1000=1M"], "there is no NUMA node 1000 here"))
    witness = r.path("ran")
    for flags, why in cases:
        done = subprocess.run([r.session.canvas, "run", *flags, "--", "touch", witness], capture_output=True, text=True,
                              env={**os.environ, "CANVAS_CONFIG": config}, timeout=30)
        r.same((done.returncode, done.stdout, done.stderr.count("\n")), (125, "", 1), f"{flags}: {done.stderr}")
        r.require(why in done.stderr, f"{flags}: {done.stderr}")
    r.same(os.path.exists(witness), False, "the program ran")


# A container's profile that refuses mbind (237) with EPERM, for the command it runs: prctl(PR_SET_NO_NEW_PRIVS),
# then prctl(PR_SET_SECCOMP) with a filter of four instructions.
FILTERED = """
import ctypes, os, struct, sys
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 237), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7fff0000)]
data = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(data)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


@check("numa-filtered", modes=("signal",), timeout_s=60, needs=missing)
def numa_filtered(r):
    """If a seccomp profile refuses mbind, nothing runs, and the message says what to allow."""
    if not r.managed:
        return
    argv = [python(), "-c", FILTERED, r.session.canvas, "run", "--local", "16M", "--numa", "0=1M", "--", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    r.same((done.returncode, done.stdout, done.stderr.count("\n")), (125, "", 1), done.stderr)
    r.require("allows mbind and get_mempolicy" in done.stderr, done.stderr)


@check("vm-numa", modes=("signal",), slow_only=True, timeout_s=300, needs=guest.missing)
def vm_numa(r):
    """A node without a processor, on Linux 6.12: it holds pages, fills, drains, and runs out of memory."""
    work = "lab workload sequential --mib 40 --seconds"
    run = "canvas run --local 12M --pool 256M --require --stats"
    result = vm.boot(r, vm.UNTIL + f"""
        on_node() {{
            awk '/^[0-9a-f]+ prefer/ {{ for (i = 1; i <= NF; i++) if ($i ~ "^N1=") {{ sub("N1=", "", $i); n += $i }} }}
                 END {{ print n + 0 }}' /proc/$1/numa_maps
        }}
        used() {{ canvas status "$1" --json | sed -n 's/.*"nodes":\\[{{[^]]*"used_bytes":\\([0-9]*\\).*/\\1/p'; }}
        drained() {{ [ "$(used drain)" = 0 ]; }}
        filled() {{ [ "$(used drain)" -gt 8000000 ]; }}

        canvas doctor > /out/doctor || exit 9
        canvas doctor --json > /out/doctor.json || exit 10
        {work} 0.2 > /out/plain || exit 11
        {run} /out/first.json --numa 1=16M -- {work} 0.2 > /out/first || exit 12

        {run} /out/drain.json --tenant drain --numa 1=16M -- {work} 40 > /out/drain & run=$!
        until_true 60 filled || exit 13
        pid=$(canvas status drain --json | sed -n 's/.*"processes":\\[\\([0-9]*\\).*/\\1/p')
        on_node $pid > /out/there
        grep prefer /proc/$pid/numa_maps > /out/maps
        cat /sys/devices/system/node/node1/numastat > /out/numastat
        canvas set drain numa=1=0 || exit 14
        until_true 60 drained || exit 15
        on_node $pid > /out/left
        wait $run || exit 16

        # More than the node has.
        {run} /out/small.json --numa 2=64M,1=8M -- {work} 0.2 > /out/small || exit 17

        canvas run --local 12M --numa 3=16M -- touch /tmp/ran 2> /out/absent
        echo $? >> /out/absent
        [ ! -e /tmp/ran ] || exit 18
    """, nodes_mib=(64, 24), timeout_s=280)
    doctor = json.loads(vm.text(result, "doctor.json"))
    nodes = [(n["node"], n["has_processors"], n["memory_bytes"] > 8 * MIB) for n in doctor["nodes"]]
    r.same(nodes, [(0, True, True), (1, False, True), (2, False, True)], "nodes")
    r.require("1 (" in vm.text(result, "doctor"), vm.text(result, "doctor"))
    plain = json.loads(vm.text(result, "plain"))["answer"]
    for name in ("first", "drain", "small"):
        r.same(json.loads(vm.text(result, name))["answer"], plain, f"answer of {name}")
        stats = json.loads(vm.text(result, f"{name}.json"))
        r.same([find(stats, key) for key in ("verify_failures", "anomalies")], [0, 0], f"{name}: wrong pages")
    stats = json.loads(vm.text(result, "first.json"))
    out, came, sunk = (find(stats, key) for key in ("pages_out_node", "pages_in_node", "node_pages_demoted"))
    r.require(out > 2000 and came > 500 and sunk > 500, f"{out} to the node, {came} from it, {sunk} sunk")
    r.same(find(stats, "node_pages_elsewhere"), 0, "pages elsewhere")
    r.require(12 * MIB < stats["nodes"][0]["used_bytes"]["peak"] <= 16 * MIB, f"{stats['nodes']}")
    there, left = (int(vm.text(result, name)) for name in ("there", "left"))
    r.require(there > 1500, f"{there} pages on node 1\n{vm.text(result, 'maps')}")
    # The raw headers stay: a page of them for 128 pages.
    r.require(left < 100, f"{left} pages are left on node 1")
    stats = json.loads(vm.text(result, "small.json"))
    elsewhere = find(stats, "node_pages_elsewhere")
    r.require(elsewhere > 0, f"node 2 had room for all: {stats['nodes']}")
    r.require([n["node"] for n in stats["nodes"]] == [2, 1], f"{stats['nodes']}")
    r.require(stats["nodes"][1]["used_bytes"]["peak"] > 4 * MIB, f"{stats['nodes']}")
    absent = vm.text(result, "absent")
    r.require("there is no NUMA node 3 here; nodes with memory are 0, 1, 2" in absent and absent.endswith("125\n"),
              absent)
    r.note(f"{there} pages on node 1, {left} after it was drained; {elsewhere} times node 2 had no memory left")
