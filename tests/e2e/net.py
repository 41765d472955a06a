"""Far memory over a network: five hosts in namespaces, real programs, donors that fail and lie.

Every byte that a program reads is checked: by itself (tests/c/far_pages.c) or, for redis, by a client outside. Each
test prints the longest stall, from the report (of any fault) and from the client, and the seed of its random
actions.
"""

import functools
import json
import os
import random
import signal
import struct
import subprocess
import time

from lib import lab, procs
from lib.harness import MIB, Failure, check, example

from net import hosts
from net.donors import PORT, Donor, Donors, answered, key_file
from net.hosts import Network
from net.load import Pages, RedisLoad, far_flags

from .operate import ask, wait_until
from .servers import missing

COPIES = ("1+disk", "2", "3")
# A silent donor is given up after half a second, then the next copy is asked. The limit leaves room for a busy
# machine, and is below the 10 s for which donors are stopped.
STALL_MS_MAX = 8000
KILLS = {"1+disk": (4, 400), "2": (6, 300), "3": (6, 300)}
SIGBUS_CODE = 128 + signal.SIGBUS


def net_missing():
    return hosts.missing() or missing("cargo", "redis-server")()


def net_check(name, **o):
    """Registers a test with hosts; its body gets a run that has the test programs."""

    def wrap(fn):
        def body(r):
            r.session.far_state = example("far_state")
            fn(r)

        o.setdefault("slow_only", True)
        check(name, modes=o.pop("modes", ("signal",)), needs=net_missing, **o)(body)
        return fn

    return wrap


class Stalls:
    """The longest stall of each kind of action."""

    def __init__(self, run):
        self.run, self.longest = run, {}

    def saw(self, what, clients):
        for c in clients:
            ms = c.longest_ms()
            key = (what, c.tag)
            self.longest[key] = max(self.longest.get(key, 0), ms)
            self.run.require(ms <= STALL_MS_MAX, f"{c.tag} stood still for {ms:.0f} ms ({what})")

    def note(self, reports=()):
        for (what, tag), ms in self.longest.items():
            self.run.note(f"{what}: {tag} {ms:.0f} ms")
        for tag, stats in reports:
            far = stats["far"]
            self.run.note(f"{tag}: longest fault {stats['fault_time_ns']['max'] / 1e6:.0f} ms, "
                          f"{far['reads']} far reads, {far['failovers']} failovers, "
                          f"{far['repairs']} repairs")


def goes_on(client, before, what, timeout_s=STALL_MS_MAX / 1e3):
    """Checks that the program makes progress."""
    end = time.monotonic() + timeout_s
    while client.reads() == before:
        client.alive()
        if time.monotonic() > end:
            raise Failure(f"{client.tag} makes no progress ({what}):\n{client.child.tail(30)}")
        time.sleep(0.01)


# -- (1) many to many --------------------------------------------------------------------------
@net_check("net-many-to-many", timeout_s=90)
def many_to_many(r):
    """Three clients on three hosts over four donors, two of which are on hosts of clients."""
    key = key_file(r)
    with Network(5) as net, Donors() as donors:
        for host in net.hosts[:4]:
            donors.append(Donor(r, host, key, memory="2G"))
        mib = r.size(48, 256)
        clients = [Pages(r, host, far_flags(donors, copies, key, r), mib, f"pages{n}", 10 + n)
                   for n, (host, copies) in enumerate(zip(net.hosts[2:], COPIES))]
        seconds = r.size(3, 60)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for c in clients:
                c.alive()
            time.sleep(0.1)
        stalls = Stalls(r)
        stalls.saw("nothing", clients)
        time.sleep(1.1)  # The state files are written once a second.
        states = [d.state() for d in donors]
        stalls.note([(c.tag, c.finish()) for c in clients])
        r.require(all(len(s["clients"]) == 3 for s in states), f"not every client has every donor: {states}")
        used = sum(s["slabs"] > 0 for s in states)
        r.require(used >= 3, f"only {used} of 4 donors lent anything")
        for d in donors:
            r.same(d.end(), 0, f"exit code of donor {d.addr}")


# -- (2) things that happen to donors ----------------------------------------------------------
def both(r, host, donors, copies, key):
    """A program that checks what it reads, and in the slow suite redis as well."""
    flags = far_flags(donors, copies, key, r)
    clients = [Pages(r, host, flags, r.size(24, 128))]
    if r.slow:
        clients.append(RedisLoad(r, host, flags, 80_000))
    for c in clients:
        c.longest_ms()
    return clients


