"""The conformance suite (tests/conformance): system calls act as their manual pages promise, plain and
managed."""

import glob
import os
import re
import shutil
import stat
import subprocess
import sys

from lib import canvas
from lib.harness import TESTS, Cases, Failure, Skip, check

HOME = os.path.join(TESTS, "conformance")
# Small, so that pages a case evicts are far; the programs need a tenth of it.
LOCAL, POOL = "16M", "256M"
LINE = re.compile(r"(ok|FAIL|skip) (\w+)(?:: (.*))?$")
GAP = re.compile(r"(\w+\.\w+)\s+(signal|thread|signal,thread)\s+(G\d+)\s+(\S.*)$")
# Makes /dev/userfaultfd accessible to everyone, in a mount namespace: thread mode for an ordinary user.
EVERYBODY = 'mknod -m 666 "$0" c "$1" "$2" && mount --bind "$0" /dev/userfaultfd && shift 2 && exec "$@"'


def gaps():
    """The known differences: {name: (modes, gap's number, sentence)}."""
    found = {}
    with open(os.path.join(HOME, "gaps")) as f:
        for number, line in enumerate(f, 1):
            if not line.strip() or line.startswith("#"):
                continue
            parts = GAP.match(line.strip())
            if not parts or parts[1] in found:
                raise Failure(f"tests/conformance/gaps:{number}: not one name, modes, gap and sentence: {line.strip()}")
            found[parts[1]] = (parts[2].split(","), parts[3], parts[4])
    return found


def program(r, name):
    """Command line of a program."""
    if not os.path.exists(os.path.join(HOME, name + ".py")):
        return [r.session.compile(name, of="conformance")]
    # Directory from which `import conformance` finds its module.
    home = os.path.join(r.session.dir, "conformance")
    if not os.path.exists(home):
        shutil.copytree(HOME, home, ignore=shutil.ignore_patterns("__pycache__"))
    return [shutil.which("python3", path="/usr/bin") or sys.executable, "-B", os.path.join(home, name + ".py")]


def users(r):
    """Users to run the cases as, each with its command prefix."""
    if os.getuid() != 0:
        return {"user": []}
    found = {"root": []}
    u = r.session.user
    if u:
        found["user"] = ["setpriv", "--reuid", str(u.pw_uid), "--regid", str(u.pw_gid), "--clear-groups", "--"]
    return found


def for_everybody(r):
    """The prefix that makes thread mode possible for ordinary users, or None."""
    try:
        device = os.stat("/dev/userfaultfd")
    except OSError:
        return None
    if stat.S_IMODE(device.st_mode) & 0o006 == 0o006:
        return []
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        return None
    major, minor = os.major(device.st_rdev), os.minor(device.st_rdev)
    return ["unshare", "-m", "sh", "-c", EVERYBODY, r.path("userfaultfd"), str(major), str(minor)]


def start(r, name, user, prefix, managed):
    """Starts all cases of a program as one user."""
    tag = f"{user}-{r.mode if managed else 'plain'}"
    if managed and user == "user" and r.mode == "thread":
        everybody = for_everybody(r)
        if everybody is None:
            return None
        prefix = [*everybody, *prefix]
    child = r.start(program(r, name), tag=tag, canvas_on=managed, prefix=prefix,
                    local=LOCAL, pool=POOL, env={"LC_ALL": "C", "CONFORMANCE_SLOW": "1" if r.slow else ""})
    child.sampler.stop()
    return child


def results(r, child, what):
    """{case: (word, text)} of a started program."""
    code = r.wait(child, expect=None)
    found = {}
    for line in child.out().splitlines():
        parts = LINE.match(line)
        if not parts:
            raise Failure(f"{what}: it said {line!r}")
        found[parts[2]] = (parts[1], parts[3] or "")
    wrong = any(word == "FAIL" for word, _ in found.values())
    if code != (1 if wrong else 0) or not found:
        raise Failure(f"{what}: exit code {code} after {len(found)} cases\n{child.tail()}")
    return found


def by_user(r, name, managed):
    """{user: {case: (word, text)}}; runs all users at the same time."""
    children = {u: start(r, name, u, prefix, managed) for u, prefix in users(r).items()}
    how = f"in {r.mode} mode" if managed else "plainly"
    found = {u: results(r, c, f"as {u}, {how}") for u, c in children.items() if c}
    for c in children.values():
        if c and managed:
            stats = r.load_stats(c)
            for key in ("verify_failures", "anomalies"):
                r.same(canvas.find(stats, key), 0, key)
    return found


