#!/usr/bin/env python3
"""What continuous integration runs: `make test`, its output as it comes, and at the end one line
"N passed, N failed, N skipped" summed over cargo's tests, the lint's skips and tests/run.
"""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CARGO = re.compile(r"test result: \S+\. (\d+) passed; (\d+) failed; (\d+) ignored")
RUNNER = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped$")
LINT = re.compile(r"lint: ()()(\d+) skipped")


def main():
    sums = [0, 0, 0]
    make = subprocess.Popen(["make", "test"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, errors="replace")
    for line in make.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        found = CARGO.match(line.strip()) or RUNNER.match(line.strip()) or LINT.match(line.strip())
        if found:
            sums = [n + int(new or 0) for n, new in zip(sums, found.groups())]
    code = make.wait()
    if code and not sums[1]:
        # A step that is no test failed: the build, the style, an installation.
        sums[1] = 1
    print("%d passed, %d failed, %d skipped" % tuple(sums), flush=True)
    return 1 if code or sums[1] else 0


if __name__ == "__main__":
    sys.exit(main())
