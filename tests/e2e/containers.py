"""Containers: calls that seccomp profiles refuse, the image's recipe, the manifests."""

import importlib.util
import json
import os
import re
import subprocess
import sys

from lib import canvas
from lib.harness import MIB, ROOT, TESTS, Failure, Skip, check

HELPER = os.path.join(TESTS, "py", "profile.py")
RUNTIMES = {"docker": "Docker's default profile", "podman": "Podman's default profile",
            "kubernetes": "Kubernetes' RuntimeDefault"}
SIGNS = {"docker": {"container": "docker"}, "podman": {"container": "podman"},
         "kubernetes": {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}}

# Writes 48 MiB that do not repeat, and reads them back.
PAGES = ("import hashlib; b = [hashlib.shake_128(b'%d' % i).digest(65536) for i in range(768)]; "
         "print(all(x == hashlib.shake_128(b'%d' % i).digest(65536) for i, x in enumerate(b)))")


def helper():
    spec = importlib.util.spec_from_file_location("seccomp_profile", HELPER)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def no_library():
    return None if helper().library() else "libseccomp.so.2 is missing (apt-get install libseccomp2)"


def shared(r, path):
    """A copy that an ordinary user can read wherever the work tree is."""
    copy = r.path(os.path.relpath(path, ROOT).replace("/", "-"))
    with open(path) as f, open(copy, "w") as out:
        out.write(f.read())
    os.chmod(copy, 0o644)
    return copy


def under(r, filter_args, *argv, env=None, timeout_s=60):
    """Runs canvas under a filter: the profile's file, or other arguments of `profile.py`."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    # The copies, and the files of the run, belong to an ordinary user.
    helper_copy = shared(r, HELPER)
    return subprocess.run(
        [*r._user_prefix(), "python3", helper_copy, *filter_args, r.session.canvas, *[str(a) for a in argv]],
        cwd=r.dir, env=r._environment(env or {}), capture_output=True, text=True, timeout=timeout_s)


def one_sentence(r, p, *words):
    r.same(p.returncode, 125, f"exit code ({p.stderr[:300]})")
    r.same(p.stdout, "", "stdout")
    r.same(len(p.stderr.splitlines()), 1, f"lines on stderr ({p.stderr!r})")
    for word in ("canvas: ", *words):
        r.require(word in p.stderr, f"the sentence does not say {word!r}: {p.stderr}")


@check("containers", as_user=True, modes=("signal",), timeout_s=120, needs=no_library)
def containers(r):
    """Under the runtimes' default profiles doctor and run report which calls are refused, and how to allow
    them; with canvas's own profiles a program is managed."""
    for name, words in RUNTIMES.items():
        default = shared(r, os.path.join(TESTS, "data", "seccomp", name + ".json"))
        ours = shared(r, os.path.join(ROOT, "etc", "seccomp", name + ".json"))
        signs = SIGNS[name]

        p = under(r, [default], "doctor", "--json", env=signs)
        doctor = json.loads(p.stdout)
        r.same((p.returncode, doctor["ok"]), (1, False), f"doctor under {name}'s profile")
        r.require(words in doctor["why"], f"{name}: {doctor['why']}")
        r.same(doctor["container"]["runtime"].lower(), name, "the container that doctor sees")
        refused = {c["call"]: c["error"] for c in doctor["refused"]}
        expected = {"userfaultfd": "EPERM", "process_madvise": "EPERM"}
        if name == "podman":
            expected["futex_waitv"] = "EPERM"
        r.same(refused, expected, f"what {name}'s profile refuses")
        text = under(r, [default], "doctor", env=signs).stdout
        r.require(any("advice" in line and "canvas.json" in line for line in text.splitlines()),
                  f"no advice that allows it:\n{text}")

        one_sentence(r, under(r, [default], "run", "--local", "16M", "--", "true", env=signs), words)
        one_sentence(r, under(r, [default], "run", "--mode", "signal", "--local", "16M", "--", "true"),
                     "seccomp filter", "canvas doctor")

        p = under(r, [ours], "doctor", "--json", env=signs)
        doctor = json.loads(p.stdout)
        r.same((p.returncode, doctor["mode"], doctor["refused"]), (0, "signal", []), f"doctor under ours for {name}")
        stats = r.path(f"{name}.json")
        p = under(r, [ours], "run", "--local", "16M", "--stats", stats, "--", "python3", "-c", PAGES, env=signs)
        r.same((p.returncode, p.stdout, p.stderr), (0, "True\n", ""), f"a program under ours for {name}")
        r.require(canvas.find(canvas.load_stats(stats), "pages_out") > 0, f"{name}: nothing was paged out")