class Verdict:
    """Results of the runs of a program's cases."""

    def __init__(self, name, mode, known):
        self.name, self.mode, self.known = name, mode, known
        self.cases, self.wrong = Cases(), []

    def compare(self, plain, managed):
        for case in sorted({c for by in plain.values() for c in by}):
            before = {u: by[case] for u, by in plain.items() if case in by}
            after = {u: managed.get(u, {}).get(case) for u in before} if managed is not None else before
            self.case(case, before, {u: a for u, a in after.items() if a}, managed is not None)

    def case(self, case, plain, got, is_managed):
        said = [f"plainly, as {u}: {text}" for u, (word, text) in plain.items() if word == "FAIL"]
        if not said and is_managed:
            # A case must not be skipped because canvas lacks something.
            said = [f"as {u}: {text}" for u, (word, text) in got.items()
                    if word == "FAIL" or (word == "skip" and plain[u][0] == "ok")]
            modes, number, _ = self.known.get(f"{self.name}.{case}", ((), "", ""))
            if self.mode in modes and said:
                self.cases.skipped.append((case, f"known gap {number}"))
                return
            if self.mode in modes and any(word == "ok" for word, _ in got.values()):
                said = [f"it passes in {self.mode} mode: take it out of tests/conformance/gaps"]
        if said:
            self.cases.failed += 1
            self.wrong.append(f"{self.name}.{case}: " + "; ".join(said))
        elif any(word == "ok" for word, _ in got.values()):
            self.cases.passed += 1
        else:
            reasons = [text for word, text in got.values() if word == "skip"]
            self.cases.skipped.append((case, (reasons or ["no ordinary user can have thread mode here"])[0]))


def register(name):
    # Only the slow suite tests Python's library: its system calls have their own cases in C.
    @check(f"conformance-{name}", timeout_s=150, slow_only=os.path.exists(os.path.join(HOME, name + ".py")))
    def test(r):
        if not r.managed and r.mode == "thread":
            raise Skip("said in signal mode")
        os.chmod(r.dir, 0o1777)
        references = r.session.references
        if ("conformance", name) not in references:
            references["conformance", name] = by_user(r, name, False)
        verdict = Verdict(name, r.mode, gaps())
        verdict.compare(references["conformance", name], by_user(r, name, True) if r.managed else None)
        r.session.cases = verdict.cases
        r.note(f"{verdict.cases.passed} cases right")
        if verdict.wrong:
            raise Failure("\n".join(verdict.wrong))

    test.__doc__ = name


PROGRAMS = sorted(os.path.basename(p).rpartition(".")[0] for p in glob.glob(os.path.join(HOME, "*.[cp]*"))
                  if os.path.basename(p) != "conformance.py")
for _name in PROGRAMS:
    register(_name)


def cases_of(r):
    """Names of all cases, as written in the list of gaps."""
    found = set()
    for name in PROGRAMS:
        p = subprocess.run([*program(r, name), "--list"], capture_output=True, text=True, cwd=r.dir)
        found |= {f"{name}.{case}" for case in p.stdout.split()}
    return found


@check("conformance-gaps", modes=("signal",), timeout_s=60)
def list_and_page(r):
    """SEMANTICS.md names each known difference, and no other, in the paragraph of its gap; each is a case."""
    with open(os.path.join(os.path.dirname(TESTS), "SEMANTICS.md")) as f:
        known = f.read().partition("## Known gaps")[2]
    page = {}
    for number, text in re.findall(r"^\* \*\*(G\d+)\.\*\*(.*?)(?=^\* \*\*G|\Z)", known, re.S | re.M):
        for name in re.findall(r"`(\w+\.\w+)`", text):
            if os.path.exists(os.path.join(HOME, name.partition(".")[0] + ".c")) or name.partition(".")[0] in PROGRAMS:
                page[name] = number
    listed = {name: number for name, (_, number, _) in gaps().items()}
    r.same(page, listed, "SEMANTICS.md's gaps, beside tests/conformance/gaps")
    r.same(sorted(set(listed) - cases_of(r)), [], "names in tests/conformance/gaps that no case has")
