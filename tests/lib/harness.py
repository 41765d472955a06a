"""Core of the end-to-end tests: the registry, and the tools of a test. pytest runs the tests
(tests/conftest.py), several at a time.

A *program* test is a scenario that runs twice: plain, which gives the right answer and the footprint, and
under canvas at a share of that footprint; both answers must be equal. A *check* judges its results itself.
"""

import contextlib
import fcntl
import functools
import os
import pwd
import shutil
import signal
import subprocess

from . import canvas, procs

MIB = canvas.MIB
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TESTS = os.path.join(ROOT, "tests")
# Smaller limits test the C library rather than canvas.
LIMIT_FLOOR_BYTES = 12 * MIB
POOL_FLOOR_BYTES = 2 * MIB
# Times in tests are those of an idle machine; this factor makes timeouts, which end only tests that hang.
PATIENCE = 3
# `normal` of a check of something independent of the modes; the slow suite also runs it in thread mode.
ONCE = (("signal", None),)


class Failure(Exception):
    """The test found something wrong."""


class Skip(Exception):
    """The test cannot run here; has the reason."""


class NeedsRoot(Skip):
    """The test needs root; it fails where root is promised, as in continuous integration."""


class Cases:
    """Counts of a test with cases of its own; the closing line counts each."""

    def __init__(self):
        self.passed = self.failed = 0
        # Name and reason.
        self.skipped = []


class WantOfRoot(str):
    """Answer of a test's `needs` when the reason is missing root."""


@functools.cache
def example(name):
    """A test program that is an example of some crate, built once. Selects the same packages as `make
    test-unit`, which has built it then: another selection would rebuild dependencies."""
    argv = ["cargo", "build", "--quiet", "--locked", "--workspace", "--exclude", "canvas-preload", "--example", name]
    p = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    if p.returncode:
        raise Failure(f"{' '.join(argv)}:\n{p.stderr[-2000:]}")
    target = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
    return os.path.join(target, "debug", "examples", name)


class Test:
    """A registered test, before it is multiplied by modes and shares."""

    def __init__(self, name, fn, **o):
        self.name, self.fn = name, fn
        self.program = o.pop("program")
        self.modes = o.pop("modes", ("signal", "thread"))
        self.shares = o.pop("shares", (25, 50))
        self.normal = o.pop("normal", None)
        self.slow_only = o.pop("slow_only", False)
        self.as_user = o.pop("as_user", False)
        self.timeout_s = o.pop("timeout_s", 120)
        self.paged = o.pop("paged", True)
        self.needs = o.pop("needs", None)
        self.pool = o.pop("pool", "4G")
        self.env = o.pop("env", {})
        # Changes something global on the host (swap, zram, names of control groups): never two of these at a
        # time.
        self.host = o.pop("host", False)
        # Judges something that the load of other tests would change: runs when no other test is running.
        self.alone = o.pop("alone", False)
        # Pool as a percentage of the plain footprint, with far memory below it, which the run must use.
        self.deep_percent = o.pop("deep_percent", None)
        # The test whose plain run gives the answer.
        self.reference = o.pop("reference", name)
        # The program's known footprint, where sampling a short plain run would be too coarse.
        self.footprint_mib = o.pop("footprint_mib", None)
        if o:
            raise TypeError(f"{name}: unknown options {sorted(o)}")

    def instances(self):
        """(mode, share) pairs; share is a percentage of the plain footprint, "N%" for
        canvas's own percentage, or None when the check sets its own limit."""
        for mode in self.modes:
            for share in self.shares if self.program else (None,):
                yield mode, share

    def in_suite(self, suite, mode, share):
        if suite == "slow":
            return True
        if self.slow_only:
            return False
        return self.normal is None or (mode, share) in self.normal


REGISTRY = []


def program(name, **o):
    """Registers a scenario `fn(run) -> answer` that runs plain and managed."""

    def wrap(fn):
        REGISTRY.append(Test(name, fn, program=True, **o))
        return fn

    return wrap


def check(name, **o):
    """Registers a free-form test `fn(run)`."""

    def wrap(fn):
        REGISTRY.append(Test(name, fn, program=False, **o))
        return fn

    return wrap


def deep(name, percent=12, slow_only=False, **o):
    """Registers the program test `name` again, as `deep-NAME`: with a pool of `percent` of the footprint and
    far memory below it. Options replace those of the original."""
    base = next(t for t in REGISTRY if t.name == name)
    kept = {k: getattr(base, k) for k in
            ("modes", "shares", "normal", "slow_only", "as_user", "timeout_s", "paged", "needs", "env",
             "footprint_mib")}
    REGISTRY.append(Test(f"deep-{name}", base.fn, program=True, deep_percent=percent, reference=name,
                         **{**kept, "slow_only": slow_only, **o}))


