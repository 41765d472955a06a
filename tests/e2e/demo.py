"""`make demo`: the output of its scenes, and what they leave behind; in the short form, and in part."""

import json
import os
import subprocess

from lib.harness import TESTS, check

from .command import canvas_only
from .servers import missing


def demo(r, *flags, timeout_s):
    out = r.path("out")
    argv = [*r._user_prefix(), "python3", os.path.join(TESTS, "demo"), "--canvas", r.session.canvas, "--out", out, *flags]
    p = subprocess.run(argv, cwd=r.dir, env=r._environment({}), capture_output=True, text=True, timeout=timeout_s)
    r.require(p.returncode == 0, f"code {p.returncode}:\n{p.stdout[-2000:]}{p.stderr[-2000:]}")
    return p.stdout, out


@check("demo-donor", modes=("signal",), timeout_s=60, needs=missing("redis-server"))
def donor(r):
    """The scene in which a donor is killed: every byte is right, and no process is left."""
    canvas_only(r)
    said, _ = demo(r, "--scale", "0.15", "--scenes", "2", timeout_s=100)
    r.require("every byte right" in said and "killed" in said, said)
    r.note(said.splitlines()[-1])


@check("demo", modes=("signal",), slow_only=True, timeout_s=300, needs=missing("redis-server", "redis-benchmark"))
def all_scenes(r):
    """All three scenes, short: each is shown or gives a reason, and there is a report with plots."""
    canvas_only(r)
    said, out = demo(r, "--scale", "0.2", timeout_s=280)
    summary = said.split("== What was measured")[1]
    sentences = [x for x in summary.splitlines() if x.startswith("* ")]
    r.same(len(sentences), 3, f"sentences of {summary}")
    r.require("With a quarter of its memory" in sentences[0] and "every byte right" in sentences[1], summary)
    r.require("weights 1 and 4" in sentences[2] or "Left out" in sentences[2], summary)
    page = os.path.join(out, "report.html")
    r.require(page in summary, f"no path of a report in {summary}")
    with open(page) as f:
        r.require(f.read().count("<svg") >= 3, "the report has no plots")
    with open(os.path.join(out, "results.jsonl")) as f:
        kinds = [json.loads(line) for line in f]
    names = {s["workload"] for s in kinds if s["kind"] == "sample"}
    r.require({"redis-set-get", "redis-checked"} <= names, f"what was measured: {names}")
    for sentence in sentences:
        r.note(sentence)
