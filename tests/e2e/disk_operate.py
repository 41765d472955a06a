"""Operating `canvas disk`: at a host's agent, in `canvas status` and similar commands, with configured
limits, in one pool."""

import json
import os
import random
import signal
import socket
import subprocess
import threading
import time

from lib import nbd
from lib.harness import MIB, check

from .command import canvas_only
from .disk import PAGE, SIZE, SLAB, disk, ends, fill, free_port, looks, scraped, server_of, settled
from .operate import wait_until


@check("disk-agent", modes=("signal",), timeout_s=120)
def host_agent(r):
    """A disk as a tenant of the host's agent, which may be killed; its section of the configuration has its
    flags."""
    canvas_only(r)
    sock = r.path("agent.sock")
    agent = lambda tag: r.start([r.session.canvas, "agent", "--socket", sock, "--to", f"disk:{r.dir}"], tag=tag,
                                canvas_on=False)
    first = agent("agent")
    wait_until(r, "the agent listens", lambda: os.path.exists(sock), 20)
    path = r.path("disk.sock")
    config = r.write("canvas.toml", f'[disk.vm]\nsize = "64M"\npool = "4M"\nfar = "256M"\nto = "agent:{sock}"\n'
                                    f'nbd = "{path}"\nstate_json = "{r.path("disk.json")}"\n')
    r.same(subprocess.run([r.session.canvas, "config", "check", config], capture_output=True).returncode, 0, "its check")
    c = r.start([r.session.canvas, "disk", "--tenant", "vm"], tag="disk", canvas_on=False,
                env={"CANVAS_CONFIG": config})
    wait_until(r, "the disk is served", lambda: os.path.exists(path) or not c.alive(), 20)
    client = nbd.Client(path)
    pages = fill(client, 4000)
    settled(r, "most of it is beyond the pool", lambda s: s["far_bytes"] > 0)
    rng = random.Random(6)
    looks(r, client, pages, rng, 500)
    r.stop(first, signal.SIGKILL, expect=-9)
    second = agent("agent-2")
    looks(r, client, pages, rng, 2000)
    ends(r, c, path)
    r.stop(second, signal.SIGTERM, expect=0)


# Duration of each of two alternating loads.
PHASE_S = 8


