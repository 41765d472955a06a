"""`canvas dispatch`: runs programs where they suit, judged by their earlier runs."""

import json
import os
import re
import signal
import subprocess

from lib.harness import MIB, Skip, check

from .copies import lenders
from .operate import python, wait_until

# 40 MiB of incompressible data, read and checked in random order or in sequence; then it waits for a file.
WORK = """
import mmap, os, random, sys, time
SIZE, PAGES = 4096, 40 << 8
draw = random.Random(5)
noise = draw.randbytes(64 * SIZE)
m = mmap.mmap(-1, SIZE * PAGES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
page = lambda i: i.to_bytes(8, "little") + noise[i % 64 * SIZE + 8:(i % 64 + 1) * SIZE]
for i in range(PAGES):
    m[i * SIZE:(i + 1) * SIZE] = page(i)
for n in range(2 * PAGES):
    i = n % PAGES if sys.argv[2] == "in-order" else int(PAGES * draw.random())
    if m[i * SIZE:(i + 1) * SIZE] != page(i):
        sys.exit(f"page {i} is wrong")
print("right", flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""


class Place:
    """An agent with prepared tenants, and a user who dispatches programs to it."""

    def __init__(self, r, *flags):
        self.r, self.socket = r, r.path("agent.sock")
        self.state = r.path("state/canvas/dispatch.json")
        self.env = {**os.environ, "XDG_STATE_HOME": r.path("state"), "CANVAS_RUN_DIR": r.path("runs"),
                    "CANVAS_OPTIONS": "mode=signal,require=on"}
        self.agent = r.start([r.session.canvas, "agent", "--socket", self.socket, "--to", f"disk:{r.dir}", *flags],
                             tag="agent", canvas_on=False)
        wait_until(r, "the agent listens", lambda: os.path.exists(self.socket))

    def words(self, *words):
        return [self.r.session.canvas, "dispatch", "--socket", self.socket, *map(str, words)]

    def ask(self, *words, expect=0, **env):
        """Output of a dispatch, which becomes the process of the program."""
        done = subprocess.run(self.words(*words), capture_output=True, text=True, timeout=60,
                              env={**self.env, **env})
        self.r.same(done.returncode, expect, f"exit code of {words}: {done.stderr}")
        return done

    def told(self, *words, **env):
        return json.loads(self.ask("--dry-run", "--json", "--", *words, **env).stdout)

    def begin(self, *words, **env):
        return subprocess.Popen(self.words("--", *words), env={**self.env, **env}, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def runs(self):
        done = subprocess.run([self.r.session.canvas, "status", "--json"], capture_output=True, text=True, timeout=30,
                              env=self.env)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def prepared(self, program, copies):
        """Waits until a program would get a prepared tenant with these copies."""
        wait_until(self.r, "a tenant is prepared", lambda: self.told(*program)["tenant"] != "new", 10)
        told = self.told(*program)
        self.r.same((told["tenant"], told["copies"]), copies, f"{told}")
        return told


@check("dispatch", modes=("signal",), timeout_s=120)
def dispatch(r):
    """Random pages go to a donor and streams to the disk; each program gets a suitable tenant."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    (lending,), (server,) = lenders(r, 1)
    place = Place(r, "--to", server, "--warm", "2")
    end = r.path("end")
    work = [python(), "-c", WORK, end, "at-random"]
    stream = [python(), "-c", WORK, end, "in-order"]

    # Nothing is known: the agent's default.
    told = place.prepared(work, ("prepared", "1+disk"))
    r.same((told["runs"], told["need_bytes"]), (0, None), f"{told}")
    r.require("the program has no earlier runs" in place.ask("--dry-run", "--", *work).stdout, "for people")
    r.require(not os.path.exists(place.state), "--dry-run notes nothing")

    # Learned: its pages are faulted in at random, and 16 MiB are too little.
    open(end, "w").close()
    r.same(place.ask("--", *work, CANVAS_LOCAL="16M", CANVAS_OPTIONS="mode=signal,require=on,pool=6M").stdout, "right\n", "the program's answer")
    told = place.prepared(work, ("prepared", "1+disk"))
    r.require(told["runs"] == 1 and "refaults are random" in told["why"], f"{told}")
    r.require(18 * MIB < told["need_bytes"] < 80 * MIB and told["pool_bytes"] < 128 * MIB, f"{told}")

    # Likewise for a program that reads in sequence, and for sort(1), whose answer is right, too.
    place.ask("--", *stream, CANVAS_LOCAL="16M", CANVAS_OPTIONS="mode=signal,require=on,pool=6M")
    sorts(r, place)
    os.remove(end)

    joins(r, place, work, end)
    switched(r, place, stream, end)
    r.stop(place.agent, signal.SIGTERM, expect={0})
    r.stop(lending, signal.SIGTERM, expect={0})


