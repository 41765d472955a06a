#!/usr/bin/env python3
"""Checks the documents against the tree: each test in SPECIFICATION.md; each target of the Makefile, link,
path, command and flag in any document (pages.py); each number in the list of bounds (bounds.py); each speed
over zram in README.md, the FAQ and the pager's page (figures.py); length, title and the glossary's words of
each page (prose.py). Also checks that no Rust test skips without being counted. Part of `make lint`; takes a
few seconds and needs no build.
"""

import fnmatch
import glob
import os
import re
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(TESTS)
sys.path.insert(0, TESTS)
from lib import bounds, figures, pages, prose, registered  # noqa: E402

# Integration tests of the command; documents name only their directory.
COMMAND = {"cli": "canvas-cli", "ops": "canvas-cli", "far": "canvas-cli", "host": "canvas-cli", "agent": "canvas-cli"}
# Other words in backquotes among the tests of a promise.
WORDS = {"verify_failures", "anomalies", "as_user", "nobody", "shuttle", "fuzz", "fuzz_targets", "Clean", "leap",
         "readahead", "streams", "serve", "run", "rdma_check"}
NOT_NAMES = re.compile(r"--|CANVAS_|tests/|canvas |[0-9+]|none$")


class Tests:
    """The Rust tests of the tree, found in the source: needs no build, and includes tests behind features."""

    def __init__(self, root=ROOT):
        # (crate, (module, ...), function)
        self.all = []
        places = [(os.path.basename(d), d) for d in glob.glob(os.path.join(root, "crates", "*"))]
        # The laboratory's packages have the prefix as well; their directories' names do not.
        places += [("canvas-" + os.path.basename(d), d) for d in glob.glob(os.path.join(root, "lab", "*"))]
        places.append(("canvas-lab", os.path.join(root, "lab")))
        for crate, home in places:
            for kind in ("src", "tests", "examples"):
                top = os.path.join(home, kind)
                for path in glob.glob(os.path.join(top, "**", "*.rs"), recursive=True):
                    modules = os.path.relpath(path, top)[:-3].split(os.sep)
                    modules = [m for m in modules if m not in ("lib", "main", "mod")]
                    if modules and modules[-1].endswith("_tests"):
                        # A module's tests in a file of their own.
                        modules[-1:] = [modules[-1].removesuffix("_tests"), "tests"]
                    with open(path) as f:
                        self._file(crate, modules, f.read().splitlines(), kind == "examples")

    def _file(self, crate, modules, lines, is_program):
        # Programs that tests/run starts have their checks in functions.
        inner, is_test = [], is_program
        for line in lines:
            indent = len(line) - len(line.lstrip())
            if found := re.match(r"\s*(?:pub(?:\(.*?\))? )?mod (\w+) \{", line):
                inner.append((indent, found[1]))
            elif line.strip() == "}" and inner and inner[-1][0] == indent:
                inner.pop()
            elif line.strip() == "#[test]":
                is_test = True
            elif is_test and (found := re.match(r"\s*(?:async )?fn (\w+)", line)):
                self.all.append((crate, (*modules, *(m for _, m in inner)), found[1]))
                is_test = is_program

    def has(self, name):
        """Whether `name` is a test, or a module with tests; `*` at its end is all of a module."""
        parts = name.split("::")
        if parts[-1] == "*":
            parts.pop()
        for crate, modules, function in self.all:
            wanted = parts
            if wanted[0] in (crate, "canvas-" + wanted[0]):
                wanted = wanted[1:]
            elif wanted[0].startswith("canvas-") or wanted[0] in COMMAND and crate != COMMAND[wanted[0]]:
                continue
            # In order, possibly with gaps: documents leave out `tests`.
            there = iter((*modules, function))
            if all(part in there for part in wanted):
                return True
        return False

    def find(self, name, last):
        """The full name of `name`, if it exists; `::x` stands for a sibling of `last`, or one of its parents."""
        if not name.startswith("::"):
            return name if self.has(name) else None
        base = last.split("::")[:-1] if last else []
        while base:
            if self.has("::".join(base) + name):
                return "::".join(base) + name
            base.pop()
        return None


def targets():
    with open(os.path.join(ROOT, "Makefile")) as f:
        return set(re.findall(r"^([a-z][a-z-]*):", f.read(), re.M))


def literals():
    """All strings in the bench's source, which include the names of its programs."""
    found = set()
    for path in glob.glob(os.path.join(ROOT, "lab", "bench", "src", "**", "*.rs"), recursive=True):
        with open(path) as f:
            found.update(re.findall(r'"([a-z0-9-]+)"', f.read()))
    return found