def whole(clients, copies):
    """Waits until all copies are restored: one failure at a time. The disk of 1+disk always works."""
    for c in clients:
        c.alive()
        if copies != "1+disk":
            c.wait_whole()


def kills(r, copies):
    seed = random.SystemRandom().randrange(1 << 32) if r.slow else 4
    r.note(f"seed {seed}")
    rng, key, stalls = random.Random(seed), key_file(r), Stalls(r)
    with Network(5) as net, Donors() as donors:
        for host in net.hosts[:r.size(2, 4)]:
            donors.append(Donor(r, host, key))
        clients = both(r, net.hosts[4], donors, copies, key)
        count = KILLS[copies][1 if r.slow else 0]
        for n in range(count):
            donor = rng.choice([d for d in donors if d.state()["slabs"]] or donors)
            donor.kill()
            time.sleep(rng.choice((0, 0, 0.1, 0.5)))
            before = [c.reads() for c in clients]
            for c, b in zip(clients, before):
                goes_on(c, b, f"kill {n} of {donor.addr}")
            donor.start()
            time.sleep(0.25)
            whole(clients, copies)
            stalls.saw("kill -9", clients)
        reports = [(c.tag, c.finish()) for c in clients]
        stalls.note(reports)
        # A death that is noticed between two reads makes no read fail, but its copies are made good.
        r.require(sum(s["far"]["failovers"] + s["far"]["repairs"] for _, s in reports) > 0,
                  "no read went to another copy, and none was made good")
        r.note(f"{count} kills")


def busiest(donors):
    """The donor that gets the most reads now."""
    before = [d.state()["counters"]["reads"] for d in donors]
    time.sleep(2.2)  # The state files are written once a second.
    after = [d.state()["counters"]["reads"] for d in donors]
    return max(zip(donors, before, after), key=lambda x: x[2] - x[1])[0]


def faults(r, copies):
    """Donors are stopped, unplugged, half open, ended in order and started again."""
    key, stalls = key_file(r), Stalls(r)
    with Network(5) as net, Donors() as donors:
        for host in net.hosts[:4]:
            donors.append(Donor(r, host, key))
        clients = both(r, net.hosts[4], donors, copies, key)

        def during(what, seconds):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                for c in clients:
                    goes_on(c, c.reads(), what)
                time.sleep(0.05)

        def after(what):
            during(what, 1.5)
            whole(clients, copies)
            stalls.saw(what, clients)

        for _ in range(r.size(1, 4)):
            d = busiest(donors)
            d.signal(signal.SIGSTOP)
            try:
                during("SIGSTOP", 10)
            finally:
                d.signal(signal.SIGCONT)
            after("SIGSTOP 10 s")
            d = busiest(donors)
            d.host.unplug()
            during("link down", 4)
            d.host.plug()
            after("link down")
            d = busiest(donors)
            d.host.go_deaf()
            during("half open", 4)
            d.host.hear()
            after("half open")
            d = busiest(donors)
            d.end()
            during("donor ended", 1)
            d.start()
            after("restart")
        reports = [(c.tag, c.finish()) for c in clients]
        stalls.note(reports)


for _copies in COPIES:
    net_check(f"net-kills-{_copies}", timeout_s=240, slow_only=_copies != "1+disk")(functools.partial(kills, copies=_copies))
    net_check(f"net-faults-{_copies}", timeout_s=120)(
        functools.partial(faults, copies=_copies))


@net_check("net-cut-off", timeout_s=90)
def cut_off(r):
    """A client that is itself unplugged reaches no copy at all: it waits, and goes on."""
    key = key_file(r)
    for copies in ("2", "1"):
        stalls = Stalls(r)
        with Network(3) as net, Donors() as donors:
            for host in net.hosts[:2]:
                donors.append(Donor(r, host, key))
            c = Pages(r, net.hosts[2], far_flags(donors, copies, key, r), tag=f"cut-{copies}")
            for _ in range(r.size(1, 5)):
                net.hosts[2].unplug()
                time.sleep(3)
                c.alive()
                net.hosts[2].plug()
                goes_on(c, c.reads(), "plugged in again")
                time.sleep(0.5)
                stalls.saw("no link for 3 s", [c])
            stalls.note([(c.tag, c.finish())])


