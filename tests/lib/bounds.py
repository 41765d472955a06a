"""Compares the numbers of docs/design/bounds.md with the constants that its rows name."""

import os
import re

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DOCUMENT = "docs/design/bounds.md"
# Constants of other files that a constant may refer to.
ELSEWHERE = {"PAGE_SIZE": 4096, "TAG_BYTES": 16}
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "us": 10**3, "ms": 10**6, "s": 10**9}
TIMES = {"_NS": 1, "_US": 10**3, "_MS": 10**6}
DURATIONS = {"secs": 10**9, "millis": 10**6, "micros": 10**3, "nanos": 1}


def numbers(cell):
    """The numbers in a cell; sizes in bytes, times in ns."""
    found = set()
    cell = re.sub(r"(\d+) to (\d+) (\w+)", r"\1 \3 to \2 \3", cell)
    for base, power, minus, plain, unit in re.findall(r"(\d+)\^(\d+)( - 1)?|(\d[\d,]*)(?: ([KMGT]iB|B|us|ms|s)\b)?", cell):
        found.add(int(base) ** int(power) - bool(minus) if base else int(plain.replace(",", "")) * UNITS.get(unit, 1))
    return found


def constant(name, source):
    """The value of a Rust constant in the text of its file, times in ns; None if it is not there."""
    found = re.search(rf"\bconst {name}: [^=;]+= ([^;]+);", source)
    if not found:
        return None
    text, factor = found[1], next((f for end, f in TIMES.items() if name.endswith(end)), 1)
    if duration := re.match(r"(?:std::time::)?Duration::from_(\w+)\((.*)\)$", text):
        text, factor = duration[2], DURATIONS[duration[1]]
    text = re.sub(r" as \w+|(?<=\d)_(?=[\da-f])|(?<=\d)(?:u|i)(?:8|16|32|64|size)\b", "", text)
    for other in set(re.findall(r"(?:\w+::)*[A-Z][A-Z_]*\w*", text)):
        last = other.split("::")[-1]
        if (value := ELSEWHERE.get(last) or constant(last, source)) is None:
            return None
        text = re.sub(rf"(?<![\w:]){re.escape(other)}\b", str(value), text)
    if not re.fullmatch(r"[\d\sxa-f<>()*/+-]+", text):
        return None
    return int(eval(text.replace("/", "//"), {"__builtins__": {}})) * factor


def wrong(root=ROOT):
    """Errors in the document's rows."""
    with open(os.path.join(root, DOCUMENT)) as f:
        lines = f.read().splitlines()
    said, checked = [], 0
    for at, line in enumerate(lines, 1):
        cells = [c.strip() for c in line.strip("|").split("|")]
        if not line.startswith("|") or len(cells) != 4 or cells[3] in ("constant", "---"):
            continue
        there = numbers(cells[1])
        for names, path in re.findall(r"((?:`[A-Z_]+`(?:, )?)+) in `([\w/.-]+)`", cells[3]):
            with open(os.path.join(root, "crates", path)) as f:
                source = f.read()
            for name in re.findall(r"`([A-Z_]+)`", names):
                value, checked = constant(name, source), checked + 1
                if value is None:
                    said.append(f"{DOCUMENT}:{at}: {path} has no number {name}")
                elif value not in there:
                    said.append(f"{DOCUMENT}:{at}: {name} is {value}, and not among {sorted(there)}")
        if not cells[3]:
            said.append(f"{DOCUMENT}:{at}: a row names its constant")
    return said if checked else [f"{DOCUMENT}: no row names a constant"]
