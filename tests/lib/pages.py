"""Checks a document against the tree: links and their anchors, paths, commands and flags of `canvas`, results
of the bench, and the width of its lines.
"""

import glob
import os
import re

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(TESTS)
WIDTH = 100

# Internal commands, whose flags are in no help.
HIDDEN = {"agent-worker", "disk-server", "help"}
# Flags of other programs, of `make demo`, the simulator and built-in workloads that documents name.
FOREIGN = {"help", "version", "scale", "full", "seed", "mib", "seconds", "threads", "rounds", "stride", "huge-pages", "cheat", "pages", "device",
           "privileged", "seccomp-default", "security-opt", "only", "list", "memory", "brk"}
# Paths that a command creates.
MADE = {"fuzz/artifacts"}


# Flags of `canvas run` that take no value.
SWITCHES = {"require"}


def own(arguments):
    """The arguments of `canvas run` before the program's name."""
    kept, takes = [], False
    for word in arguments.split():
        if not word.startswith("-") and not takes:
            break
        takes = word == "-o" or word.startswith("--") and "=" not in word and word[2:] not in SWITCHES
        kept.append(word)
    return " ".join(kept)


class Canvas:
    """The commands of `canvas` and their flags, from the list that `tests/cli/texts.rs` compares with --help."""

    def __init__(self, root=ROOT):
        with open(os.path.join(root, "crates/canvas-cli/tests/cli/texts.rs")) as f:
            text = f.read()
        self.commands = set(re.findall(r'"([a-z-]+)"', text.split("const COMMANDS", 1)[1].split("];", 1)[0]))
        self.flags = {}
        body = text.split("fn expected(", 1)[1].split("\nfn ", 1)[0]
        for names, flags in re.findall(r'((?:"[a-z-]+"(?: \| )?)+) => &\[([^\]]*)\]', body):
            for name in re.findall(r'"([a-z-]+)"', names):
                self.flags[name] = set(re.findall(r'"([a-z-]+)"', flags))
        self.aliases = set()
        for path in glob.glob(os.path.join(root, "crates/canvas-cli/src/args*/**/*.rs"), recursive=True) + glob.glob(
                os.path.join(root, "crates/canvas-cli/src/args*.rs")):
            with open(path) as f:
                for names in re.findall(r"\balias(?:es)? = (\[[^\]]*\]|\"[^\"]*\")", f.read()):
                    self.aliases.update(re.findall(r'"([a-z-]+)"', names))
        with open(os.path.join(root, "lab/src/args.rs")) as f:
            text = f.read()
        # Flags of the laboratory, which are fields of any of its commands.
        self.lab_flags = {name.replace("_", "-") for name in re.findall(r"^    pub ([a-z_]+):", text, re.M)}
        commands = text.split("pub enum Command {", 1)[1].split("\n}\n", 1)[0]
        self.lab_commands = {name.lower() for name in re.findall(r"^    ([A-Z][a-z]+)[({ ]", commands, re.M)}
        assert self.commands and self.commands == set(self.flags), (self.commands, set(self.flags))
        self.all = set().union(*self.flags.values()) | self.aliases | self.lab_flags

    def wrong(self, line):
        """Errors in a line of commands, or in code within a sentence."""
        said = []
        for found in re.finditer(r"(?:^|[\s(/])lab ([a-z][a-z-]*)((?:(?! -- )[^|;&#\n])*)", line):
            if found[1] not in self.lab_commands:
                said.append(f"there is no `lab {found[1]}`")
            said += [f"`lab` has no --{flag}" for flag in re.findall(r"(?<![\w-])--([a-z][a-z-]*)", re.sub(r"'[^']*'", "", found[2]))
                     if flag not in self.lab_flags | {"help", "version", "output"}]
        for found in re.finditer(r"(?:^|[\s(])canvas ([a-z][a-z-]*)((?:(?! -- )[^|;&#\n])*)", line):
            command, rest = found[1], re.sub(r"'[^']*'", "''", found[2])
            if command in HIDDEN:
                continue
            if command not in self.commands:
                said.append(f"there is no `canvas {command}`")
                continue
            for flag in re.findall(r"(?<![\w-])--([a-z][a-z-]*)", own(rest) if command == "run" else rest):
                if flag not in self.flags[command] | self.aliases | {"help", "version"}:
                    said.append(f"`canvas {command}` has no --{flag}")
        return said