class Run:
    """Environment of a scenario: a directory, a way to start processes, checks."""

    def __init__(self, session, test, mode, share, managed, limit_bytes, dir_path):
        self.session, self.test = session, test
        self.mode, self.share, self.managed = mode, share, managed
        self.limit_bytes = limit_bytes
        self.pool_bytes = None
        self.dir = dir_path
        self.slow = session.suite == "slow"
        self.user = session.user if (test.as_user and os.getuid() == 0 and mode != "thread") else None
        self.children = []
        self.notes = []
        self.anon_peak_bytes = 0
        self.stats = []
        os.chmod(self.dir, 0o755)
        if self.user:
            os.chown(self.dir, self.user.pw_uid, self.user.pw_gid)

    # -- starting things ---------------------------------------------------------------------
    def size(self, normal, slow):
        return slow if self.slow else normal

    def binary(self, name):
        """A C test program, compiled once per session."""
        return self.session.compile(name)

    def source(self, name):
        """A copy of a file of tests/ that the test's user can read: the work tree may be in a closed home
        directory."""
        return self.session.source(name)

    def _user_prefix(self):
        u = self.user
        if not u:
            return []
        who = ["--reuid", str(u.pw_uid), "--regid", str(u.pw_gid), "--clear-groups"]
        return ["setpriv", *who, "--"]

    def _environment(self, extra):
        env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": self.dir,
            "TMPDIR": self.dir,
            "LANG": "C.UTF-8",
            "OMP_NUM_THREADS": "2",
        }
        for key in os.environ:
            # Test-only switches of canvas (forced paths) reach the program under test.
            if key.startswith("CANVAS_"):
                env[key] = os.environ[key]
        env.update(self.test.env)
        env.update(extra or {})
        return env

    def canvas_prefix(self, stats_path, local=None, pool=None, extra=()):
        local = local if local is not None else self.limit_bytes
        argv = [self.session.canvas, "run"]
        if local:
            argv += ["--local", str(local)]
        argv += ["--pool", str(pool or self.pool_bytes or self.test.pool), "--mode", self.mode]
        if self.test.deep_percent:
            argv += ["--far", "2G", "--to", f"disk:{self.dir}"]
        argv += ["--stats", stats_path, *extra]
        if "--allow-unmanaged" in argv:
            argv.remove("--allow-unmanaged")
        else:
            argv.append("--require")
        return argv + ["--"]

    def start(self, argv, tag=None, canvas_on=True, env=None, stdin=None, local=None, pool=None,
              extra=(), cwd=None, prefix=()):
        """Starts `argv`, under canvas if this run is managed and `canvas_on`; the words of `prefix` precede
        canvas itself, and end in an exec of it."""
        tag = tag or f"p{len(self.children)}"
        argv = [str(a) for a in argv]
        wrapped = self.managed and canvas_on
        stats_path = os.path.join(self.dir, f"{tag}.stats.json")
        if wrapped:
            argv = self.canvas_prefix(stats_path, local, pool, extra) + argv
        if self.user:
            self._reachable([*argv, *(env or {}).values()])
        child = procs.Child([*prefix, *self._user_prefix(), *argv], self.dir, self._environment(env), tag, stdin)
        child.wrapped = wrapped
        child.stats_path = stats_path
        child.limit_bytes = local if isinstance(local, int) else (self.limit_bytes or 0)
        child.share_percent = local if isinstance(local, str) else None
        if isinstance(self.limit_bytes, str) and local is None:
            child.limit_bytes, child.share_percent = 0, self.limit_bytes
        # A helper's memory is not needed, and sampling it would take processor time.
        child.sampler = procs.Sampler(child.pid, managed=wrapped, looks=wrapped or not self.managed)
        self.children.append(child)
        return child

    def _reachable(self, words):
        """Checks here that the user can reach a path, not only where the work tree is closed."""
        for word in words:
            if ROOT + os.sep in str(word):
                raise Failure(f"{word}: the work tree may lie where {self.user.pw_name} cannot read it: "
                              f"use source() or binary()")

    def wait(self, child, expect=0, timeout_s=None):
        """Waits for the end; `expect` is an exit code, a set of them, or None. A process ended by signal n
        has the code -n, or 128 + n under a shell."""
        try:
            code = child.wait(timeout_s and timeout_s * PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failure(f"{child.argv[-1]}: still running after {timeout_s * PATIENCE} s") from None
        child.sampler.stop()
        self.anon_peak_bytes = max(self.anon_peak_bytes, child.sampler.anon_peak_bytes)
        expect = {expect} if isinstance(expect, int) else expect
        if expect is not None and not expect & {code, 128 - code if code < 0 else code}:
            raise Failure(f"exit code {code}, expected {sorted(expect)}\n{child.tail()}")
        return code

    def call(self, argv, expect=0, timeout_s=None, **o):
        """Starts a process and waits; returns the finished child."""
        child = self.start(argv, **o)
        self.wait(child, expect, timeout_s)
        return child

    def stop(self, child, sig=signal.SIGTERM, expect=None, timeout_s=30):
        child.signal(sig)
        return self.wait(child, expect, timeout_s)

    # -- looking at things -------------------------------------------------------------------
    def path(self, name):
        return os.path.join(self.dir, name)

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        os.chmod(self.path(name), 0o644)
        return self.path(name)

    def note(self, text):
        self.notes.append(text)

    def require(self, condition, sentence):
        if not condition:
            raise Failure(sentence)

    def same(self, got, want, what):
        if got != want:
            raise Failure(f"{what}: got {str(got)[:400]!r}, expected {str(want)[:400]!r}")

    def load_stats(self, child):
        try:
            return canvas.load_stats(child.stats_path)
        except (OSError, ValueError) as e:
            raise Failure(f"no readable stats file: {e}\n{child.tail()}") from None

    def judge(self, paged=None):
        """Checks the stats of every managed child that has ended."""
        paged = self.test.paged if paged is None else paged
        wrong, total_out = [], 0
        for c in self.children:
            if not c.wrapped:
                continue
            stats = self.load_stats(c)
            self.stats.append(stats)
            total_out += canvas.find(stats, "pages_out", default=0)
            share = float(c.share_percent.rstrip("%")) if c.share_percent else None
            share = int(share) if share is not None else None
            wrong += canvas.check_stats(stats, c.limit_bytes, share, paged=False)
            limit = c.limit_bytes
            if share is not None:
                limit = (canvas.memory(stats, "footprint_bytes") or 0) * share // 100
                limit = max(limit, canvas.LOCAL_MIN_BYTES)
            # Copies of a family are measured a moment later (G14), so only lasting memory counts there.
            forked = canvas.find(stats, "forks", 0) > 0
            seen = c.sampler.local_lasting_peak_bytes if forked else c.sampler.local_peak_bytes
            if limit and seen > limit + canvas.slack_bytes(limit, stats):
                wrong.append(
                    f"sampled local memory {seen / MIB:.1f} MiB is over the limit "
                    f"{limit / MIB:.1f} MiB by more than {canvas.slack_bytes(limit, stats) / MIB:.1f} MiB"
                )
            if self.test.deep_percent:
                wrong += canvas.check_deep(stats)
            self.note(canvas.summary(stats))
            if limit and limit + canvas.slack_bytes(limit) < seen:
                self.note("OVER THE LIMIT after a fork (known gap G14)")
            if limit:
                self.note(f"sampled {seen / MIB:.0f} of {limit / MIB:.0f} MiB")
        if paged and self.stats and total_out == 0:
            wrong.append("pages_out = 0: the program never paged, the test shows nothing")
        if wrong:
            raise Failure("; ".join(wrong))

    def close(self):
        for c in self.children:
            c.sampler._stop.set()
        for c in self.children:
            c.kill_tree()
            c.sampler.stop()


class Session:
    """One worker of a run of the tests: `home` is the run's directory, `dir` the worker's below it."""

    def __init__(self, suite, home, name, canvas_path, plain_only=False, keep=False):
        self.suite = suite
        self.plain_only = plain_only
        self.keep = keep
        # The ordinary user may use the programs and copies made here.
        os.umask(0o022)
        self.dir = os.path.join(home, name)
        # Programs of tests/c, compiled once for all workers.
        self.programs = os.path.join(home, "c")
        for path in (self.dir, self.programs):
            os.makedirs(path, 0o755, exist_ok=True)
        self.user = self._ordinary_user()
        self.canvas = canvas_path
        self.references = {}
        # Cases reported by the running test.
        self.cases = None
        self.count = 0

    @staticmethod
    def _ordinary_user():
        try:
            return pwd.getpwnam("nobody")
        except KeyError:
            return None

    def compile(self, name, of="c"):
        """Compiles tests/c/NAME.c; `NAME-static` links statically, `NAME-library` makes a shared library.
        `of` is another directory of tests."""
        target = os.path.join(self.programs, name if of == "c" else f"{of}-{name}")
        with _locked(target + ".lock"):
            if not os.path.exists(target):
                self._compile(name, of, target)
        return target

    @staticmethod
    def _compile(name, of, target):
        stem, _, kind = name.partition("-")
        source = os.path.join(TESTS, of, stem + ".c")
        flags = {"": [], "static": ["-static"], "library": ["-shared", "-fPIC"]}[kind]
        # Short programs take longer to optimise than they would gain.
        flags += ["-O2", "-g"] if of == "c" else ["-O0"]
        argv = ["gcc", *flags, "-Wall", "-pthread", "-o", target + ".new", source]
        r = subprocess.run(argv, capture_output=True, text=True)
        if r.returncode:
            raise Failure(f"{' '.join(argv)}:\n{r.stderr}")
        os.rename(target + ".new", target)

    def source(self, name):
        copy = os.path.join(self.dir, name.replace("/", "-"))
        if not os.path.exists(copy):
            shutil.copyfile(os.path.join(TESTS, name), copy)
        return copy

    def fresh_dir(self, label):
        self.count += 1
        path = os.path.join(self.dir, f"{self.count:03d}-{label.replace('/', '-')}")
        os.mkdir(path)
        return path

    def reference(self, test):
        """Answer and footprint of the plain run, measured once."""
        if test.reference not in self.references:
            path = self.fresh_dir(test.name + "-plain")
            run = Run(self, test, None, None, False, None, path)
            try:
                answer = test.fn(run)
            except Failure as e:
                raise Failure(f"in the plain run: {e}") from None
            finally:
                run.close()
                self._tidy(path)
            footprint = run.anon_peak_bytes
            if test.footprint_mib:
                footprint = test.footprint_mib * MIB * (3 if run.slow else 1)
            self.references[test.reference] = (answer, footprint)
        return self.references[test.reference]

    def _tidy(self, path):
        if not self.keep:
            shutil.rmtree(path, ignore_errors=True)

    def run_one(self, test, mode, share):
        """Runs one instance; returns its notes."""
        if test.needs:
            reason = test.needs()
            if reason:
                raise NeedsRoot(reason) if isinstance(reason, WantOfRoot) else Skip(reason)
        if mode == "thread" and os.getuid() != 0 and not self.plain_only:
            raise NeedsRoot("thread mode needs root here")
        if test.as_user and os.getuid() == 0 and self.user is None:
            raise Skip("no user 'nobody' to run as")
        answer, limit = None, None
        if test.program:
            answer, footprint = self.reference(test)
            if self.plain_only:
                return [f"plain footprint {footprint / MIB:.0f} MiB"]
            if isinstance(share, str):
                limit = share
            else:
                limit = max(footprint * share // 100, LIMIT_FLOOR_BYTES)
        path = self.fresh_dir(f"{test.name}-{mode}-{share or 'own'}")
        run = Run(self, test, mode, share, not self.plain_only, limit, path)
        if test.deep_percent:
            run.pool_bytes = max(footprint * test.deep_percent // 100, POOL_FLOOR_BYTES)
        ok = False
        try:
            got = test.fn(run)
            if test.program:
                if got != answer:
                    raise Failure(f"answer {str(got)[:600]} differs from plain {str(answer)[:600]}")
                run.judge()
            ok = True
        finally:
            run.close()
            if ok:
                self._tidy(path)
        return run.notes


@contextlib.contextmanager
def _locked(path):
    """Holds the lock of a file in its block."""
    with open(path, "a") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def label(test, mode, share, plain=False):
    """Name of an instance of a test."""
    return f"{test.name}/plain" if plain else "/".join(str(x) for x in (test.name, mode, share) if x is not None)


def group(test):
    """Group of an instance; tests of one group never run at the same time: those with a common plain run,
    which is done once, and those that change the host."""
    if test.alone:
        return "alone"
    return "host" if test.host else test.reference


def selected(suite, only=None, mode=None, plain=False):
    """(test, mode, share) of the instances that a command line selects; each test has one plain run."""
    for test in REGISTRY:
        for m, share in test.instances():
            name = label(test, m, share)
            if mode and m != mode:
                continue
            if only and not any(name == o or name.startswith(o + "/") for o in only):
                continue
            if not only and not test.in_suite(suite, m, share):
                continue
            yield test, m, share
            if plain:
                break
