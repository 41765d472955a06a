"""`lab report`: the page in a browser, light and dark. Are the plots drawn, and does the page request nothing?"""

import json
import os
import subprocess
import sys

from lib import browser, lab, samples
from lib.harness import TESTS, Failure, check

from .command import canvas_only

# Every plot, its legend's colours as shown on the page, and the line or bar for each.
FIGURES = """
[...document.querySelectorAll('figure')].map(f => {
  const box = f.querySelector('svg').getBoundingClientRect();
  return {
    title: f.querySelector('figcaption').textContent,
    box: [box.x + scrollX, box.y + scrollY, box.width, box.height],
    colours: [...f.querySelectorAll('.legend i')].map(i => getComputedStyle(i).color),
    texts: [...f.querySelectorAll('svg text')].map(t => t.textContent.trim()).filter(t => t),
    wide: f.scrollWidth > f.clientWidth,
  };
})"""


def python():
    """An interpreter that can read images."""
    for exe in ("/usr/bin/python3", sys.executable):
        if subprocess.run([exe, "-c", "import numpy, PIL"], capture_output=True).returncode == 0:
            return exe
    return None


def needs():
    return browser.missing() or (None if python() else "no python3 with numpy and PIL (tests/packages.txt)")


def look(r, page, dark):
    """Checks each plot of the loaded page by its pixels; returns the plots."""
    name = "dark" if dark else "light"
    image = page.screenshot(r.path(f"{name}.png"))
    ground = page.value("getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(v) for v in ground[4:-1].split(","))
    r.require((brightness < 200) == dark, f"{name}: the page's ground is {ground}")
    figures = page.value(FIGURES)
    for f in figures:
        _, _, w, h = f["box"]
        r.require(w > 300 and h > 150, f"{name}: {f['title']} is {w} x {h}")
        r.require(not f["wide"], f"{name}: {f['title']} is wider than its frame")
        r.require(len(f["texts"]) >= 4, f"{name}: {f['title']} has only {f['texts']} on its axes")
    p = subprocess.run([python(), os.path.join(TESTS, "py", "pixels.py"), image], input=json.dumps(figures),
                       capture_output=True, text=True)
    r.same((p.returncode, p.stdout, p.stderr), (0, "", ""), f"{name}: pixels")
    return figures


@check("report", modes=("signal",), timeout_s=90, needs=needs)
def report(r):
    """A realistic file gives a page with every plot drawn, and without any request."""
    canvas_only(r)
    results, output = r.path("results.jsonl"), r.path("report.html")
    samples.write(results, samples.realistic(7))
    p = lab.call(r, "report", results, "-o", output)
    r.same((p.returncode, p.stdout, p.stderr), (0, "", ""), "lab report")
    page = browser.Browser(r.path("profile"))
    try:
        for dark in (False, True):
            page.open(output, 1280, dark)
            figures = look(r, page, dark)
        titles = " / ".join(f["title"] for f in figures)
        for want in ("redis-ycsb-a", "xgboost", "memcached-ycsb-b+snappy+xgboost+spark-lr", "snappy with memcached-ycsb-b, xgboost, spark-lr", "25 % local: in",
                     "random-write, 25 % local: swap entries allocated under the lock", "pages put out a second",
                     samples.HOSTILE):
            r.require(want in titles, f"no plot of {want} among {titles}")
        r.require(page.value("[...document.querySelectorAll('h3')].some(h => h.textContent == 'Slow accesses')"),
                  "no plot of slow accesses")
        r.require(len(figures) >= 19, f"{len(figures)} plots")
        r.require(page.value("document.title") == "canvas in the laboratory", "a name in the results ran as a script")
        r.same(page.value("document.scripts.length"), 0, "scripts on the page")
        # A phone: tables scroll in their frames, the page does not.
        page.open(output, 400, False)
        r.require(page.value("document.documentElement.scrollWidth <= innerWidth"), "too wide for 400 pixels")
        other = [u for u in page.requests if u != "file://" + output]
        r.require(not other, f"the page asked for {other}")
        r.require(len(page.requests) == 3, f"{len(page.requests)} loads seen")
        r.require(not page.console, f"console: {page.console}")
    finally:
        page.close()
    r.note(f"{len(figures)} plots, light and dark")


@check("report-errors", modes=("signal",), timeout_s=30)
def report_errors(r):
    """Bad input gives one sentence, exit code 2, and no page."""
    canvas_only(r)
    good = r.path("good.jsonl")
    samples.write(good, samples.realistic(1)[:20])
    for text, want in (("", "is empty"), ("{\n", "line 1 is damaged"), ("{\"kind\": \"cat\"}\n", "line 1 is not of")):
        bad = r.write("bad.jsonl", text)
        p = lab.call(r, "report", good, bad, "-o", r.path("out.html"))
        r.same((p.returncode, p.stdout), (2, ""), f"code for {text!r}")
        r.require(want in p.stderr and len(p.stderr.splitlines()) == 1, f"{text!r}: {p.stderr!r}")
        if os.path.exists(r.path("out.html")):
            raise Failure("a page was written from a damaged file")
    p = lab.call(r, "report", good, "-o", good)
    r.require(p.returncode == 2 and "overwritten" in p.stderr, f"results as output: {p.stderr!r}")
