"""The suite itself: it works from a work tree that is closed to others, and counts skips."""

import os
import shutil
import subprocess
import tempfile

from lib import documents, figures, pages, registered, scratch
from lib.harness import ROOT, TESTS, Failure, NeedsRoot, WantOfRoot, check

from .command import canvas_only

# A /tmp in memory, in which no program can be started.
CLOSED_TMP = 'mount -t tmpfs -o noexec,size=16m canvas-test /tmp && exec "$@"'


def copy_of_tests(path):
    """A copy of the tests in a work tree at `path`."""
    shutil.copytree(TESTS, os.path.join(path, "tests"), ignore=shutil.ignore_patterns("__pycache__"))
    return os.path.join(path, "tests", "run")


def environment(**more):
    """Environment of a shell from which the tests are started."""
    env = {k: v for k, v in os.environ.items() if k not in ("TMPDIR", "CI", "CARGO_TARGET_DIR")}
    return {**env, **more}


def closing_line_of(p):
    """pytest's counts at the end of the output of tests/run."""
    return (p.stdout.splitlines() or [""])[-1].partition(" in ")[0]


def closed_missing():
    if os.getuid() != 0:
        return WantOfRoot("a mount needs root")
    if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        return "no mount namespace can be made here"
    reason = scratch.what_is_wrong("/var/tmp")
    return f"/var/tmp: {reason}" if reason else None


@check("suite-closed", modes=("signal",), timeout_s=60, needs=closed_missing)
def closed(r):
    """From a home of mode 0700, with a /tmp that is mounted noexec, tests run as an ordinary user."""
    canvas_only(r)
    # Not in /tmp, where the session's directory may be.
    with tempfile.TemporaryDirectory(prefix="canvas-e2e-", dir="/var/tmp") as home:
        run = copy_of_tests(os.path.join(home, "checkout"))
        shutil.copy(r.session.canvas, os.path.join(home, "canvas"))
        os.chmod(home, 0o700)
        for flags in (["--plain", "--only", "suite-reachable"],
                      ["--canvas", os.path.join(home, "canvas"), "--only", "roomy/signal"]):
            p = subprocess.run(["unshare", "-m", "sh", "-c", CLOSED_TMP, "sh", run, *flags], cwd=home,
                               env=environment(), capture_output=True, text=True, timeout=120)
            r.same(closing_line_of(p), "1 passed", f"{flags}: {p.stdout}{p.stderr}")


@check("suite-reachable", modes=("signal",), as_user=True, timeout_s=20)
def reachable(r):
    """A test that gives an ordinary user a path in the work tree fails wherever the tree is."""
    if not r.user:
        raise NeedsRoot("only root runs tests as other users")
    try:
        r.start(["cat", os.path.join(ROOT, "Makefile")], canvas_on=False)
    except Failure as e:
        r.require("use source()" in str(e), f"what it says: {e}")
    else:
        raise Failure("it was started")
    r.same(r.call(["cat", r.source("py/pool.py")], canvas_on=False).err(), "", "a copy is read")


@check("suite-skips", modes=("signal",), timeout_s=30)
def skips(r):
    """Without root a test that needs it is skipped and counted, and fails where root is promised."""
    run = copy_of_tests(r.path("checkout"))
    user = []
    # This test must remove what a failed test leaves behind.
    os.mkdir(r.path("tmp"))
    os.chmod(r.path("tmp"), 0o1777)
    if os.getuid() == 0:
        user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]
        subprocess.run(["chmod", "-R", "a+rX", r.path("checkout")], check=True)
    for ci, line, code in (("", "1 skipped", 0), ("true", "1 failed", 1)):
        env = environment(CI=ci, PYTHONDONTWRITEBYTECODE="1", TMPDIR=r.path("tmp"))
        p = subprocess.run([*user, run, "--canvas", "/bin/true", "--only", "spawn/thread"], cwd="/", env=env,
                           capture_output=True, text=True, timeout=60)
        r.same((closing_line_of(p), p.returncode), (line, code), f"CI={ci}: {p.stdout}{p.stderr}")


