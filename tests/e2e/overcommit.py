"""Hosts that do not overcommit memory (vm.overcommit_memory=2): canvas's reservations are not charged before they
are used."""

import glob
import json
import os
import subprocess
import sys

from lib import canvas
from lib.harness import MIB, ONCE, Failure, check
from vm import guest

from .servers import pg_bin, pg_missing
from .vm import UNTIL, boot, text

# A host that does not overcommit charges all private writable memory, touched or not. Reports the charge of a
# program that holds three times its local memory, its answer, and the charge when it has freed that memory.
HOLDS = """
import hashlib, mmap

def charged():
    total = 0
    for line in open("/proc/self/maps"):
        span, access = line.split()[:2]
        if access[1] == "w" and access[3] == "p":
            start, end = (int(x, 16) for x in span.split("-"))
            total += end - start
    return total

held = mmap.mmap(-1, {bytes}, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, {bytes}, 4096):
    held[at:at + 4096] = hashlib.sha256(b"%d" % at).digest() * 128
right = all(held[at:at + 4096] == hashlib.sha256(b"%d" % at).digest() * 128 for at in range(0, {bytes}, 4096))
most = charged()
held.close()
print(right, most, charged())
"""
LOCAL = 16 * MIB
# Tables for the first pages of the heap and of mappings, stacks, working memory of a fault and of reclaim, and the
# pool, in which this compressible data takes 4 MiB.
OWN_BYTES = 12 * MIB


def holds(r, **o):
    """Output of the program: whether it is right, and its highest and last charge in bytes."""
    argv = [sys.executable, "-c", HOLDS.format(bytes=3 * LOCAL)]
    said = r.call(argv, **o).out().split()
    r.same(said[0], "True", "what is read is what was written")
    return [int(n) for n in said[1:]]


@check("overcommit-charged", normal=ONCE, timeout_s=90)
def charged(r):
    """Canvas's reservations in addition to a program's memory are small where memory is not overcommitted, whatever
    the size of the far space."""
    plain = holds(r, canvas_on=False)
    for what, extra in (("pool", ()), ("far", ("--far", "512G", "--to", f"disk:{r.dir}"))):
        managed = holds(r, local=LOCAL, pool=64 * MIB, extra=extra)
        more = [m - p for m, p in zip(managed, plain)]
        r.note(f"{what}: {more[0] / MIB:.1f} MiB more than plain, {more[1] / MIB:.1f} MiB when all is given back")
        r.require(max(more) <= OWN_BYTES, f"{what}: {more} bytes more than plain are charged")


SCRIPT = r"""
    echo 80 > /proc/sys/vm/overcommit_ratio
    echo 2 > /proc/sys/vm/overcommit_memory
    cp /proc/sys/vm/overcommit_memory /out/setting
    overcommit 48 > /out/plain || exit 11
    for mode in signal thread; do
        canvas run --local LOCAL --pool 64M --mode $mode --require --stats /out/$mode.json -- overcommit 48 \
            > /out/$mode || exit 12
    done
"""


@check("overcommit-never", modes=("signal",), slow_only=True, timeout_s=240, needs=guest.missing)
def never(r):
    """Under vm.overcommit_memory=2 a program is managed and right; freed memory can be used again, and too much is
    refused."""
    result = boot(r, SCRIPT.replace("LOCAL", str(LOCAL)), files={"/usr/bin/overcommit": r.binary("overcommit")},
                  timeout_s=220)
    r.same(text(result, "setting"), "2\n", "vm.overcommit_memory")
    said = {name: text(result, name).split(",") for name in ("plain", "signal", "thread")}
    for mode in ("signal", "thread"):
        r.same(said[mode][0], said["plain"][0], f"what the program says, {mode}")
        stats = json.loads(text(result, f"{mode}.json"))
        r.same(stats["mode"], mode, "mode")
        r.same(canvas.check_stats(stats, LOCAL), [], "what is wrong with the report")
        r.same(stats["processes"]["unmanaged"], 0, "unmanaged processes")
        r.require(canvas.find(stats, "pages_out") > 0, "it never paged: the test shows nothing")
    r.note("; ".join(f"{name}{said[name][1].rstrip()}" for name in said))


