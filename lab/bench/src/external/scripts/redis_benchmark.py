"""Runs redis-benchmark and prints its throughput as the bench reads it.

redis_benchmark.py REDIS-BENCHMARK PORT REQUESTS

As many SETs and GETs, over as many keys.

The figure is the geometric mean of SET's and GET's requests a second.
"""

import csv
import json
import math
import subprocess
import sys
import time


def main(argv):
    if len(argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    program, port, requests = argv
    began = time.monotonic()
    r = subprocess.run([program, "-h", "127.0.0.1", "-p", port, "-n", requests, "-r", requests, "-d", "500", "-c", "20",
                        "-t", "set,get", "--csv"], capture_output=True, text=True)
    seconds = time.monotonic() - began
    if r.returncode:
        print(r.stderr.strip()[-1000:] or f"redis-benchmark ended with code {r.returncode}", file=sys.stderr)
        return 1
    rates = {row[0]: float(row[1]) for row in csv.reader(r.stdout.splitlines()) if len(row) > 1 and row[0] in ("SET", "GET")}
    if sorted(rates) != ["GET", "SET"] or min(rates.values()) <= 0:
        print(f"redis-benchmark said {r.stdout.strip()[:300]!r}", file=sys.stderr)
        return 1
    print(json.dumps({"answer": f"{requests} SET and {requests} GET", "seconds": seconds,
                      "ops_per_s": math.sqrt(rates["SET"] * rates["GET"])}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
