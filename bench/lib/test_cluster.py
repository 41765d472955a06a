"""Tests of the bench of a cluster: what it plans and works out, and its client. python3 -m unittest lib.test_cluster"""

import array
import os
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

from lib import contained, paced, plan, rollup
from lib.host import MIB
from lib.load import Redis, Values


class Plans(unittest.TestCase):
    def test_a_seed_says_all(self):
        self.assertEqual(plan.make(7, 5, 768, 18, 100), plan.make(7, 5, 768, 18, 100))
        self.assertNotEqual(plan.make(7, 5, 768, 18, 100).containers, plan.make(8, 5, 768, 18, 100).containers)

    def test_hosts_are_never_fuller_than_a_scheduler_makes_them(self):
        for seed in range(1, 30):
            p = plan.make(seed, 5, 768, 18, 100)
            moments = [c.at_s for c in p.containers]
            for host in range(5):
                most = max(p.used_mib(host, at_s) for at_s in moments)
                # The hungry one has an eighth of the host even where there is less.
                self.assertLessEqual(most, plan.FULL * 768 + (768 // 8 if host == p.burst.host else 0), f"seed {seed}")
            self.assertIn(p.burst, p.containers)
            self.assertNotEqual(p.dies, p.burst.host)
            self.assertTrue(0 < p.dies_s < p.back_s < p.length_s)

    def test_constraints_are_as_many_of_each(self):
        p = plan.make(1, 64, 768, 90, 100)
        percents = [c.percent for c in p.containers if c != p.burst]
        self.assertEqual([percents.count(x) for x in plan.PERCENTS], [30, 30, 30])
        self.assertEqual({c.kind for c in p.containers}, {*plan.SERVERS, *plan.BATCH})


class Rollups(unittest.TestCase):
    def test_quantiles(self):
        found = rollup.quantiles([float(i) for i in range(1000, 0, -1)])
        self.assertEqual((found["answers"], found["p50_us"], found["p99_us"], found["p999_us"], found["max_us"]),
                         (1000, 501.0, 991.0, 1000.0, 1000.0))
        self.assertIsNone(rollup.quantiles([]))

    def test_memory_is_that_of_the_time(self):
        looks = [(-1, [900, 900], [0, 0]), (0, [100, 300], [0, 2 * MIB]), (1, [300, 300], [2 * MIB, 2 * MIB]),
                 (2, [900, 900], [0, 0])]
        found = rollup.utilisation(looks, 1000, 0, 2)
        self.assertEqual(found, {"hosts_pct": [20.0, 30.0], "mean_pct": 25.0, "median_pct": 25.0, "deviation": 5.0,
                                 "fullest_pct": 30.0, "lent_mib_mean": 3, "lent_mib_max": 4})
        with self.assertRaises(ValueError):
            rollup.utilisation(looks, 1000, 5, 6)

    def test_times_of_what_ended_well(self):
        ended = (("a", "ok", 4.0), ("b", "ok", 9.0), ("c", "died", 1.0), ("d", "ok", 1.0))
        found = [{"container": name, "outcome": outcome, "percent": 50, "seconds": s} for name, outcome, s in ended]
        self.assertEqual(rollup.ratios(found, {"a": 2.0, "b": 3.0, "c": 1.0}),
                         {"50": {"containers": 2, "median": 2.5, "max": 3.0}})

    def test_what_is_wrong(self):
        for outcome, far, wrong in (("ok", {}, False), ("oom", {}, False), ("full", {}, False), ("died", {}, False),
                                    ("wrong: x", {}, True), ("failed: 3", {}, True), ("ok", {"corrupt": 1}, True),
                                    ("ok", {"anomalies": 1}, True),
                                    ("ok", {"corrupt": 0, "verify_failures": 0, "failovers": 9}, False)):
            self.assertEqual(rollup.is_wrong({"outcome": outcome, "far": far}), wrong, (outcome, far))


class Limits(unittest.TestCase):
    def test_local_memory_and_pool_are_the_limit(self):
        local, pool = (int(word.removesuffix("K")) for word in contained.canvas_flags(100 * MIB)[1::2])
        self.assertEqual((local + pool, pool), (100 << 10, (100 << 10) // contained.POOL_PART))


class Server(threading.Thread):
    """A redis of 40 keys that answers the `wrong`-th GET with another byte, and hangs up at the `last`-th."""

    def __init__(self, path, size, wrong=None, last=None):
        super().__init__(daemon=True)
        self.values, self.wrong, self.last = Values(size, 1), wrong, last
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()

    def run(self):
        link, _ = self.listener.accept()
        with self.listener, link, link.makefile("rb") as said:
            stored, gets = {}, 0
            while (line := said.readline()).startswith(b"*"):
                words = [said.read(int(said.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:]))]
                if words[0] == b"SET":
                    stored[words[1]] = words[2]
                    link.sendall(Redis.STORED)
                    continue
                gets += 1
                if gets == self.last:
                    return
                value = stored[words[1]]
                link.sendall(Redis.reply(None, b"?" + value[1:] if gets == self.wrong else value))


class Clients(unittest.TestCase):
    def ask(self, **server):
        with tempfile.TemporaryDirectory() as home:
            path, records = os.path.join(home, "s"), os.path.join(home, "records")
            Server(path, 200, **server).start()
            argv = [sys.executable, paced.__file__, "redis", path, records, 40, 200, 1, 500, 0.2, 0]
            done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=60)
            found = array.array("d")
            with open(records, "rb") as f:
                found.frombytes(f.read())
            return done, found

    def test_right_answers(self):
        done, found = self.ask()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn('"checked": 40', done.stdout)
        self.assertEqual(len(found), 2 * 100)
        self.assertTrue(all(us > 0 for us in found[1::2]) and list(found[::2]) == sorted(found[::2]))

    def test_a_wrong_byte_ends_it(self):
        # One of the requests at a pace, and one of the last look at all.
        for wrong in (5, 110):
            self.assertEqual(self.ask(wrong=wrong)[0].returncode, paced.WRONG)

    def test_a_server_that_hangs_up(self):
        done, found = self.ask(last=20)
        self.assertEqual(done.returncode, paced.HUNG_UP)
        self.assertGreater(len(found), 0)


if __name__ == "__main__":
    unittest.main()