@net_check("net-none", timeout_s=60, slow_only=False)
def none(r):
    """With only one copy, the data of a dead donor is lost, and the program gets SIGBUS: never zeros."""
    key = key_file(r)
    for again in (False, True):
        with Network(2) as net, Donors() as donors:
            donors.append(Donor(r, net.hosts[0], key))
            tag = f"pages{again}"
            flags = far_flags(donors, "1", key, r, wait="2s")
            c = Pages(r, net.hosts[1], flags, tag=tag, seed=7)
            donors[0].kill()
            if again:
                donors[0].start()
            begun = time.monotonic()
            r.wait(c.child, SIGBUS_CODE, timeout_s=30)
            r.note(f"SIGBUS after {time.monotonic() - begun:.1f} s"
                   + (", though the donor was started again" if again else ""))
            why = (r"page 0x[0-9a-f]+: no far copy of it is left: the donors that held it have lost it .*" if again else
                   r"page 0x[0-9a-f]+: its far copy cannot be reached within -o far-wait; ")
            answered(c.child.err(), why + r"the program gets SIGBUS", "its standard error")


# -- (3) refusals ------------------------------------------------------------------------------
@net_check("net-refusals", timeout_s=60)
def refusals(r):
    """No room, another key, another version, a key that others can read."""
    right, wrong = key_file(r), key_file(r, "wrong")
    canvas = r.session.canvas

    def said(argv, code, pattern):
        got = subprocess.run(argv, capture_output=True, text=True, cwd=r.dir, timeout=30)
        r.same(got.returncode, code, f"exit code of {' '.join(argv[1:])}: {got.stderr}")
        answered(got.stderr, pattern, " ".join(argv[1:]))

    shown = r.path("shown")
    with open(right) as f, open(shown, "w") as g:
        g.write(f.read())
    os.chmod(shown, 0o644)
    others = r"^canvas: .*shown.*(others|chmod)"
    said([canvas, "serve", "--listen", "127.0.0.1:0", "--memory", "1G", "--key-file", shown], 2, others)
    run = [canvas, "run", "--local", "16M", "--far", "64M", "--to", "10.77.0.1:7070"]
    said([*run, "--key-file", shown, "--", "true"], 125, others)
    said([*run, "--", "true"], 125, r"^canvas: .*takes a cluster key; write --key-file FILE")
    said([canvas, "serve", "--listen", "10.77.0.1:7070", "--memory", "1G"], 2, r"^canvas: .*key")
    said([canvas, "serve", "--listen", "127.0.0.1:0", "--memory", "0", "--key-file", right], 2,
         r"^canvas: --memory is less than one slab; write 64M or more")
    with Network(3) as net, Donors() as donors:
        donors.append(Donor(r, net.hosts[0], right, memory="64M"))
        # A full donor: 64 MiB are one slab. With a disk the program is not affected.
        c = Pages(r, net.hosts[1], far_flags(donors, "1+disk", right, r), 224, "full")
        goes_on(c, c.reads(), "donor full")
        time.sleep(1.1)  # The state file is written once a second.
        state = donors[0].state()
        r.same((state["slabs"], state["free_bytes"]), (1, 0), "slabs and free memory of the full donor")
        far = c.finish()["far"]
        r.require(far["used_bytes"] > 64 << 20, f"one slab was enough: {far}")
        # Another key: the donor stores nothing, the disk has all data, and both sides report the reason.
        c = Pages(r, net.hosts[1], far_flags(donors, "1+disk", wrong, r), tag="wrongkey")
        goes_on(c, c.reads(), "wrong key")
        time.sleep(0.3)
        c.finish()
        answered(c.child.err(), r"another cluster key", "the client")
        answered(donors[0].log(), r"another cluster key", "the donor")
        # Without another place the program goes on in the pool until that is full; then SIGBUS.
        tag = "wrongonly"
        flags = far_flags(donors, "1", wrong, r, wait="2s")
        child = r.start([*hosts.BOUND, r.binary("far_pages"), 64, r.path("status"), 3], tag=tag,
                        local=10 << 20, pool="4M", extra=flags, prefix=[*net.hosts[1].prefix(), *hosts.BOUND])
        r.wait(child, SIGBUS_CODE, timeout_s=30)
        answered(child.err(), r"another cluster key", "the client")
        # Invalid frames: the donor hangs up, reports the reason, and serves the others.
        for first in (b"GET / HTTP/1.1\r\n\r\n", struct.pack("<H", 48) + b"\x07" * 48, b"\xff" * 2000):
            answer = talk(net.hosts[2], first)
            r.same(answer, b"", f"what the donor answers to {first[:8]!r}")
        c = Pages(r, net.hosts[1], far_flags(donors, "1+disk", right, r), tag="after")
        goes_on(c, c.reads(), "after bad peers")
        c.finish()
    # Another version: a donor with a valid handshake and a Welcome of version 9.
    with Network(2) as net, Donors() as donors:
        program = [example("evil_donor"), "--how", "version", "--when", r.dir]
        donors.append(Donor(r, net.hosts[0], right, program=program))
        c = Pages(r, net.hosts[1], far_flags(donors, "1+disk", right, r), tag="version")
        goes_on(c, c.reads(), "wrong version")
        c.finish()
        answered(c.child.err(), r"version", "the client")