def sorts(r, place):
    """sort(1) of 12 MiB of lines in less memory than they need."""
    lines = [f"{i * 7919 % 1_000_003:07d} " + "x" * 56 for i in range(180_000)]
    r.write("lines", "\n".join(lines) + "\n")
    want = "\n".join(sorted(lines)) + "\n"
    sort = ["sort", "-S", "80M", "--parallel=1", r.path("lines")]
    got = place.ask("--", *sort, LC_ALL="C", CANVAS_LOCAL="12M")
    r.same(got.stdout == want, True, "what sort prints")
    told = place.told(*sort)
    r.note(f"sort: copies={told['copies']}, {told['why']}")
    r.require("refaults are" in told["why"], f"{told}")


def joins(r, place, work, end):
    """While it runs with memory to spare, another program of the same kind joins it."""
    first = place.begin(*work, CANVAS_LOCAL="400M")
    r.same(first.stdout.readline(), "right\n", "the first one")
    (one,) = place.runs()
    r.require(one["tenant"].startswith("prepared-"), f"{one}")
    told = place.told(*work)
    r.same((told["tenant"], told["name"]), ("join", one["tenant"]), f"{told}")
    second = place.begin(*work)
    r.same(second.stdout.readline(), "right\n", "the second one")
    runs = place.runs()
    r.same([run["tenant"] for run in runs], [one["tenant"]] * 2, "two runs of one tenant")
    r.same(len({run["shared"] for run in runs}), 1, "two runs of one tenant")
    # With too little memory to spare it does not join.
    tight = place.told(*work, CANVAS_LOCAL="390M")
    r.require(tight["tenant"] != "join", f"{tight}")
    open(end, "w").close()
    for child in (first, second):
        _, err = child.communicate(timeout=60)
        r.same((child.returncode, err), (0, ""), "end")
    os.remove(end)


def switched(r, place, work, end):
    """A prepared tenant's copies are changed to the requested ones, and its program's pages are there."""
    told = place.prepared(work, ("switch", "disk"))
    r.require("sequential" in told["why"], f"{told}")
    child = place.begin(*work, CANVAS_LOCAL="16M", CANVAS_FAR="256M",
                        CANVAS_OPTIONS="mode=signal,require=on,pool=4M")
    r.same(child.stdout.readline(), "right\n", "answer")
    (run,) = place.runs()
    r.require(run["tenant"].startswith("prepared-"), f"{run}")
    r.same((run["limits"]["copies"], run["limits"]["far_bytes"]), ("disk", 256 * MIB), "what was asked for")
    r.require(run["used"]["far_bytes"] > 0 and run["limits"]["local_bytes"] == 16 * MIB, f"{run}")
    r.same(sum(d["slabs"] for d in run["donors"]), 0, "slabs at the server")
    open(end, "w").close()
    _, err = child.communicate(timeout=60)
    r.same((child.returncode, err), (0, ""), "end")


@check("dispatch-refused", modes=("signal",), timeout_s=60)
def dispatch_refused(r):
    """Requests that cannot be dispatched get one sentence; a damaged file of earlier runs is left unchanged
    and stops no program."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    place = Place(r)
    for words, code, why, env in (
        (["--", "no-such-program"], 127, "there is no program no-such-program", {}),
        (["--json", "--", "true"], 125, "--dry-run", {}),
        ([], 125, "canvas dispatch -- CMD", {}),
        (["--", "true"], 125, "unset it", {"CANVAS_TENANT": "a"}),
        (["--", "true"], 125, "CANVAS_LOCAL=4X", {"CANVAS_LOCAL": "4X"}),
        (["--", "true"], 125, "need 1 donors", {"CANVAS_OPTIONS": "copies=1+disk"}),
        (["--", "true"], 125, "CANVAS_LOCAL", {"CANVAS_LOCAL": "1K"}),
    ):
        err = place.ask(*words, expect=code, **env).stderr
        r.require(why in err and err.count("\n") == 1, f"{words}: {err}")
        # Errors name only flags of this command.
        flags = set(re.findall(r"--[a-z-]+", err))
        r.same(sorted(flags - {"--dry-run", "--json", "--socket", "--help"}), [], f"flags in {err}")
    # Nothing is prepared, and nothing is known: a new tenant.
    r.same(place.told("true")["tenant"], "new", "without --warm")
    place.ask("--", "true")
    r.require(os.path.exists(place.state), "it is remembered")
    with open(place.state, "w") as f:
        f.write('{"schema":')
    done = place.ask("--", "sh", "-c", "exit 7", expect=7)
    r.require(done.stderr.count("\n") == 1 and "remove it" in done.stderr, done.stderr)
    with open(place.state) as f:
        r.same(f.read(), '{"schema":', "the damaged file")
    r.stop(place.agent, signal.SIGTERM, expect={0})
    # No agent listens there any more.
    err = place.ask("--", "true", expect=125).stderr
    r.require("cannot be used" in err and "--to=agent" not in err, err)