@check("container-kill", as_user=True, modes=("signal",), timeout_s=60, needs=no_library)
def container_kill(r):
    """A filter that kills on userfaultfd kills neither doctor nor run."""
    kill = ["--kill", "userfaultfd"]
    p = under(r, kill, "doctor", "--json")
    doctor = json.loads(p.stdout or "{}")
    r.same((p.returncode, doctor.get("mode")), (1, None), f"doctor ({p.stderr[:200]})")
    r.same({c["call"]: c["error"] for c in doctor["refused"]}, {"userfaultfd": "SIGSYS"}, "refused")
    one_sentence(r, under(r, kill, "run", "--local", "16M", "--", "true"), "refuses userfaultfd")


def recipe():
    """The instructions of the Containerfile: (word, rest), lines joined."""
    with open(os.path.join(ROOT, "etc/container/Containerfile")) as f:
        text = re.sub(r"\\\n", " ", f.read())
    return [line.split(None, 1) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def ignored(path):
    with open(os.path.join(ROOT, ".dockerignore")) as f:
        patterns = f.read().split()
    return any(path == p or path.startswith(p + "/") for p in patterns)


@check("container-recipe", modes=("signal",), timeout_s=60)
def container_recipe(r):
    """The Containerfile agrees with the tree: stages, Makefile targets, copied files, versions."""
    steps = recipe()
    bases = [rest.split() for word, rest in steps if word == "FROM"]
    r.same(len(bases), 2, "stages")
    built, final = bases[0][0], bases[1][0]
    r.require(built.startswith("docker.io/library/rust:1-") and bases[0][1:] == ["AS", "build"], f"builds on {built}")
    # The binary needs the C library that it was built with, or a later one.
    r.same(built.rsplit("-", 1)[1], final.split(":")[1].split("-")[0], "release of Debian in both stages")
    with open(os.path.join(ROOT, "Makefile")) as f:
        targets = re.findall(r"^([a-z][a-z-]*):", f.read(), re.M)
    runs = [rest for word, rest in steps if word == "RUN"]
    r.require(runs and all(run.startswith("make ") for run in runs), f"RUN {runs}")
    for run in runs:
        words = run.split()[1:]
        r.require(set(w for w in words if "=" not in w) <= set(targets), f"{run}: the Makefile has {targets}")
        p = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True)
        r.same(p.returncode, 0, f"make -n {words} ({p.stderr[-300:]})")
        r.require("/out/usr/bin/canvas" in p.stdout, f"{run} does not install what the next stage copies")
    for rest in (rest for word, rest in steps if word == "COPY" and "--from=build /src/" in rest):
        source = rest.split()[1].removeprefix("/src/")
        r.require(os.path.exists(os.path.join(ROOT, source)) and not ignored(source), f"COPY {rest}: no {source}")
    # The build context contains everything that the build reads, and nothing else.
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split()
    needed = [f for f in tracked if f.split("/")[0] in ("crates", "sim", "etc", "docs", "Cargo.toml", "Cargo.lock", "Makefile")]
    r.same([f for f in needed if ignored(f)], [], "files that the build reads and .dockerignore leaves out")
    r.require(ignored("target") and ignored(".git"), "the context has target or .git")
    # Its statements about seccomp agree with the files.
    with open(os.path.join(ROOT, "etc/container/Containerfile")) as f:
        said = f.read()
    profiles = set()
    for name in RUNTIMES:
        allow = subprocess.run([sys.executable, "etc/seccomp/allow.py", f"tests/data/seccomp/{name}.json"], cwd=ROOT,
                               capture_output=True, text=True, check=True).stdout
        with open(os.path.join(ROOT, "etc/seccomp", name + ".json")) as f:
            r.same(f.read(), allow, f"etc/seccomp/{name}.json, made again from the default profile")
        rules = json.loads(allow)["syscalls"]
        r.same(rules[-1]["action"], "SCMP_ACT_ALLOW", "the last rule")
        profiles.add(tuple(rules[-1]["names"]))
        if r.managed:
            p = subprocess.run([r.session.canvas, "doctor", "--seccomp", name], capture_output=True, text=True)
            r.same((p.returncode, p.stdout), (0, allow), f"canvas doctor --seccomp {name}")
    r.same(len(profiles), 1, "sets of calls that are allowed")
    for call in profiles.pop():
        r.require(call in said, f"the Containerfile does not say that {call} is allowed")
    p = subprocess.run([sys.executable, os.path.join(ROOT, "etc/seccomp/allow.py"), "/dev/null"], capture_output=True,
                       text=True)
    r.require(p.returncode == 1 and len(p.stderr.splitlines()) == 1, f"allow.py of nothing: {p}")
