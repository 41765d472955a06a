"""Disks with far memory whose servers, agents and holders are killed: no acknowledged write is lost."""

import json
import os
import random
import signal
import subprocess
import threading

from lib import nbd
from lib.harness import MIB, check

from .command import canvas_only
from .copies import lenders
from .deep import agent_of, wait_for_agent
from .disk import (PAGE, SLAB, Writer, all_right, disk, fill, kill_server, looks, page, server_of, settled, shared, vm_killed,
                   vm_missing)
from .operate import wait_until

SIZE = 128 * MIB


class Clients:
    """Pages written and read between deaths of a server, and concurrent writers."""

    def __init__(self, r, path):
        self.run, self.path, self.rng = r, path, random.Random(3)
        self.count = r.size(4000, 16_000)
        self.pages = fill(nbd.Client(path), self.count, random_bytes=PAGE)
        settled(r, "most of it is beyond the pool", lambda s: s["far_bytes"] > 0 and s["stored_pages"] == self.count)
        self.writers = [Writer(path, 20_000 + n * 3000, 3000, n) for n in range(2)]

    def outlive(self, kill):
        """Calls `kill` while all clients write; then checks all pages."""
        before = [w.writes for w in self.writers]
        going = lambda: all(w.writes > b + self.run.size(100, 300) for w, b in zip(self.writers, before))
        wait_until(self.run, "they write", going, 30)
        kill()
        client = nbd.Client(self.path)
        looks(self.run, client, self.pages, self.rng, self.run.size(400, 1500))
        for i in self.rng.sample(sorted(self.pages), self.run.size(100, 300)):
            self.pages[i] = page(self.rng.randrange(1 << 40), self.rng.choice((0, 900, PAGE)))
            client.write(i * PAGE, self.pages[i])

    def judge(self):
        """Checks every byte, and that discarding frees everything."""
        for w in self.writers:
            w.stop()
        client = nbd.Client(self.path)
        all_right(self.run, client, self.pages)
        for w in self.writers:
            w.check(self.run, client)
        got = settled(self.run, "the state follows", lambda s: s["counters"]["reads"] >= self.count)
        self.run.same([got["lost_pages"]] + [got["counters"][k] for k in ("damaged", "unreachable", "refused")], [0] * 4,
                      "failures")
        client.zero(0, SIZE)
        # The slab being filled stays.
        settled(self.run, "all is free", lambda s: s["stored_pages"] == 0 and s["far_bytes"] <= SLAB)
        client.close()


def asking(r, env):
    """Runs a command on the disk `vm`: exit code, stdout, stderr."""
    def ask(*words):
        done = subprocess.run([r.session.canvas, *words], capture_output=True, text=True, timeout=30,
                              env={**os.environ, **env})
        return done.returncode, done.stdout, done.stderr
    return ask


@check("disk-killed-far", modes=("signal",), timeout_s=180)
def far(r):
    """Data of a killed server at a donor and on the disk is there at the next one, even if agent or holder
    are killed; its limits can be changed as long as it has a holder."""
    canvas_only(r)
    _, servers = lenders(r, 1)
    env = {"CANVAS_RUN_DIR": r.path("runs")}
    c, path = disk(r, "--tenant", "vm", "--far", "512M", "--to", f"disk:{r.dir}", "--to", servers[0], size=SIZE,
                   pool=6 * MIB, env=env)
    clients, ask = Clients(r, path), asking(r, env)
    agent = wait_for_agent(r, c)

    def both():
        os.kill(agent, signal.SIGKILL)
        kill_server(r, c)

    for kill in (lambda: kill_server(r, c), both, lambda: kill_server(r, c, signal.SIGABRT)):
        clients.outlive(kill)
        server = server_of(r, c)
        code, out, _ = ask("status", "vm", "--json")
        got = json.loads(out)
        r.same((got["pid"], got["limits"]["copies"], got["limits"]["far_bytes"]), (server, "1+disk", 512 * MIB), "status")
    r.require(agent_of(c) not in (None, agent), "no other agent has taken over")
    code, _, why = ask("set", "vm", "weight=7", "spill-at=50")
    r.same((code, why), (0, ""), "what can be changed")
    clients.outlive(lambda: kill_server(r, c))
    limits = json.loads(ask("status", "vm", "--json")[1])["limits"]
    r.same([limits[k] for k in ("weight", "spill_at_percent")], [7, 50], "limits at the next server")
    settled(r, "it is told", lambda s: s["restarts"] == 4)
    # Without its holder the server goes on unchanged.
    server = server_of(r, c)
    clients.outlive(lambda: r.stop(c, signal.SIGKILL, expect=-9))
    code, _, why = ask("set", "vm", "weight=8")
    r.require(code == 2 and "does not answer, and only that command can change its far memory" in why, f"{code}: {why}")
    r.same(json.loads(ask("status", "vm", "--json")[1])["pid"], server, "who serves it")
    clients.judge()
    os.kill(server, signal.SIGTERM)
    # This process has inherited the server.
    pid, code = wait_until(r, "it has ended", lambda: (end := os.waitpid(server, os.WNOHANG))[0] and end, 20)
    r.same((pid, code), (server, 0), "how it ended")
    r.same([p for p in (path, path + ".lock") if os.path.exists(p)], [], "what is left of the socket")