def fenced(text):
    """(number, line, whether it is in a block of code) of each line."""
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        is_fence = line.lstrip().startswith("```")
        yield number, line, inside or is_fence
        inside ^= is_fence


def slug(heading):
    """The anchor that a forge makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(text):
    found, count = set(), {}
    for _, line, code in fenced(text):
        if not code and (heading := re.match(r"#+ (.*)", line)):
            name = slug(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]))
            found.add(name if name not in count else f"{name}-{count[name]}")
            count[name] = count.get(name, 0) + 1
    return found


def links(name, text, read):
    """Errors in the links of the document `name`; `read` returns a file's text, or None."""
    wrong = []
    prose = "\n".join("" if code else line for _, line, code in fenced(text))
    for target in re.findall(r"\]\(\s*([^)\s]+)\s*\)", prose):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        at = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
        if path and not os.path.exists(os.path.join(ROOT, at)):
            wrong.append(f"{name}: there is no {path}")
        elif anchor and at.endswith(".md") and anchor not in anchors(text if at == name else read(at)):
            wrong.append(f"{name}: {at} has no heading #{anchor}")
    return wrong


def paths(name, text):
    """Errors in the paths in backquotes, relative to the root or to `crates`."""
    wrong = []
    for path in re.findall(r"`((?:(?:crates|tests|docs|etc|fuzz|lab|bench|\.ci)|canvas-[a-z]+/(?:src|tests|examples))/[\w./-]+)`", text):
        base = path.rstrip("/")
        if base in MADE or re.match(r"lab/results/", base):
            continue
        # Tests and examples of a crate may be named relative to its directory.
        if not any(glob.glob(os.path.join(ROOT, at, base)) for at in ("", "crates", "crates/*")):
            wrong.append(f"{name}: there is no {path}")
    return wrong


def commands(name, text, canvas):
    """Errors in commands of `canvas` and in flags, in code."""
    wrong, going_on, prompts = [], "", False
    for number, line, code in fenced(text):
        if line.lstrip().startswith("```"):
            prompts = False
        elif code:
            # In a block with prompts, lines without one are output.
            prompts |= bool(re.match(r"\s*\$ ", line))
            if prompts and not going_on and not re.match(r"\s*[$>] ", line):
                continue
            if line.endswith("\\"):
                going_on += line[:-1]
                continue
            wrong += [f"{name}:{number}: {w}" for w in canvas.wrong(re.sub(r"^\s*[$>] ", "", going_on + line))]
            going_on = ""
    prose = "\n".join("" if code else line for _, line, code in fenced(text))
    for span in re.findall(r"`([^`]+)`", prose):
        span = span.replace("\n", " ")
        said = canvas.wrong(span)
        if (flag := re.match(r"--([a-z][a-z-]*)", span)) and flag[1] not in canvas.all | FOREIGN:
            said.append(f"nothing has a flag --{flag[1]}")
        wrong += [f"{name}: {w}" for w in said]
    return wrong


def results(name, text):
    """Result files that a document names as the source of figures, but that do not exist."""
    there = set(os.listdir(os.path.join(ROOT, "lab/results")))
    return [f"{name}: there is no lab/results/{f}"
            for f in sorted(set(re.findall(r"(?<![\w-])(\d{8}-\d{6}[\w-]*(?:\.jsonl)?)", text)))
            if (f if f.endswith(".jsonl") else f + ".jsonl") not in there]


def widths(name, text):
    """Lines that are too wide, outside of tables and code, unless a single word is too long."""
    return [f"{name}:{number}: {len(line)} columns, {WIDTH} at most"
            for number, line, code in fenced(text)
            if len(line) > WIDTH and not code and not line.startswith("|") and len(line.split()) > 2]


def wrong(name, text, canvas):
    """All errors of a document."""
    def read(path):
        with open(os.path.join(ROOT, path)) as f:
            return f.read()
    return (links(name, text, read) + paths(name, text) + commands(name, text, canvas) + results(name, text)
            + widths(name, text))
