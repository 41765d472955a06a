"""Runs one file of CPython's own tests and prints how each test ended: cpython.py NAME [PART...].

Leaves out tests whose name has one of the PARTs. The lines are sorted; stderr has the details of failures.
"""

import contextlib
import sys
import unittest

from test import support
from test.support import os_helper


class Ended(unittest.TestResult):
    """How each test ended; a test that failed in several subtests counts once."""

    def __init__(self):
        super().__init__()
        self.how = {}

    def stopTest(self, test):
        super().stopTest(test)
        self.how.setdefault(test.id(), "ok")

    def _wrong(self, test, error):
        self.how[test.id()] = "FAILED"
        print(test.id(), self._exc_info_to_string(error, test), file=sys.stderr, flush=True)

    addError = addFailure = _wrong

    def addSubTest(self, test, subtest, error):
        if error:
            self._wrong(test, error)

    def addSkip(self, test, reason):
        self.how[test.id()] = "skipped"

    def addExpectedFailure(self, test, error):
        self.how[test.id()] = "failed as expected"

    def addUnexpectedSuccess(self, test):
        self.how[test.id()] = "passed unexpectedly"


def cases(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases(item)
        else:
            yield item


def without(suite, parts):
    return unittest.TestSuite(c for c in cases(suite) if not any(p in c.id() for p in parts))


def main(name, *parts):
    result = Ended()
    support.verbose = 0
    with os_helper.temp_cwd(), contextlib.redirect_stdout(sys.stderr):
        suite = without(unittest.defaultTestLoader.loadTestsFromName(f"test.{name}"), parts)
        suite.run(result)
    for test, how in sorted(result.how.items()):
        print(test, how)


if __name__ == "__main__":
    main(*sys.argv[1:])