@check("disk-killed-all", modes=("signal",), timeout_s=90)
def all_of_it(r):
    """When holder and server are both killed a disk ends: its agent frees its memory, and ends; the path is
    free."""
    flags = ("--far", "256M", "--to", f"disk:{r.dir}")
    c, path = disk(r, *flags, pool=4 * MIB)
    fill(nbd.Client(path), 4000, random_bytes=PAGE)
    settled(r, "most of it is beyond the pool", lambda s: s["far_bytes"] > 0)
    server, agent = server_of(r, c), wait_for_agent(r, c)
    r.stop(c, signal.SIGKILL, expect=-9)
    os.kill(server, signal.SIGKILL)
    # This process has inherited them.
    os.waitpid(server, 0)
    pid, code = wait_until(r, "its agent has ended", lambda: (end := os.waitpid(agent, os.WNOHANG))[0] and end, 20)
    r.same((pid, code), (agent, 0), "how it ended")
    c, path = disk(r, *flags, pool=4 * MIB)
    r.require(nbd.Client(path).read(0, PAGE) == bytes(PAGE), "something outlived the disk")
    r.stop(c, signal.SIGTERM, expect=0)


@check("disk-killed-agent", modes=("signal",), timeout_s=180)
def host_agent(r):
    """A disk as a tenant of the host's agent, which is killed as well, and absent while the next server
    begins."""
    canvas_only(r)
    sock, env = r.path("agent.sock"), {"CANVAS_RUN_DIR": r.path("runs")}

    def agent(tag):
        a = r.start([r.session.canvas, "agent", "--socket", sock, "--to", f"disk:{r.dir}", "--pool", "64M"], tag=tag,
                    canvas_on=False)
        wait_until(r, "the agent listens", lambda: os.path.exists(sock) or not a.alive(), 20)
        return a

    first = agent("agent")
    at = ("--far", "512M", f"--to=agent:{sock}")
    c, path = disk(r, *at, size=SIZE, pool=6 * MIB, env=env)
    clients, ask = Clients(r, path), asking(r, env)
    clients.outlive(lambda: kill_server(r, c))
    second = []

    def both():
        r.stop(first, signal.SIGKILL, expect=-9)
        kill_server(r, c)
        # The next server waits for the data that it needs from beyond the pool.
        later = threading.Timer(1, lambda: second.append(agent("agent-2")))
        later.start()

    clients.outlive(both)
    name = f"disk.{c.pid}"
    code, out, _ = ask("status", name, "--json")
    r.same(json.loads(out)["tenant"], name, "its name at the agent")
    code, _, why = ask("set", name, "weight=7")
    r.same((code, why), (0, ""), "what the agent changes")
    clients.outlive(lambda: kill_server(r, c))
    limits = json.loads(ask("status", name, "--json")[1])["limits"]
    r.same((limits["weight"], limits["far_bytes"]), (7, 512 * MIB), "limits at the next server")
    settled(r, "it is told", lambda s: s["restarts"] == 3)
    clients.judge()
    r.stop(c, signal.SIGTERM, expect=0)
    r.same([p for p in (path, path + ".lock") if os.path.exists(p)], [], "what is left of the socket")
    r.stop(second[0], signal.SIGTERM, expect=0)


@check("vm-disk-killed-far", modes=("signal",), slow_only=True, timeout_s=500, needs=vm_missing)
def vm(r):
    """A guest's swap beyond the pool, with the disk's server killed repeatedly: every byte is right, without
    an error."""
    vm_killed(r, "--vhost-user", lambda path: shared(path, queues=2), "--far", "512M", "--to", f"disk:{r.dir}", pool=24 * MIB)
