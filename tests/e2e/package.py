"""What a stranger finds beside the code: the Debian package, the documents, the workflow."""

import os
import re
import subprocess

from lib import deb
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
    """The forge's workflow runs the README's two commands, by targets that the Makefile has."""
    with open(os.path.join(ROOT, ".github/workflows/ci.yml")) as f:
        text = f.read()
    with open(os.path.join(ROOT, "Makefile")) as f:
        targets = re.findall(r"^([a-z][a-z-]*):", f.read(), re.M)
    listed = re.search(r"target: \[(.*)\]", text)[1].split(", ")
    r.same(sorted(listed), ["demo", "test"], "what the workflow runs")
    r.require(set(listed) <= set(targets), f"the Makefile has {targets}")
    r.require("run: make ${{ matrix.target }}" in text, "the workflow runs no make")
