"""Deliverables besides the code: the Debian package, the documents, the workflow."""

import os
import re
import subprocess

from lib import deb, documents
from lib.harness import ROOT, Failure, Skip, check


def no_dpkg():
    for tool in ("dpkg-deb", "objdump", "cargo"):
        if subprocess.run(["sh", "-c", f"command -v {tool}"], capture_output=True).returncode:
            return f"{tool} is missing"
    return None


@check("deb", modes=("signal",), slow_only=True, timeout_s=180, needs=no_dpkg)
def debian_package(r):
    """The package has all that it promises, and the same input gives the same bytes."""
    if not r.managed:
        raise Skip("says nothing without canvas")
    packages = []
    for name in ("one", "two"):
        p = subprocess.run([os.path.join(ROOT, "etc/deb/build"), r.session.canvas, r.path(name)], cwd=ROOT,
                           capture_output=True, text=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
        r.same((p.returncode, p.stderr), (0, ""), f"etc/deb/build ({p.stdout[-300:]})")
        packages.append(p.stdout.strip())
    with open(packages[0], "rb") as one, open(packages[1], "rb") as two:
        r.require(one.read() == two.read(), "two packages of the same binary differ")
    commands = subprocess.run([r.session.canvas, "--help"], capture_output=True, text=True, check=True).stdout
    commands = re.findall(r"^  ([a-z]+)  ", commands.split("Commands:")[1].split("\n\n")[0], re.M)
    r.require("run" in commands and "doctor" in commands, f"canvas --help lists {commands}")
    try:
        deb.judge(packages[0], [c for c in commands if c != "help"])
    except deb.Wrong as e:
        raise Failure(str(e)) from None
    r.require(not [f for f in os.listdir(r.path("one")) if not f.endswith(".deb")], "the build left something")


@check("workflow", modes=("signal",), timeout_s=60)
def workflow(r):
    """The forge's workflows run `.ci/run`, the Rust version that Cargo.toml requires, every fuzz target, and
    existing Makefile targets."""
    texts = {}
    for name in ("ci.yml", "nightly.yml"):
        with open(os.path.join(ROOT, ".github/workflows", name)) as f:
            texts[name] = f.read()
    with open(os.path.join(ROOT, "Cargo.toml")) as f:
        minimum = re.search(r'^rust-version = "(.*)"', f.read(), re.M)[1]
    r.require("run: .ci/run" in texts["ci.yml"], "ci.yml does not run .ci/run")
    r.same(re.findall(r"library/rust:(\d\.\d+)-", texts["ci.yml"]), [minimum], "the minimum Rust version that is built")
    called = re.findall(r"run: make ([a-z-]+)", "".join(texts.values()))
    targets = documents.targets()
    r.require(called and set(called) <= targets, f"the workflows call {called}, the Makefile has {sorted(targets)}")
    fuzzed = re.search(r"target: \[(.*)\]", texts["nightly.yml"])[1].split(", ")
    present = sorted(n[:-3] for n in os.listdir(os.path.join(ROOT, "fuzz/fuzz_targets")) if n.endswith(".rs"))
    r.same(fuzzed, present, "fuzz targets of the nightly run")
