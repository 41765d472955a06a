"""Checks the speeds over zram in README.md, the FAQ and the pages of lab/experiments on pager and donors
against the laboratory's result files. Each is the median of canvas's samples over that of zram's, rounded as
on the page.
"""

import collections
import json
import os
import re
import statistics

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TWO, ONE, HALF = "20261125-093000-two", "20261125-093400-one", "20261125-093450-zipf"
PROGRAMS, SPARK, TIGHT = "20261125-095300-programs", "20261125-181000-spark", "20261124-035400-tight"
FAR = "20261127-212200-far"

# Rows of tables: page, begin of the row, and (results, workload, % local, limit in MiB if it decides) of its
# figures in order; further numbers in the row are not checked.
ROWS = [
    ("README.md", "sequential reads", [(TWO, "sequential", 25)]),
    ("README.md", "snappy; k-means; java", [(PROGRAMS, w, 25) for w in ("snappy", "sklearn-kmeans", "java")]),
    ("README.md", "random writes; random reads", [(TWO, "random-write", 25), (TWO, "random-read", 25)]),
    ("README.md", "memcached, 95 % GET", [(TWO, "memcached-get95", 25), (ONE, "memcached-get95", 25)]),
    ("README.md", "redis, 95 % GET", [(TWO, "redis-get95", 25), (ONE, "redis-get95", 25)]),
    ("README.md", "Spark", [(SPARK, "spark-lr", 25), (SPARK, "spark-lr", 50), (SPARK, "spark-pagerank", 25)]),
    ("README.md", "1,000 short processes", [(TIGHT, "fork-storm", 100, 32)]),
    ("README.md", "over donors", [(FAR, "redis-get95", 50), (FAR, "memcached-get95", 50)]),
    *(("lab/experiments/far.md", f"`{w}`", [(FAR, w, 50)]) for w in ("memcached-get95", "redis-get95", "redis-set-get")),
]
# Tables of pager.md: text in the header, and the results and the % local of each column.
TABLES = [
    ("| program | two processors |", {1: (TWO, 25), -1: (ONE, 25)}),
    ("| program | 25 % local |", {1: (PROGRAMS, 25), 2: (PROGRAMS, 50)}),
    ("| workload | limit, MiB |", {5: (TIGHT, 100)}),
]
# Sentences of the FAQ.
SAID = [
    (r"redis was between ([\d.]+) and ([\d.]+) times", [(ONE, "redis-get95", 25), (TWO, "redis-get95", 25)]),
    (r"memcached between ([\d.]+) and ([\d.]+) times", [(ONE, "memcached-get95", 25), (TWO, "memcached-get95", 25)]),
    (r"read in order \(([\d.]+) times", [(TWO, "sequential", 25)]),
    (r"for snappy \(([\d.]+) times", [(PROGRAMS, "snappy", 25)]),
    (r"random reads \(([\d.]+) times", [(TWO, "random-read", 25)]),
]


def variant_of(sample):
    """The sample's variant; far memory only with two copies on living donors."""
    variant = sample["variant"]
    if isinstance(variant, dict) and (far := variant.get("canvas_far")):
        return "canvas" if far["copies"] == "2" and not far["donor_dies"] else "another"
    return "canvas" if "canvas" in variant else variant


class Results:
    """Speeds of canvas over zram, by workload and limit."""

    def __init__(self):
        self.files = {}

    def _file(self, name):
        if name not in self.files:
            found = collections.defaultdict(lambda: collections.defaultdict(list))
            with open(os.path.join(ROOT, "lab", "results", name + ".jsonl")) as f:
                for line in f:
                    sample = json.loads(line)
                    if sample["kind"] == "sample" and sample["outcome"] == "ok":
                        key = sample["workload"], sample["local_percent"], (sample["limit_bytes"] or 0) >> 20
                        variant = variant_of(sample)
                        found[key][variant].append((sample["ops_per_s"], sample["seconds"]))
            self.files[name] = found
        return self.files[name]

    def ratio(self, name, workload, percent, limit=None):
        for key, variants in self._file(name).items():
            if key[:2] == (workload, percent) and limit in (None, key[2]) and {"canvas", "zram"} <= set(variants):
                ours, zram = variants["canvas"], variants["zram"]
                if all(rate for rate, _ in ours + zram):
                    return statistics.median(r for r, _ in ours) / statistics.median(r for r, _ in zram)
                return statistics.median(s for _, s in zram) / statistics.median(s for _, s in ours)
        return None


def differs(said, ratio):
    """Whether the printed number `said` differs from `ratio`, rounded alike."""
    decimals = len(said.partition(".")[2])
    return ratio is None or abs(float(said) - ratio) > 0.5001 * 10 ** -decimals


def cells(line):
    return [c.strip() for c in line.strip().strip("|").split("|")]


def rows(text, header):
    """The rows of the table whose header begins with `header`."""
    after = text.partition(header)[2].splitlines()[2:]
    for line in after:
        if not line.startswith("|"):
            return
        yield cells(line)


def claims(read):
    """(page, text, number, key) of each figure to check; the number is None if the page does not have it."""
    for page, begin, keys in ROWS:
        row = next((cells(line) for line in read(page).splitlines() if line.startswith(f"| {begin}")), [begin, ""])
        numbers = re.findall(r"\d+\.\d+", row[1])
        for key, number in zip(keys, numbers + [None] * len(keys)):
            yield page, row[0], number, key
    page = "lab/experiments/pager.md"
    for header, columns in TABLES:
        for row in rows(read(page), header):
            workload = re.match(r"`([\w-]+)`", row[0])
            for column, (results, percent) in columns.items():
                if workload and re.fullmatch(r"\d+\.\d+", row[column]):
                    name, limit = workload[1], int(row[1]) if results == TIGHT else None
                    results = SPARK if name.startswith("spark") else results
                    if row[0].endswith("half local"):
                        results, percent = HALF, 50
                    yield page, row[0], row[column], (results, name, percent, limit)
    page = "docs/guide/faq.md"
    for pattern, keys in SAID:
        found = re.search(pattern.replace(" ", r"\s+"), read(page))
        for key, number in zip(keys, found.groups() if found else [None] * len(keys)):
            yield page, pattern, number, key


def wrong():
    texts, results, said = {}, Results(), []

    def read(page):
        if page not in texts:
            with open(os.path.join(ROOT, page)) as f:
                texts[page] = f.read()
        return texts[page]

    checked = list(claims(read))
    for page, what, number, key in checked:
        ratio = results.ratio(*key)
        if number is None:
            said.append(f"{page}: {what}: the figure of lab/results/{key[0]}.jsonl is gone (tests/lib/figures.py)")
        elif differs(number, ratio):
            said.append(f"{page}: {what}: {number}, but lab/results/{key[0]}.jsonl has {ratio and round(ratio, 3)}")
    assert len(checked) > 50, f"only {len(checked)} figures were found"
    return said