def talk(host, data):
    """Sends bytes to donor 1 from a host, and returns its answer until it hangs up."""
    code = ("import socket,sys\n"
            f"s=socket.create_connection(('{hosts.NET}1',{PORT}),10); s.settimeout(10)\n"
            f"s.sendall(bytes.fromhex('{data.hex()}'))\n"
            "got=b''\n"
            "try:\n"
            " while (b:=s.recv(4096)): got+=b\n"
            "except ConnectionResetError: pass\n"
            "print(got.hex())")
    return bytes.fromhex(host.do("python3", "-c", code).strip())


# -- (4) a donor that lies ---------------------------------------------------------------------
# Small, so that extents are soon rewritten.
ONE_SLAB = "64M"
WAYS = ("corrupt", "stale", "swap", "zeros", "truncate")


def liar(r, host, key, way, start_file):
    program = [example("evil_donor"), "--how", way, "--when", start_file]
    return Donor(r, host, key, program=program)


@net_check("net-liar", timeout_s=120, slow_only=False)
def lying_donor(r):
    """The other copy is used, and wrong copies are counted."""
    key = key_file(r)
    # The other ways are wrong bytes, too.
    for way in WAYS if r.slow else ("corrupt", "stale", "truncate"):
        for copies in ("1+disk", "2") if r.slow else ("1+disk",):
            with Network(3) as net, Donors() as donors:
                start = r.path(f"lie-{way}-{copies}")
                donors.append(liar(r, net.hosts[0], key, way, start))
                if copies == "2":
                    donors.append(Donor(r, net.hosts[1], key))
                flags = far_flags(donors, copies, key, r, far=ONE_SLAB)
                c = Pages(r, net.hosts[2], flags, r.size(20, 24), f"{way}-{copies}", seed=11)
                open(start, "w").close()
                # An old version needs an extent that was written twice.
                end = time.monotonic() + 60
                while sum((c.far_now() or (0, 0, 0))[1:]) == 0 and time.monotonic() < end:
                    c.alive()
                    if copies == "2":
                        # Otherwise the honest donor may be asked first every time.
                        donors[1].host.unplug()
                        time.sleep(1)
                        donors[1].host.plug()
                    time.sleep(0.2)
                before = c.reads()
                while c.reads() < before + 1000:
                    c.alive()
                    time.sleep(0.01)
                far = c.finish(lying=True)["far"]
                r.require(far["failovers"] + far["corrupt"] > 0, f"{way}, {copies}: nothing was noticed: {far}")
                r.note(f"{way} {copies}: corrupt {far['corrupt']} failovers {far['failovers']}")


@net_check("net-liar-alone", timeout_s=90)
def lying_donor_alone(r):
    """Without another copy the program gets SIGBUS, and never the donor's false data."""
    key = key_file(r)
    for way in WAYS:
        with Network(2) as net, Donors() as donors:
            start = r.path(f"lie-{way}")
            donors.append(liar(r, net.hosts[0], key, way, start))
            flags = far_flags(donors, "1", key, r, wait="2s", far=ONE_SLAB)
            c = Pages(r, net.hosts[1], flags, tag=way, seed=12)
            open(start, "w").close()
            # Exit code 1 of far_pages means that it saw a wrong byte.
            r.wait(c.child, SIGBUS_CODE, timeout_s=30)
            answered(c.child.err(), r"(the far copy of page 0x[0-9a-f]+ does not verify|page 0x[0-9a-f]+: its far copy cannot be reached)", way)


# -- (5) narrow links --------------------------------------------------------------------------
@net_check("net-narrow", timeout_s=90)
def narrow(r):
    """Two donors behind 200 Mbit each; the client's own link is limited by another kind of queue."""
    key = key_file(r)
    with Network(3) as net, Donors() as donors:
        for host in net.hosts[:2]:
            host.cap(200)
            donors.append(Donor(r, host, key))
        net.hosts[2].cap(400, "htb")
        begun, sent = time.monotonic(), [h.sent_bytes() for h in net.hosts]
        c = Pages(r, net.hosts[2], far_flags(donors, "2", key, r), r.size(96, 512))
        stalls = Stalls(r)
        seconds = r.size(4, 60)
        time.sleep(seconds)
        c.alive()
        stalls.saw("200 Mbit", [c])
        took = time.monotonic() - begun
        rates = [8e-6 * (h.sent_bytes() - s) / took for h, s in zip(net.hosts, sent)]
        stalls.note([(c.tag, c.finish())])
        r.note("sent, Mbit/s: " + " ".join(f"{x:.0f}" for x in rates))
        r.require(max(rates[:2]) < 210, f"the caps did not hold: {rates}")