# Sorts, joins and groups rows in private memory.
SQL = """
create temp table t as select i, md5(i::text) as h, repeat(md5((i % 977)::text), 6) as pad
    from generate_series(1, 20000) i;
analyze t;
select md5(string_agg(left(h, 4), '')) from (select h from t order by pad, h) s;
select count(*), sum(a.i) from t a join t b on a.h = b.h and a.pad = b.pad;
select md5(string_agg(g || ':' || c, ',' order by g)) from (select left(h, 3) g, count(*) c from t group by 1) x;
"""
PG_SCRIPT = r"""
    tar -xf /postgres.tar -C / || exit 10
    chown -R 65534:65534 /data
    chmod 1777 /out
    echo 80 > /proc/sys/vm/overcommit_ratio
    echo 2 > /proc/sys/vm/overcommit_memory
    as() { /usr/bin/setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
    step() {
        read -r up idle < /proc/uptime
        echo "$up s: $*"
    }
    ready() { as BIN/pg_isready -h /data -q || ! kill -0 $server; }
    run() {
        name=$1; shift
        step "$name: server"
        # What runs in the background is the server itself.
        (exec /usr/bin/setpriv --reuid 65534 --regid 65534 --clear-groups "$@" BIN/postgres -D /data -k /data \
            -c listen_addresses= -c shared_buffers=4MB -c work_mem=64MB -c temp_buffers=16MB -c fsync=off -c jit=off \
            -c max_parallel_workers_per_gather=0 -c autovacuum=off -c max_connections=10 \
            -c dynamic_shared_memory_type=mmap) > /out/$name.log 2>&1 &
        server=$!
        until_true 120 ready || { tail -n 20 /out/$name.log; exit 11; }
        kill -0 $server || { cat /out/$name.log; exit 12; }
        step "$name: queries"
        as BIN/psql -h /data -U canvas -q -A -t -d postgres -v ON_ERROR_STOP=1 -f /sql > /out/$name 2>&1 ||
            { tail -n 20 /out/$name /out/$name.log; exit 14; }
        step "$name: end"
        kill -INT $server
        wait $server || { echo "the server ended with $?"; tail -n 20 /out/$name.log; exit 15; }
    }
    run plain
    run managed canvas run --local 20M --pool 128M --require --stats /out/stats.json --
    step done
"""


def packed(r, bin_dir):
    """PostgreSQL's files and a new cluster, as an archive."""
    prefix = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"] if os.getuid() == 0 else []
    os.chmod(r.dir, 0o1777)
    argv = [*prefix, f"{bin_dir}/initdb", "-D", r.path("data"), "-U", "canvas", "-A", "trust", "-N", "-E", "UTF8",
            "--locale=C"]
    # The guest has no time zone database, and this zone is built in.
    env = {**os.environ, "TZ": "GMT"}
    p = subprocess.run(argv, cwd=r.dir, env=env, capture_output=True, text=True, timeout=120)
    if p.returncode:
        raise Failure(f"initdb: {p.stdout[-500:]}{p.stderr[-1500:]}")
    lib, version = os.path.join(os.path.dirname(bin_dir), "lib"), bin_dir.split("/")[-2]
    names = [n for n in ("plpgsql.so", "dict_snowball.so") if os.path.exists(os.path.join(lib, n))]
    share = [p for p in glob.glob(f"/usr/share/postgresql/{version}/*") if os.path.basename(p) not in ("man", "locale")]
    inside = [p.lstrip("/") for p in [*(os.path.join(lib, n) for n in names), *share]]
    subprocess.run(["tar", "-cf", r.path("postgres.tar"), "-C", r.dir, "data", "-C", "/", *inside], check=True)
    return r.path("postgres.tar")


def postgres_missing():
    return guest.missing() or pg_missing()


@check("overcommit-postgres", modes=("signal",), timeout_s=600, slow_only=True, needs=postgres_missing)
def postgres(r):
    """Under vm.overcommit_memory=2 PostgreSQL is managed, and gives the same answers as without canvas."""
    bin_dir = pg_bin()
    files = {f"{bin_dir}/{name}": f"{bin_dir}/{name}" for name in ("postgres", "psql", "pg_isready")}
    files |= {"/postgres.tar": packed(r, bin_dir), "/sql": r.write("sql", SQL)}
    result = boot(r, UNTIL + PG_SCRIPT.replace("BIN", bin_dir), files=files, timeout_s=560, programs=("setpriv",))
    answers = [text(result, name) for name in ("plain", "managed")]
    r.same(len(answers[0].split()), 3, f"answers: {answers[0]}")
    r.same(answers[1], answers[0], "answers under canvas")
    stats = json.loads(text(result, "stats.json"))
    r.same(canvas.check_stats(stats, 20 * MIB), [], "what is wrong with the report")
    r.same(stats["processes"]["unmanaged"], 0, "unmanaged processes")
    r.require(canvas.find(stats, "pages_out") > 1000, canvas.summary(stats))
    r.note(f"{canvas.summary(stats)}; {'; '.join(result.output.splitlines()[-8:])}")
