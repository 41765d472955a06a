"""pytest's side of the end-to-end tests: turns the tests that tests/e2e registers into pytest's items, and
prints a line per result. pytest provides workers, timeouts, skips and files of results (xdist,
pytest-timeout).

Each worker has its own directory, adopts the processes that its tests leave running, and ends them. Tests of
one group (harness.group) stay with one worker; a test that must be alone waits until no other test is
running.
"""

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import sys
import tempfile
import traceback

import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from lib import harness, procs, registered, scratch  # noqa: E402


def pytest_addoption(parser):
    """Options that tests/run passes on."""
    ours = parser.getgroup("canvas")
    ours.addoption("--suite", default="normal")
    ours.addoption("--only", action="append")
    ours.addoption("--mode")
    ours.addoption("--canvas")
    ours.addoption("--plain", action="store_true")
    ours.addoption("--keep", action="store_true")


def is_worker(config):
    return hasattr(config, "workerinput")


def take_signals(config):
    """Handles SIGINT and SIGTERM. Both are ignored when the tests were started by nohup or in a shell's
    background; the programs under test would then ignore them too, and a shell cannot trap a signal that was
    ignored at its start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(name) == signal.SIG_IGN:
            signal.signal(name, signal.SIG_DFL)

    def terminated(*_):
        # SIGTERM cleans up as well: the exception unwinds through every `finally`, those of the workers too.
        if not is_worker(config) and config.getoption("numprocesses", None):
            for pid in procs.children(os.getpid()):
                os.kill(pid, signal.SIGINT)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, terminated)


def pytest_configure(config):
    if not config.getoption("canvas"):
        raise pytest.UsageError("start the tests by tests/run")
    take_signals(config)
    procs.become_subreaper()
    config.canvas_failed = False
    if is_worker(config):
        home, name = config.workerinput["canvas_home"], config.workerinput["workerid"]
    else:
        home, name = tempfile.mkdtemp(prefix="canvas-e2e-", dir=scratch.find()), "own"
        os.chmod(home, 0o755)
        config.option.basetemp = os.path.join(home, "pytest")
    command = None if config.getoption("plain") else os.path.join(home, "canvas")
    if command and not is_worker(config):
        # Copies that an ordinary user can execute wherever the work tree is; `lab` is built next to canvas.
        built = config.getoption("canvas")
        lab = os.path.join(os.path.dirname(os.path.abspath(built)), "lab")
        for path, copy in ((built, command), (lab, os.path.join(home, "lab"))):
            if path == built or os.path.exists(path):
                shutil.copy(path, copy)
                os.chmod(copy, 0o755)
    config.canvas_home = home
    config.canvas_session = harness.Session(config.getoption("suite"), home, name, command,
                                            config.getoption("plain"), config.getoption("keep"))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Passes the configuration to a worker that is about to start."""
    node.workerinput["canvas_home"] = node.config.canvas_home


def pytest_unconfigure(config):
    if not hasattr(config, "canvas_home"):
        return
    procs.end_orphans()
    if not is_worker(config) and not config.canvas_failed and not config.getoption("keep"):
        shutil.rmtree(config.canvas_home, ignore_errors=True)


def processor_s():
    """Processor time of this process and of all children it has waited for."""
    each = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(r.ru_utime + r.ru_stime for r in each)