# Output of the targets of a Makefile, and notes of cargo's tests.
SAID = {
    "style": "lint: 1 skipped: cargo-deny is not installed (cargo install cargo-deny)",
    "unit": """test a::b ... ok
test a::left_out ... ignored
test a::part ... ignored, not a test: a part of the other tests
test result: ok. 5 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.03s
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.03s""",
    "programs": """ok   redis/signal/25                     12.3 s  out 5
skip rdma-run/signal                      0.0 s  no qemu
========= 2 passed, 1 skipped, 3 warnings in 61.20s (0:01:01) =========""",
    "fresh": """ok   fresh-deb                             12.3 s
1 passed, 0 failed, 0 skipped""",
    "broken": """test a::wrong ... FAILED
failed: redis/signal: 5 answers are wrong
test result: FAILED. 3 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.0s
2 failed, 4 passed, 1 error in 3.02s""",
    "unbuilt": "error: could not compile",
}
NOTED = "crate\\ta::c\\tneeds root\\ncrate\\ta::c\\tneeds root as well\\n"
MAKE = f"""#!/bin/sh
cat "$0.$2"
[ "$2" != unit ] || printf '{NOTED}' >> "$CANVAS_TEST_SKIPS"
[ "$2" != broken ] && [ "$2" != unbuilt ]
"""


@check("suite-closing-line", modes=("signal",), timeout_s=20)
def closing_line(r):
    """`make test` ends with a line that counts every skip, of cargo's tests, of tests/run and of the style."""
    make = r.write("make", MAKE)
    os.chmod(make, 0o755)
    for name, text in SAID.items():
        r.write(f"make.{name}", text + "\n")
    for targets, line, code in (
        (["style", "unit", "programs", "fresh"], "9 passed, 0 failed, 4 skipped", 0),
        # No counts remain from the previous run.
        (["programs"], "2 passed, 0 failed, 1 skipped", 0),
        # Steps after a failed one run as well.
        (["unit", "broken", "programs"], "15 passed, 4 failed, 3 skipped", 1),
        (["unbuilt", "programs"], "2 passed, 1 failed, 1 skipped", 1),
    ):
        p = subprocess.run([os.path.join(TESTS, "all"), *targets], capture_output=True, text=True, timeout=30,
                           env=environment(MAKE=make, CARGO_TARGET_DIR=r.path("target")))
        said = p.stdout.splitlines()
        r.same((said[-1:], p.returncode), ([line], code), f"{targets}: {p.stdout}{p.stderr}")
        with open(r.path("target/test-closing-line")) as f:
            r.same(f.read(), line + "\n", f"{targets}: the file")
        if "style" in targets:
            for skip in ("skipped lint: cargo-deny is not", "skipped a::left_out: ignored",
                         "skipped crate a::c: needs root", "skipped rdma-run/signal: no qemu"):
                r.require(any(x.startswith(skip) for x in said), f"no {skip!r} in:\n{p.stdout}")
        if "broken" in targets:
            closing = ["failed a::wrong", "failed redis/signal: 5 answers are wrong", "make broken failed (code 1)"]
            r.same(said[-4:-1], closing, "what failed is repeated")