@check("disk-status", modes=("signal",), timeout_s=120)
def status(r):
    """`canvas status` and `stat` list disks with runs; silent, hostile or dead ones are reported like runs."""
    canvas_only(r)
    runs = r.path("runs")
    env = {"CANVAS_RUN_DIR": runs}

    def ask(*words):
        done = subprocess.run([r.session.canvas, *words], capture_output=True, text=True, timeout=30,
                              env={**os.environ, **env})
        return done.returncode, done.stdout, done.stderr

    def told(name):
        code, out, _ = ask("status", name, "--json")
        return code, json.loads(out)

    c, path = disk(r, "--tenant", "vm", "--far", "256M", "--to", f"disk:{r.dir}", pool=6 * MIB, env=env)
    # A single process, which is stopped and killed as a whole.
    small, small_path = disk(r, "-o", "restarts=0", pool=2 * MIB, tag="small", env=env)
    client = nbd.Client(path)
    pages = fill(client, 6000, random_bytes=PAGE)
    wait_until(r, "its rates are those of the last second", lambda: told("vm")[1]["disk"]["writes_per_s"] > 0, 10)
    wait_until(r, "most of it is beyond the pool", lambda: told("vm")[1]["used"]["pool_bytes"] < 6 * MIB, 20)
    code, got = told("vm")
    server = server_of(r, c)
    r.same((code, got["tenant"], got["pid"], got["program"], got["healthy"], got["mode"]),
           (0, "vm", server, path, True, None), "what it is")
    r.same([got["disk"][k] for k in ("size_bytes", "stored_pages", "clients", "writes")], [SIZE, 6000, 1, 6000], "disk")
    r.same([got["limits"][k] for k in ("pool_bytes", "far_bytes", "copies", "local_bytes")],
           [6 * MIB, 256 * MIB, "disk", None], "limits")
    r.require(got["used"]["far_bytes"] >= SLAB and got["far"]["bytes_out"] > 10 * MIB, f"{got}")
    code, text, _ = ask("status")
    for line in (f"vm  pid {server}  {path}", "  disk  64M, 6000 pages stored, 1 client, ", "  far   64M of 256M, copies disk",
                 f"disk  pid {small.pid}  {small_path}", "  disk  64M, 0 pages stored, 0 clients, 0 reads/s, 0 writes/s"):
        r.require(line in text, f"no {line} in:\n{text}")
    rng = random.Random(4)
    stat = subprocess.Popen([r.session.canvas, "stat", "vm", "-i", "500ms", "-n", "2", "--json"], stdout=subprocess.PIPE,
                            text=True, env={**os.environ, **env})
    while stat.poll() is None:
        looks(r, client, pages, rng, 100)
    rates = json.loads(stat.stdout.read().splitlines()[-1])
    r.require(rates["pages_in_per_s"] > 0 and rates["faults_beyond_pool_per_s"] > 0, f"{rates}")
    # All limits can be changed if it has far memory; settings that only programs have are refused.
    for name, pairs, want in (("vm", ("weight=7", "local=1G"), "a disk has no setting local"),
                              ("vm", ("weight=7", "pool=7M"), "write 6M or less"),
                              ("vm", ("weight=7", "spill-at=0"), "it is not a part of the pool"),
                              ("disk", ("weight=7",), "this disk has no far memory")):
        code, _, why = ask("set", name, *pairs)
        r.require(code == 2 and want in why, f"{name} {pairs}: {code}: {why}")
    r.same(told("vm")[1]["limits"]["weight"], 100, "the weight")
    code, _, why = ask("set", "vm", "weight=7", "pool=3M", "spill-at=50", "unit=32K")
    r.same((code, why), (0, ""), "what can be changed")
    got = told("vm")[1]["limits"]
    r.same([got[k] for k in ("weight", "pool_bytes", "spill_at_percent", "unit")], [7, 3 * MIB, 50, "32K"], "limits")
    wait_until(r, "the pool is smaller", lambda: told("vm")[1]["used"]["pool_bytes"] <= 3 * MIB, 20)
    looks(r, client, pages, rng, 300)
    code, _, why = ask("tune", "vm", "--once", "-i", "100ms")
    r.require(code == 2 and "there is no run vm" in why, f"{code}: {why}")
    # A command that finds no room reports that.
    with_room = nbd.Client(small_path)
    def refused():
        try:
            fill(with_room, 2000, seed=2, random_bytes=PAGE)
        except nbd.Refused as e:
            return e.number == nbd.ENOSPC
    r.require(refused(), "2 MiB were enough for 8")
    def full():
        refused()
        code, got = told("disk")
        return code == 1 and [p["code"] for p in got["health"]] == ["C004"]
    wait_until(r, "its pool is full", full, 10)
    # A server that does not answer, one that answers nonsense, and one that has gone.
    small.signal(signal.SIGSTOP)
    code, got = told("disk")
    r.same((code, got["healthy"], [p["code"] for p in got["health"]]), (1, False, ["C012"]), "a stopped one")
    small.signal(signal.SIGCONT)
    with socket.socket(socket.AF_UNIX) as evil:
        evil.bind(f"{runs}/evil.1.sock")
        evil.listen()
        answers = [b'{"canvas":1,"answer":{"status":{"disk":{"size_bytes":-1}}}}\n', b"x" * (2 << 20), b"\xff\n", b""]

        def lies():
            for answer in answers:
                peer, _ = evil.accept()
                with peer:
                    peer.recv(4096)
                    try:
                        peer.sendall(answer)
                    except OSError:
                        pass

        liar = threading.Thread(target=lies)
        liar.start()
        # The last server hangs up, and is asked again in vain: it exists.
        for answer in answers:
            code, got = told("evil")
            r.same((code, [p["code"] for p in got["health"]]), (1, ["C012"]), f"{answer[:30]}")
        liar.join()
    os.unlink(f"{runs}/evil.1.sock")
    r.stop(small, signal.SIGKILL, expect=-9)
    code, text, _ = ask("status")
    r.require(code == 0 and "small" not in text, text)
    ends(r, c, path)
    r.same((ask("status")[:2], os.listdir(runs)), ((0, "no canvas run and no canvas disk of this user is running\n"), []),
           "the end")


