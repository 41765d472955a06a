"""The ways to run a program: all local, kernel swap on zram, canvas; equal budgets for the last two."""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time

from lib import canvas, procs

from . import peers

MIB = 1 << 20
ZRAM_BYTES = 16 << 30
# A limit that is never reached: the program is managed, and nothing is paged out.
ROOMY_BYTES = 16 << 30


class Broken(Exception):
    """A run that gave no figure; `word` is what the table shows (OOM, FAILED, TIMEOUT)."""

    def __init__(self, word, detail=""):
        super().__init__(f"{word} {detail}".strip())
        self.word = word


class Stage:
    """One program under one engine."""

    def __init__(self, lab, engine, budget_bytes, pool_bytes):
        self.lab, self.engine = lab, engine
        self.budget_bytes, self.pool_bytes = budget_bytes, pool_bytes
        self.dir = tempfile.mkdtemp(prefix="run-", dir=lab.dir)
        self.children, self.extra, self.group, self.zram = [], {}, None, None

    def start(self, argv, tag="p", env=None, stdin=None):
        argv = [str(a) for a in argv]
        stats = os.path.join(self.dir, f"{tag}.stats.json")
        managed = self.engine.startswith("canvas")
        if managed:
            argv = self.canvas_argv(stats) + argv
        if self.group:
            argv = self.group.wrap(argv)
        full = dict(os.environ, HOME=self.dir, TMPDIR=self.dir, LANG="C.UTF-8")
        full.update(env or {})
        child = procs.Child(argv, self.dir, full, tag, stdin)
        child.managed, child.stats_path = managed, stats
        child.sampler = None
        # Looking costs the program time: only where there is a limit that could be passed.
        if self.engine == "canvas" or self.lab.measuring_footprint:
            child.sampler = procs.Sampler(child.pid, managed,
                                          0.05 if self.lab.measuring_footprint else 1.0)
        self.children.append(child)
        return child

    def canvas_argv(self, stats):
        argv = [self.lab.canvas, "run", "--mode", self.lab.mode, "--require"]
        if self.engine != "canvas-free":
            argv += ["--stats", stats]
        if self.engine == "canvas":
            argv += ["--local", str(self.budget_bytes), "--pool", str(self.pool_bytes)]
        if self.engine == "canvas-roomy":
            argv += ["--local", str(ROOMY_BYTES)]
        return argv + ["--"]

    def wait(self, child, timeout_s=600, expect=(0,)):
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Broken("TIMEOUT", f"after {timeout_s} s") from None
        if self.group and self.group.oom_kills():
            raise Broken("OOM")
        if expect and code not in expect:
            raise Broken("FAILED", f"exit code {code}: {child.tail(6)}")
        return child

    def call(self, argv, timeout_s=600, **o):
        child = self.start(argv, **o)
        began = time.monotonic()
        self.wait(child, timeout_s)
        child.seconds = time.monotonic() - began
        return child

    def outside(self, argv, timeout_s=600):
        """A helper outside the limits (load generators); its output."""
        r = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=timeout_s)
        if self.group and self.group.oom_kills():
            raise Broken("OOM")
        if r.returncode:
            raise Broken("FAILED", f"{argv[0]}: {r.stderr.strip()[-400:]}{r.stdout.strip()[-200:]}")
        return r.stdout

    def finish(self):
        """Gathers what is known about memory and canvas's own figures."""
        for c in self.children:
            if c.sampler:
                c.sampler.stop()
            if not c.managed:
                continue
            if c.sampler:
                self.extra["local_sampled_peak_mib"] = round(c.sampler.local_peak_bytes / MIB, 1)
                self.extra["pool_sampled_peak_mib"] = round(c.sampler.pool_peak_bytes / MIB, 1)
            try:
                self.extra["stats"] = canvas.load_stats(c.stats_path)
            except (OSError, ValueError):
                continue
        if self.group:
            self.extra["cgroup_peak_mib"] = round(self.group.peak_bytes() / MIB, 1)
            self.extra["cgroup_limit_mib"] = round(self.group.limit_bytes / MIB, 1)
        if self.zram:
            stored, took = self.zram.most
            if took:
                self.extra["zram_ratio"] = round(stored / took, 2)

    def over_budget_bytes(self):
        """By how much the sampled local memory passed what is allowed, or 0."""
        if self.engine != "canvas":
            return 0
        allowed = self.budget_bytes + canvas.slack_bytes(self.budget_bytes)
        worst = max([c.sampler.local_peak_bytes for c in self.children if c.managed], default=0)
        return max(0, worst - allowed)

    def close(self):
        for c in self.children:
            if c.sampler:
                c.sampler._stop.set()
            c.kill_tree()
        shutil.rmtree(self.dir, ignore_errors=True)


class Lab:
    """Programs compiled, canvas found, a place for files."""

    def __init__(self, root, canvas_path, mode, quick):
        self.root, self.mode, self.quick = root, mode, quick
        self.dir = tempfile.mkdtemp(prefix="canvas-bench-")
        os.chmod(self.dir, 0o777)
        self.canvas = canvas_path
        self.measuring_footprint = False
        self.footprints = {}
        self.built = {}

    def program(self, name):
        if name not in self.built:
            target = os.path.join(self.dir, name)
            source = os.path.join(self.root, "bench", "c", name + ".c")
            subprocess.run(["gcc", "-O2", "-Wall", "-pthread", "-o", target, source, "-lm"], check=True)
            self.built[name] = target
        return self.built[name]

    def java_classes(self):
        if "java" not in self.built:
            target = os.path.join(self.dir, "classes")
            source = os.path.join(self.root, "tests", "java", "Work.java")
            subprocess.run(["javac", "-d", target, source], check=True)
            self.built["java"] = target
        return self.built["java"]

    @contextlib.contextmanager
    def stage(self, engine, budget_bytes=0, pool_bytes=1 << 30):
        """A place to run a program under `engine`; limits go up before and down after."""
        s = Stage(self, engine, budget_bytes, pool_bytes)
        with contextlib.ExitStack() as stack:
            if engine == "zram":
                s.zram = stack.enter_context(peers.Zram(ZRAM_BYTES))
                s.group = stack.enter_context(peers.Cgroup("zram", budget_bytes))
            elif engine == "canvas" and os.getuid() == 0:
                try:
                    s.group = stack.enter_context(
                        peers.Cgroup("canvas", budget_bytes + pool_bytes, swap=False))
                except peers.Unavailable:
                    s.group = None
            try:
                yield s
            finally:
                try:
                    s.finish()
                finally:
                    s.close()

    def footprint(self, key, scenario):
        """Anonymous memory of a plain run of `scenario(stage)` at its peak, measured once."""
        if key not in self.footprints:
            self.measuring_footprint = True
            try:
                with self.stage("local") as s:
                    scenario(s)
            finally:
                self.measuring_footprint = False
            self.footprints[key] = max(c.sampler.anon_peak_bytes for c in s.children)
        return self.footprints[key]

    def close(self):
        shutil.rmtree(self.dir, ignore_errors=True)