class Item(pytest.Item):
    """One instance of a test."""

    def runtest(self):
        session, before_s = self.config.canvas_session, processor_s()
        session.cases = None
        try:
            notes = session.run_one(*self.instance)
        except harness.Skip as e:
            if isinstance(e, harness.NeedsRoot) and os.environ.get("CI") in ("true", "1"):
                text = f"{e}, which CI=true promises; run the tests as root, or unset CI"
                raise harness.Failure(text) from None
            pytest.skip(str(e))
        finally:
            procs.end_orphans()
            self.user_properties.append(("processor_s", round(processor_s() - before_s, 2)))
        self.user_properties.append(("notes", "; ".join(notes)))

    def repr_failure(self, excinfo):
        e = excinfo.value
        if isinstance(e, harness.Failure):
            return str(e)
        if isinstance(e, pytest.fail.Exception):
            return f"not finished: {e.msg}"
        frames = e.__traceback__
        # Starts at the test; the frames before it are pytest's.
        while frames.tb_next and frames.tb_frame.f_code.co_name != "run_one":
            frames = frames.tb_next
        return "".join(traceback.format_exception(type(e), e, frames))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session, config, items):
    """Sorts the items into groups, those that may take long first, so that all workers end at about the same
    time."""
    registered.load()
    plain, groups = config.getoption("plain"), {}
    factor = 6 if config.getoption("suite") == "slow" else harness.PATIENCE
    for instance in harness.selected(config.getoption("suite"), config.getoption("only"), config.getoption("mode"),
                                     plain):
        name = harness.label(*instance, plain)
        item = Item.from_parent(session, name=name, nodeid=name)
        item.instance = instance
        item.add_marker(pytest.mark.timeout(instance[0].timeout_s * factor))
        item.add_marker(pytest.mark.xdist_group(harness.group(instance[0])))
        groups.setdefault(harness.group(instance[0]), []).append(item)
    # Tests that must be alone come last, when only few others have to end first.
    order = sorted(groups, key=lambda g: (g == "alone", -sum(i.instance[0].timeout_s for i in groups[g])))
    items[:] = [item for g in order for item in groups[g]]


@contextlib.contextmanager
def turn(config, alone):
    """Lets tests run in parallel, but a test that must be alone only by itself. Later tests wait at the gate
    while one waits for the room to be empty."""
    with open(os.path.join(config.canvas_home, "gate"), "a") as gate, \
            open(os.path.join(config.canvas_home, "room"), "a") as room:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Wraps the timeout, which begins when it is the test's turn."""
    with turn(item.config, item.instance[0].alone):
        yield


def case_reports(item, report):
    """One report for each case that the test has counted, except the one that `report` stands for."""
    cases = item.config.canvas_session.cases
    if report.when != "call" or not cases:
        return
    outcomes = [("passed", None, None)] * (cases.passed - (report.outcome == "passed"))
    outcomes += [("failed", None, "")] * (cases.failed - 1)
    outcomes += [("skipped", case, ("", 0, reason)) for case, reason in cases.skipped]
    for outcome, case, text in outcomes:
        yield type(report)(item.nodeid, item.location, {}, outcome, text, "call", user_properties=[("case", case)])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    for report in case_reports(item, outcome.get_result()):
        item.ihook.pytest_runtest_logreport(report=report)


def text_of(report):
    """Notes of a passed test, the reason of a skip, the errors of any other."""
    if report.outcome == "passed":
        return dict(report.user_properties).get("notes", "")
    if report.outcome == "skipped":
        return report.longrepr[2].replace("Skipped: ", "", 1)
    return str(report.longrepr)


def name_of(report):
    """Removes the group's name that a worker appends to a test's."""
    return report.nodeid.partition("@")[0]


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report):
    """Counts a result as usual, but without pytest's letter: there is a line for it."""
    if report.when in ("setup", "teardown"):
        return "error" if report.failed else "", "", ""
    return report.outcome, "", ""


class Lines:
    """Prints a line for each result."""

    def __init__(self, config):
        self.config, self.out = config, config.pluginmanager.get_plugin("terminalreporter")
        self.failures = []

    def pytest_runtest_logreport(self, report):
        case = dict(report.user_properties).get("case", "")
        if case is None or report.passed and report.when != "call":
            return
        word = {"passed": "ok  ", "skipped": "skip"}.get(report.outcome, "FAIL")
        name, (first, _, rest) = name_of(report) + (case and f":{case}"), text_of(report).partition("\n")
        self.out.write_line(f"{word} {name:34s} {report.duration:6.1f} s  {first}", flush=True)
        for line in rest.splitlines():
            self.out.write_line(f"       | {line}", flush=True)
        if report.failed:
            self.failures.append((name, first, rest))

    def pytest_terminal_summary(self):
        if not self.failures:
            return
        self.config.canvas_failed = True
        self.out.write_line("failed: " + " ".join(name for name, *_ in self.failures))
        # Repeats failures at the end, where readers look for them.
        for name, first, rest in self.failures[:20]:
            self.out.write_line(f"failed: {name}: {' | '.join([first, *rest.splitlines()])[:600]}")
        self.out.write_line(f"their files: {self.config.canvas_home}")


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    if not is_worker(session.config):
        session.config.pluginmanager.register(Lines(session.config))