# A table of promises with every kind of error, and the expected messages.
PROMISES = """
| # | promise | enforced by |
|---|---|---|
| A1 | right | `redis`, `exit-codes`, `canvas-core::pager::clock::hot_pages_come_last_but_come`, `::select_is_sound_and_makes_progress` |
| A2 | no such case | `redis`, `redis-for-ever` |
| A3 | no such test | `canvas-core::pager::clock::cold_pages_come_first` |
| A4 | a test of another crate | `canvas-core::swap::clock::hot_pages_come_last_but_come` |
| A4 | an id twice | `redis` |
| A5 | nothing | |
| A6 | nothing, and it says so | *not yet enforced* |
| A7 | a slow one | `rdma-rights` |
| A8 | beside no test | `canvas-core::pager::clock::hot_pages_come_last_but_come`, `::cold_pages_come_first` |
"""
WRONG = [
    "SPECIFICATION.md:5: there is no test `redis-for-ever`",
    "SPECIFICATION.md:6: there is no test `canvas-core::pager::clock::cold_pages_come_first`",
    "SPECIFICATION.md:7: there is no test `canvas-core::swap::clock::hot_pages_come_last_but_come`",
    "SPECIFICATION.md:8: A4 is also a promise of line 7",
    "SPECIFICATION.md:9: a promise without a test says *not yet enforced*",
    "SPECIFICATION.md:11: `rdma-rights` is a test of the slow suite: say (slow)",
    "SPECIFICATION.md:12: there is no test `::cold_pages_come_first`",
]

# Parts of a document in docs, each with the expected messages.
PAGES = [
    ("# A [b](CLI.md#canvas-run)\n[c](#a-b) [d](https://no.such/#x) [e](../README.md)\n```\n[f](no.md)\n```\n", []),
    ("[a](no.md)", [": there is no no.md"]),
    ("[a](no.md#b)", [": there is no no.md"]),
    ("[a](CLI.md#no-such-heading)", [": docs/CLI.md has no heading #no-such-heading"]),
    ("# A\n[a](#b)", [": docs/X.md has no heading #b"]),
    ("`crates/canvas-core/src/swap/pool.rs` `canvas-core/src/swap/pool.rs` `tests/e2e` `fuzz/artifacts`", []),
    ("`crates/canvas-core/src/swap/moon.rs` `canvas-core/src/swap/moon.rs` `tests/moon.py`",
     [": there is no crates/canvas-core/src/swap/moon.rs", ": there is no canvas-core/src/swap/moon.rs", ": there is no tests/moon.py"]),
    ("`canvas run --local 2G -- ls --moon` `canvas serve` a canvas moon `--far` `--to`", []),
    ("```\n$ canvas run --local 1G \\\n   --moon -- ls\n```\n", [":3: `canvas run` has no --moon"]),
    ("`canvas moon` and `canvas status --far 1`", [": there is no `canvas moon`", ": `canvas status` has no --far"]),
    ("`--moon 2G`", [": nothing has a flag --moon"]),
    ("of 20200101-000000-moon.jsonl, 20200101-000000", [": there is no lab/results/20200101-000000",
                                                      ": there is no lab/results/20200101-000000-moon.jsonl"]),
    (f"{'a ' * 51}\n| {'a ' * 51}|\n```\n{'a ' * 51}\n```\n[a]: {'b' * 100}\n", [":1: 102 columns, 100 at most"]),
]


@check("suite-documents", modes=("signal",), timeout_s=20)
def names(r):
    """The names in SPECIFICATION.md exist (`make lint` checks that), and an unknown name is found."""
    parts = (documents.Tests(), registered.load(), documents.targets(), documents.literals())
    r.same(documents.Specification(PROMISES, *parts).check(), WRONG, "what is said")
    got = documents.other("docs/X.md", "```\nmake moon\n```\n`make test`\nmake sense\n", documents.targets())
    r.same(got, ["docs/X.md: there is no `make moon`"], "what is said of targets")
    for text, said in PAGES:
        r.same(pages.wrong("docs/X.md", text, pages.Canvas()), [f"docs/X.md{s}" for s in said], text)
    # A figure is rounded as on the page; one without results is an error.
    differs = [figures.differs(said, ratio) for said, ratio in (("1.9", 1.904), ("1.90", 1.904), ("1.8", 1.904), ("1", None))]
    r.same(differs, [False, False, True, True], "which figures differ from their results")
    # In two parts, because this file is searched too.
    made_up = "moon_" + "beam"
    got = documents.names_of_code("X.md", f"`{made_up}` ## How to add `dispatch` `{made_up}`")
    r.same(got, [f"X.md: nothing is called {made_up}"], "what is said of the code's names")
