"""Runs YCSB and prints one line of JSON: what it did, how fast, and whether all values were right.

ycsb.py run load|requests RECORDS OPERATIONS DIR -- JAVA ARG...
ycsb.py parse load|requests RECORDS OPERATIONS STDOUT-FILE STDERR-FILE

Output of YCSB goes to files in a new directory in DIR, and to standard error when something is wrong (exit code 1).
"""

import json
import os
import re
import subprocess
import sys
import tempfile

# "... 12 sec: 250000 operations; 25000.5 current ops/sec; ..."; the last line has no current rate.
STATUS = re.compile(r" (\d+) sec: (\d+) operations; ([\d.]+) current ops/sec")
NAMES = ("READ", "UPDATE", "INSERT", "SCAN")


class Wrong(Exception):
    """An error in the results, as one sentence."""


def figures(stdout):
    """{(section, name): value} of lines such as "[READ], Operations, 4923"."""
    found = {}
    for line in stdout.splitlines():
        parts = [p.strip() for p in line.split(",")]
        if len(parts) == 3 and parts[0].startswith("[") and parts[0].endswith("]"):
            try:
                found[parts[0][1:-1], parts[1]] = float(parts[2])
            except ValueError:
                continue
    return found


def check_line(stderr):
    """The summary of the store's checks (YCSB closes standard output before that)."""
    lines = [line for line in stderr.splitlines() if line.startswith("CHECK ")]
    if not lines:
        raise Wrong("YCSB ended before its values were read back")
    return json.loads(lines[-1][len("CHECK "):])


def rates(stderr):
    """[(seconds since the start, operations a second)] without the rest after the last full second."""
    found = {}
    for m in STATUS.finditer(stderr):
        found.setdefault(int(m[1]), float(m[3]))
    return sorted((s, rate) for s, rate in found.items() if s > 0)


def answer(phase, records, operations, stdout, stderr):
    """The object that the bench parses; raises Wrong when requests or values are missing."""
    found, check = figures(stdout), check_line(stderr)
    done = {n: int(found.get((n, "Return=OK"), 0)) for n in NAMES}
    # A read-modify-write is also counted under its own name.
    ok = sum(done.values()) - int(found.get(("READ-MODIFY-WRITE", "Operations"), 0))
    wanted = records if phase == "load" else operations
    if check["wrong"] or check["failed"] or ok != wanted:
        raise Wrong(f"{ok} of {wanted} requests were answered, {check['failed']} failed, "
                    f"{check['wrong']} values were wrong")
    try:
        seconds = found["OVERALL", "RunTime(ms)"] / 1000
        ops_per_s = found["OVERALL", "Throughput(ops/sec)"]
    except KeyError as e:
        raise Wrong(f"YCSB's output has no line {e}") from None
    text = f"{records} records, {wanted} requests answered, {check['checked']} records read back, 0 wrong"
    result = {"answer": text, "seconds": seconds, "ops_per_s": ops_per_s, "rates": rates(stderr)}
    if check["requests"]:
        result["latency_ns"] = {
            "p50": check["p50_us"] * 1000.0,
            "p99": check["p99_us"] * 1000.0,
            "p999": check["p999_us"] * 1000.0,
            "max": check["max_us"] * 1000.0,
        }
        result["latency_histogram"] = [[us * 1000, n] for us, n in check["histogram_us"]]
    return result


def read(path):
    with open(path, errors="replace") as f:
        return f.read()


def main(argv):
    if len(argv) < 6 or argv[0] not in ("run", "parse") or argv[1] not in ("load", "requests"):
        print(__doc__, file=sys.stderr)
        return 2
    phase, records, operations = argv[1], int(argv[2]), int(argv[3])
    if argv[0] == "parse":
        out_path, err_path = argv[4], argv[5]
    else:
        # A new directory each time: YCSB appends to existing histograms.
        home = tempfile.mkdtemp(prefix=f"ycsb-{phase}-", dir=argv[4])
        out_path, err_path = os.path.join(home, "out"), os.path.join(home, "err")
        java = argv[argv.index("--") + 1:] + ["-p", f"hdrhistogram.output.path={home}/"]
        with open(out_path, "wb") as out, open(err_path, "wb") as err:
            code = subprocess.run(java, stdin=subprocess.DEVNULL, stdout=out, stderr=err).returncode
        if code:
            print(read(err_path)[-2000:], file=sys.stderr)
            print(f"YCSB ended with code {code}", file=sys.stderr)
            return 1
    stdout, stderr = read(out_path), read(err_path)
    try:
        result = answer(phase, records, operations, stdout, stderr)
    except Wrong as e:
        for line in stderr.splitlines():
            if line.startswith(("WRONG VALUE", "FAILED REQUEST", "READING BACK")):
                print(line, file=sys.stderr)
        print(f"ycsb: {e}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