class Specification:
    """Compares the names in SPECIFICATION.md's tables with the tests."""

    def __init__(self, text, tests, e2e, made, programs):
        self.text, self.tests, self.e2e, self.made, self.programs = text, tests, e2e, made, programs
        self.wrong, self.count = [], 0

    def check(self):
        ids, header, section = {}, None, ""
        for number, line in enumerate(self.text.splitlines(), 1):
            if line.startswith("## "):
                header, section = None, line[3:]
            if not line.startswith("|"):
                continue
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            if header is None:
                header = cells
                continue
            if set(line) <= set("|- "):
                continue
            if header[0] == "#":
                if cells[0] in ids:
                    self.wrong.append(f"SPECIFICATION.md:{number}: {cells[0]} is also a promise of line {ids[cells[0]]}")
                ids[cells[0]] = number
            self.cell(number, cells[-1], header[-1] == "bench")
        return self.wrong

    def cell(self, number, cell, is_bench):
        last, named = None, 0
        for found in re.finditer(r"`([^`]+)`", cell):
            name, after = found[1], cell[found.end():]
            bench = is_bench or cell[:found.start()].endswith("bench: ")
            if name.startswith("make "):
                good = name.split()[1] in self.made
            elif NOT_NAMES.match(name) or (name in WORDS and name not in self.e2e):
                continue
            elif bench:
                good = name in self.programs
            elif name in self.e2e:
                good = not self.e2e[name].slow_only or re.match(r" \([^)]*slow", after)
                if not good:
                    self.wrong.append(f"SPECIFICATION.md:{number}: `{name}` is a test of the slow suite: say (slow)")
                    good = True
            elif "*" in name and "::" not in name:
                good = fnmatch.filter(self.e2e, name)
            else:
                full = self.tests.find(name, last)
                good, last = full is not None, full or last
            named += 1
            if not good:
                self.wrong.append(f"SPECIFICATION.md:{number}: there is no test `{name}`")
        self.count += named
        if not named and "not yet enforced" not in cell and not re.search(r"\*judged\*|listed in|by type", cell):
            self.wrong.append(f"SPECIFICATION.md:{number}: a promise without a test says *not yet enforced*")


def documents():
    """(path from the root, text) of each document."""
    found = glob.glob(os.path.join(ROOT, "*.md"))
    found += [p for top in ("docs", "lab") for p in glob.glob(os.path.join(ROOT, top, "**", "*.md"), recursive=True)]
    for path in sorted(found):
        with open(path) as f:
            yield os.path.relpath(path, ROOT), f.read()


def other(name, text, made):
    """Errors in the Makefile targets that a document names."""
    wrong = []
    # In a block of commands or in backquotes; elsewhere "make" is a verb.
    code = [line for _, line, is_code in pages.fenced(text) if is_code] + re.findall(r"`(make [^`]+)`", text)
    for target in re.findall(r"^(?:\$ )?make ([a-z][a-z-]*)(?=[ \n]|$)", "\n".join(code), re.M):
        if target not in made:
            wrong.append(f"{name}: there is no `make {target}`")
    return wrong


def names_of_code(name, text):
    """Errors in the names of code in "How to add ..."; the house rules use invented names."""
    code = ""
    for top in ("crates", "lab", "tests"):
        for path in glob.glob(os.path.join(ROOT, top, "**", "*.[rpc]*"), recursive=True):
            if path.endswith((".rs", ".py", ".c")):
                with open(path) as f:
                    code += f.read()
    there = set(re.findall(r"\w+", code))
    words = re.findall(r"`([A-Za-z_]{5,})`", text.split("## How to add", 1)[-1])
    return [f"{name}: nothing is called {w}" for w in sorted(set(words) - there)]


def silent_skips():
    """Tests that print that they skip, and then count as passed."""
    wrong = []
    for path in [p for top in ("crates", "lab") for p in glob.glob(os.path.join(ROOT, top, "**", "*.rs"), recursive=True)]:
        with open(path) as f:
            if re.search(r'print(ln)?!\("skip', f.read()):
                wrong.append(f"{os.path.relpath(path, ROOT)}: a test that cannot run here calls canvas_testing::skip")
    return wrong


def libraries():
    """Dependencies that docs/design/libraries.md does not explain."""
    with open(os.path.join(ROOT, "docs", "design", "libraries.md")) as f:
        said = set(re.findall(r"`([a-z0-9_-]+)`", f.read()))
    wrong = []
    for path in sorted(glob.glob(os.path.join(ROOT, "crates", "*", "Cargo.toml"))):
        with open(path) as f:
            parts = re.split(r"^\[(.*)\]$", f.read(), flags=re.M)
        for section, lines in zip(parts[1::2], parts[2::2]):
            if section.endswith("dependencies"):
                names = set(re.findall(r"^([a-z][a-z0-9_-]*)(?:\.workspace)? *=", lines, re.M))
                wrong += [f"docs/design/libraries.md: it does not say why {os.path.relpath(path, ROOT)} uses {n}"
                          for n in sorted(names - said) if not n.startswith("canvas-")]
    return wrong


def main():
    tests, made = Tests(), targets()
    with open(os.path.join(ROOT, "SPECIFICATION.md")) as f:
        specification = Specification(f.read(), tests, registered.load(), made, literals())
    wrong = specification.check() + silent_skips() + bounds.wrong() + figures.wrong() + libraries()
    canvas, words = pages.Canvas(), 0
    for name, text in documents():
        words += prose.by_hand(name, text)
        wrong += other(name, text, made) + pages.wrong(name, text, canvas) + prose.wrong(name, text)
        if name == "CONTRIBUTING.md":
            wrong += names_of_code(name, text)
    wrong += prose.too_many(words)
    for sentence in wrong:
        print(sentence)
    if not wrong:
        print(f"documents: {specification.count} names in SPECIFICATION.md are those of tests")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
