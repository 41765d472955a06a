"""python3 -m guests PART VARIANT --canvas PATH --place DIR: boots a guest, runs programs in it, and prints
lines of JSON."""

import argparse
import json
import os
import subprocess
import sys

from vm.initramfs import Missing

from . import guests, parts, swaps
from .host import Host, is_direct


class Bench:
    def __init__(self, args, host):
        self.args, self.host, self.place = args, host, args.place
        self.is_direct = is_direct(self.place)
        program = os.path.join(self.place, "analytics")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "analytics.c")
        subprocess.run(["gcc", "-O2", "-static", "-o", program, source], check=True)
        self.initrd = guests.image(self.place, "initrd", ("redis-server", "memcached"), {"/usr/bin/analytics": program},
                                   ("zram", "lz4"))


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("part", choices=parts.RUN)
    p.add_argument("variant", choices=swaps.NAMES)
    p.add_argument("--canvas", required=True)
    p.add_argument("--place", required=True)
    p.add_argument("--seconds", type=float, default=8, help="of each measurement")
    p.add_argument("--available-mib", type=int, default=64, help="memory that a guest's programs have")
    p.add_argument("--memory-mib", type=int, default=320, help="what the guest has without its balloon")
    p.add_argument("--monitor-mib", type=int, default=128, help="local memory of qemu's own under canvas")
    p.add_argument("--data", type=float, default=2.0, help="data by memory")
    p.add_argument("--pool-mib", type=int, default=16, help="pool before donors")
    p.add_argument("--spill-pool-mib", type=int, default=64, help="pool of spill, where no lz4 runs before it")
    p.add_argument("--zswap-percent", type=int, default=20, help="of the guest's memory")
    p.add_argument("--cpus", type=int, default=2, help="processors of a guest")
    p.add_argument("--page-cluster", type=int, default=3, help="of guests: 2^N pages are read ahead (Linux: 3)")
    args = p.parse_args()
    args.accel, _ = guests.accelerator()
    host = Host()
    try:
        for line in parts.RUN[args.part](Bench(args, host), args.variant):
            print(json.dumps({"accel": args.accel, **line}), flush=True)
    except (OSError, ValueError, KeyError, Missing, subprocess.SubprocessError) as e:
        sys.exit(f"{type(e).__name__}: {e}")
    finally:
        host.end_all()


if __name__ == "__main__":
    main()