@net_check("net-slow-donor", timeout_s=120, slow_only=False)
def slow_donor(r):
    """A donor's link becomes ten times slower while the program runs, and fast again: the disk takes its reads
    over."""
    key, name, stalls = key_file(r), f"slow{os.getpid()}", Stalls(r)

    def far():
        return json.loads(ask(r, "status", name, "--json"))["far"]

    def of_disk(seconds):
        """Share of the reads in some seconds that went to the disk although the donor had the data; and their
        number."""
        before = far()
        time.sleep(seconds)
        c.alive()
        after = far()
        reads, disk = (after[key] - before[key] for key in ("reads", "reads_by_disk"))
        return disk / max(1, reads), reads

    with Network(2) as net, Donors() as donors:
        net.hosts[0].cap(200)
        donors.append(Donor(r, net.hosts[0], key))
        c = Pages(r, net.hosts[1], [*far_flags(donors, "1+disk", key, r), "--tenant", name], r.size(24, 48))
        for mbit, what in ((200, "fast"), (20, "ten times slower"), (200, "fast again")):
            net.hosts[0].cap(mbit)
            if what == "ten times slower":
                # Shares change by a twentieth, four times a second.
                wait_until(r, "the disk has much of the reads", lambda: of_disk(1)[0] > 0.3, 30, state=lambda: of_disk(1))
            part, reads = of_disk(r.size(1, 10))
            r.note(f"{what}: {reads} reads, {part:.0%} of the disk")
            stalls.saw(what, [c])
            r.require(reads > 0, f"{what}: nothing is read")
        stalls.note([(c.tag, c.finish())])


# -- (6) one link for many ---------------------------------------------------------------------
@net_check("net-shared", timeout_s=150, slow_only=False)
def shared(r):
    """Tenants of one agent come and go over a narrow link, killed while they read; the remaining ones get shares by
    weight."""
    key, socket, seconds = key_file(r), r.path("agent.sock"), r.size(3, 60)
    weights, passing = (1, 2, 4, 8), r.size(4, 40)
    with Network(2) as net, Donors() as donors:
        net.hosts[0].cap(200)
        # Enough for the tenants present at one time: a tenant that ends frees its slabs at once.
        donors.append(Donor(r, net.hosts[0], key, memory="1G"))
        agent = r.start([r.session.canvas, "agent", "--socket", socket, "--to", f"disk:{r.dir}", "--to", donors.flag(),
                         "--key-file", key], tag="agent", canvas_on=False,
                        prefix=[*net.hosts[1].prefix(), *hosts.BOUND])
        wait_until(r, "the agent listens", lambda: os.path.exists(socket))

        def held():
            """Threads and descriptors of the agent."""
            return [len(os.listdir(f"/proc/{agent.pid}/{what}")) for what in ("task", "fd")]

        before = held()

        def tenant(name, weight):
            flags = ["--far", "256M", f"--to=agent:{socket}", "--copies", "1", "--tenant", f"{name}-{os.getpid()}",
                     "-o", f"weight={weight}"]
            argv = [*hosts.BOUND, lab.path(r), "workload", "sequential", "--mib", r.size(24, 48), "--seconds", seconds]
            return r.start(argv, tag=name, local=8 * MIB, pool=4 * MIB, extra=flags)

        stay = [tenant(f"stays{w}", w) for w in weights]
        for n in range(0, passing, 2):
            pair = [tenant(f"passes{n + k}", 8) for k in range(2)]
            time.sleep(seconds / passing)
            for c in pair:
                os.kill(procs.tree(c.pid, False)[0], signal.SIGKILL)
                r.wait(c, expect=137, timeout_s=20)
        for c in stay:
            r.wait(c, timeout_s=seconds + 60)
        wait_until(r, f"of {held()} threads and descriptors of the agent {before} are left",
                   lambda: all(now <= then for now, then in zip(held(), before)))
    rates = [json.loads(c.out().splitlines()[-1])["ops_per_s"] for c in stay]
    r.note("pages/s: " + " ".join(f"{rate:.0f}" for rate in rates))
    r.require(min(rates) > 0, f"somebody starves: {rates}")
