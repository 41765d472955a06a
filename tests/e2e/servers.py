"""redis, memcached and PostgreSQL: every answer is compared with what was stored."""

import functools
import glob
import os
import re
import shutil
import signal
import subprocess
import time

from lib.clients import Memcached, Redis, wait_socket
from lib.harness import Failure, program
from lib.values import Values, Zipf


def missing(*commands):
    def check():
        for c in commands:
            if not shutil.which(c):
                return f"{c} is not installed (tests/packages.txt)"
        return None

    return check


# -- redis -------------------------------------------------------------------------------------
@functools.cache
def redis_debug():
    """The flag that allows DEBUG, which redis before 7 always allows."""
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout
    version = re.search(r"v=(\d+)", said)
    return [] if version and int(version[1]) < 7 else ["--enable-debug-command", "yes"]


def redis_server(r, tag="redis", canvas_on=True, rdb=None):
    socket_path = r.path(f"{tag}.sock")
    home = r.path(tag + ".d")
    os.mkdir(home)
    if rdb:
        shutil.copy(rdb, os.path.join(home, "dump.rdb"))
    if r.user:
        os.chown(home, r.user.pw_uid, r.user.pw_gid)
    child = r.start(
        ["redis-server", "--port", "0", "--unixsocket", socket_path, "--unixsocketperm", "777",
         "--save", "", "--appendonly", "no", "--dir", home, "--dbfilename", "dump.rdb",
         "--daemonize", "no", *redis_debug()],
        tag=tag, canvas_on=canvas_on)
    wait_socket(socket_path, child, timeout_s=60)
    return child, socket_path, home


def redis_verify(client, values, versions, what):
    keys = list(range(len(versions)))
    answers = client.pipeline(((b"GET", b"key:%d" % k) for k in keys), batch=256)
    for k, got in zip(keys, answers):
        if got != values.get(k, versions[k]):
            raise Failure(f"{what}: key {k} version {versions[k]}: got {str(got)[:120]}")


@program("redis", as_user=True, timeout_s=150, needs=missing("redis-server", "redis-benchmark"),
         normal=(("signal", 25),), shares=(25, 50, "25%"))