@check("disk-terms", modes=("signal",), timeout_s=120)
def terms(r):
    """Settings of the agent's operator for a tenant apply to the disk of that name: as defaults, and as
    limits."""
    canvas_only(r)
    sock, env = r.path("agent.sock"), {"CANVAS_RUN_DIR": r.path("runs")}
    config = r.write("agent.toml", '[tenant.vm]\npool = "8M"\nfar = "128M"\nweight = 50\nswap_out_limit = "100M/s"\n')
    a = r.start([r.session.canvas, "agent", "--socket", sock, "--to", f"disk:{r.dir}", "--config", config], tag="agent",
                canvas_on=False)
    wait_until(r, "the agent listens", lambda: os.path.exists(sock), 20)
    at = (f"--to=agent:{sock}", "--tenant", "vm")
    for flags, why in ((("--pool", "9M"), "--pool 9M is more than the agent's operator allows this tenant; write 8M or less"),
                       (("--far", "129M"), "--far 129M is more than"), (("-o", "weight=51"), "weight 51 is more than"),
                       (("-o", "swap-out-limit=none"), "-o swap-out-limit=none is more than")):
        done = subprocess.run([r.session.canvas, "disk", "--size", "64M", "--nbd", r.path("no.sock"), *at, *flags],
                              capture_output=True, text=True, timeout=20)
        r.require(done.returncode == 2 and why in done.stderr, f"{flags}: {done.returncode}: {done.stderr}")
    c, path = disk(r, *at, pool=None, env=env)
    done = subprocess.run([r.session.canvas, "status", "vm", "--json"], capture_output=True, text=True, timeout=20,
                          env={**os.environ, **env})
    limits = json.loads(done.stdout)["limits"]
    r.same([limits[k] for k in ("pool_bytes", "far_bytes", "weight", "swap_out_limit_bytes_per_s")],
           [8 * MIB, 128 * MIB, 50, 100 * MIB], "what it asked nothing for")
    again = subprocess.run([r.session.canvas, "disk", "--size", "64M", "--nbd", r.path("no.sock"), *at],
                           capture_output=True, text=True, timeout=20)
    r.require(again.returncode == 2 and "there is a tenant vm already" in again.stderr, again.stderr)
    client = nbd.Client(path)
    pages = fill(client, 4000, random_bytes=PAGE)
    settled(r, "most of it is beyond the pool", lambda s: s["far_bytes"] > 0 and s["pool_bytes"] <= 8 * MIB)
    looks(r, client, pages, random.Random(1), 500)
    ends(r, c, path)
    r.stop(a, signal.SIGTERM, expect=0)


@check("disk-elastic", modes=("signal",), slow_only=True, timeout_s=120)
def elastic(r):
    """Two disks at an agent with one pool: it follows the load, back and forth, and every byte is right."""
    canvas_only(r)
    sock = r.path("agent.sock")
    a = r.start([r.session.canvas, "agent", "--socket", sock, "--to", f"disk:{r.dir}", "--pool", "32M"], tag="agent",
                canvas_on=False)
    wait_until(r, "the agent listens", lambda: os.path.exists(sock), 20)
    disks, ports, clients, pages = [], [], [], []
    for tag in ("one", "two"):
        ports.append(free_port())
        c, path = disk(r, "--far", "256M", f"--to=agent:{sock}", "--tenant", tag, "--metrics", f"127.0.0.1:{ports[-1]}",
                       pool=28 * MIB, tag=tag)
        disks.append((c, path))
        clients.append(nbd.Client(path))
        pages.append(fill(clients[-1], 9000, random_bytes=PAGE))
    def grant(i):
        name = "canvas_disk_pool_limit_bytes{"
        return next(float(line.split()[-1]) for line in scraped(ports[i]) if line.startswith(name))

    rng = random.Random(8)
    # About two seconds; up to seven on a busy machine, where loads seem to pause. The note has the times.
    for used in (0, 1, 0, 1):
        began, follows = time.monotonic(), None
        while follows is None or time.monotonic() < began + PHASE_S:
            looks(r, clients[used], pages[used], rng, 100)
            mine, others = grant(used), grant(1 - used)
            at = time.monotonic() - began
            if follows is None and mine >= 2 * others:
                follows = at
            r.require(follows is not None or at < 15, f"the used one is granted {mine}, the other one {others}")
        r.note(f"to {('one', 'two')[used]} in {follows:.1f} s")
    for client, all_of_it in zip(clients, pages):
        looks(r, client, all_of_it, rng, 3000)
    for c, path in disks:
        ends(r, c, path)
    r.stop(a, signal.SIGTERM, expect=0)