def redis(r):
    """Load, redis-benchmark, zipf traffic, BGSAVE under load, the dump in a fresh server."""
    n = r.size(10_000, 250_000)
    values = Values(1, 1000)
    child, path, home = redis_server(r)
    client = Redis(path)
    versions = [0] * n
    for a in client.pipeline((b"SET", b"key:%d" % k, values.get(k, 0)) for k in range(n)):
        if a != b"OK":
            raise Failure(f"SET: {a}")
    redis_verify(client, values, versions, "after the load")
    bench = subprocess.run(
        ["redis-benchmark", "-s", path, "-n", str(r.size(n // 2, n)), "-r", str(n), "-P", "8", "-c", "16",
         "-d", "600", "-q", "-t", "set,get,lpush,lpop,sadd,zadd,mset"],
        capture_output=True, text=True, timeout=r.size(300, 900))
    if bench.returncode != 0 or "requests per second" not in bench.stdout:
        raise Failure(f"redis-benchmark: {bench.stdout}{bench.stderr}")
    for a in client.pipeline([(b"DEL", k) for k in (b"mylist", b"myset", b"myzset")]):
        pass
    zipf = Zipf(n, seed=7)
    rounds = r.size(50, 2000)

    def traffic(count):
        for _ in range(count):
            batch, expect = [], []
            for i in range(100):
                k = zipf.next()
                if i % 4 == 0:
                    versions[k] += 1
                    batch.append((b"SET", b"key:%d" % k, values.get(k, versions[k])))
                    expect.append(b"OK")
                else:
                    batch.append((b"GET", b"key:%d" % k))
                    expect.append(values.get(k, versions[k]))
            client.send(*batch)
            for b, e in zip(batch, expect):
                got = client.answer()
                if got != e:
                    raise Failure(f"{b[:2]}: got {str(got)[:120]}, expected {e[:60]}")

    traffic(rounds)
    # The server runs commands one by one: the snapshot has the state at BGSAVE's answer.
    snapshot = list(versions)
    if not client.do(b"BGSAVE").startswith(b"Background saving started"):
        raise Failure("BGSAVE refused")
    traffic(rounds)
    patience_s = r.size(270, 900)
    end = time.monotonic() + patience_s
    while b"rdb_bgsave_in_progress:1" in client.do(b"INFO", b"persistence"):
        traffic(10)
        if time.monotonic() > end:
            raise Failure(f"BGSAVE not finished after {patience_s} s")
    if b"rdb_last_bgsave_status:ok" not in client.do(b"INFO", b"persistence"):
        raise Failure(f"BGSAVE failed:\n{child.tail()}")
    redis_verify(client, values, versions, "after the traffic")
    dump = r.path("saved.rdb")
    shutil.copy(os.path.join(home, "dump.rdb"), dump)
    client.close()
    r.stop(child, signal.SIGTERM, expect=0, timeout_s=60)
    fresh, path, _ = redis_server(r, "fresh", canvas_on=False, rdb=dump)
    client = Redis(path)
    while b"loading:1" in client.do(b"INFO", b"persistence"):
        time.sleep(0.05)
    redis_verify(client, values, snapshot, "in the reloaded dump")
    client.close()
    fresh.kill_tree()
    return "all values right"


# -- memcached ---------------------------------------------------------------------------------
@program("memcached", as_user=True, timeout_s=120, needs=missing("memcached"),
         normal=(("signal", 25),))
def memcached(r):
    """4 threads, 8 connections, zipf reads and writes, every value verified."""
    n = r.size(24_000, 400_000)
    values = Values(2, 1000)
    path = r.path("memcached.sock")
    user = [] if r.user or os.getuid() else ["-u", "nobody"]
    if not r.user and os.getuid() == 0:
        os.chmod(r.dir, 0o777)
    child = r.start(["memcached", *user, "-t", "4", "-m", str(r.size(512, 2048)), "-s", path,
                     "-a", "777", "-c", "64"], tag="memcached")
    wait_socket(path, child, timeout_s=60)
    clients = [Memcached(path) for _ in range(8)]
    versions = [0] * n
    for at in range(0, n, 100):
        keys = range(at, min(n, at + 100))
        clients[at // 100 % 8].set_many([(b"key:%d" % k, values.get(k, 0)) for k in keys])
    zipf = Zipf(n, seed=8)
    for turn in range(r.size(300, 10_000)):
        c = clients[turn % 8]
        if turn % 5 == 0:
            items = []
            for k in {zipf.next() for _ in range(50)}:
                versions[k] += 1
                items.append((b"key:%d" % k, values.get(k, versions[k])))
            c.set_many(items)
        else:
            keys = {zipf.next() for _ in range(50)}
            found = c.get_many([b"key:%d" % k for k in keys])
            for k in keys:
                if found.get(b"key:%d" % k) != values.get(k, versions[k]):
                    raise Failure(f"key {k}: got {str(found.get(b'key:%d' % k))[:120]}")
    for at in range(0, n, 100):
        keys = list(range(at, min(n, at + 100)))
        found = clients[at // 100 % 8].get_many([b"key:%d" % k for k in keys])
        for k in keys:
            if found.get(b"key:%d" % k) != values.get(k, versions[k]):
                raise Failure(f"at the end, key {k}: got {str(found.get(b'key:%d' % k))[:120]}")
    for c in clients:
        c.close()
    r.stop(child, signal.SIGTERM, timeout_s=60)
    return "all values right"


# -- PostgreSQL --------------------------------------------------------------------------------
def pg_bin():
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda p: int(p.split("/")[4]))
    return found[-1] if found else None


def pg_missing():
    if not pg_bin():
        return "PostgreSQL's server is not installed (tests/packages.txt)"
    if not shutil.which("setpriv") and os.getuid() == 0:
        return "setpriv is not installed, and PostgreSQL does not run as root"
    return None


@program("postgres", as_user=True, modes=("signal",), timeout_s=180, needs=pg_missing,
         normal=(("signal", 25),))
def postgres(r):
    """The whole postmaster under canvas; pgbench; queries that sort and hash in private memory."""
    bin_dir = pg_bin()
    data = r.path("data")
    who = r._user_prefix()
    env = r._environment({})

    def tool(name, *args, timeout_s=120, text=None):
        p = subprocess.run([*who, f"{bin_dir}/{name}", *args], cwd=r.dir, env=env, input=text,
                           capture_output=True, text=True, timeout=timeout_s)
        if p.returncode:
            raise Failure(f"{name}: {p.stdout[-500:]}{p.stderr[-1500:]}\n{server_tail()}")
        return p.stdout

    server = None

    def server_tail():
        return server.tail(30) if server else ""

    tool("initdb", "-D", data, "-U", "canvas", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
    server = r.start(
        [f"{bin_dir}/postgres", "-D", data, "-k", r.dir, "-c", "listen_addresses=",
         "-c", "shared_buffers=32MB", "-c", "work_mem=256MB", "-c", "fsync=off",
         "-c", "max_parallel_workers_per_gather=0", "-c", "autovacuum=off",
         "-c", "hash_mem_multiplier=2"],
        tag="postgres")
    at = ["-h", r.dir, "-U", "canvas"]
    end = time.monotonic() + 60
    while subprocess.run([f"{bin_dir}/pg_isready", *at, "-q"]).returncode:
        if not server.alive() or time.monotonic() > end:
            raise Failure(f"postmaster does not answer\n{server_tail()}")
        time.sleep(0.1)
    tool("psql", *at, "-q", "-d", "postgres", "-c", "create database bench")
    tool("pgbench", *at, "-i", "-q", "-s", str(r.size(1, 30)), "bench")
    out = tool("pgbench", *at, "-c", "4", "-j", "2", "-t", str(r.size(20, 3000)), "-n",
               "--random-seed=42", "bench")
    if "number of failed transactions: 0" not in out and "failed" in out:
        raise Failure(out)
    rows = r.size(40_000, 3_000_000)
    sql = f"""
      select sum(abalance) = (select sum(delta) from pgbench_history),
             count(*) from pgbench_accounts;
      create temp table t as select i, md5(i::text) as h, repeat(md5((i % 977)::text), 3) as pad
        from generate_series(1, {rows}) i;
      analyze t;
      set enable_indexscan = off;
      -- a sort of all rows in work_mem, then a hash join and a hash aggregate
      select md5(string_agg(left(h, 4), '')) from (select h from t order by h, pad) s;
      select count(*), sum(a.i) from t a join t b on a.h = b.h;
      select md5(string_agg(g || ':' || c, ',' order by g))
        from (select left(h, 3) g, count(*) c from t group by 1) x;
      select sum(length(pad)), min(h), max(h) from t;
    """
    answer = tool("psql", *at, "-q", "-A", "-t", "-d", "bench", "-v", "ON_ERROR_STOP=1",
                  text=sql, timeout_s=r.size(300, 900))
    r.stop(server, signal.SIGINT, expect=0, timeout_s=60)
    if not answer.startswith("t|"):
        raise Failure(f"balances do not add up: {answer.splitlines()[0]}")
    return answer
