"""Tests of the commands to guests and of the figures computed from their output: PYTHONPATH=tests:lab python3
-m unittest guests.test_guests."""

import io
import random
import statistics
import unittest
from unittest import mock

from guests import figures, guests, parts, store, swaps

VMSTAT = """pswpin 120
pswpout 7
zswpin 3
cpu  100 1 50 800 40 0 3 2 55 0
MemAvailable:     1024 kB
SwapTotal:        8192 kB
SwapFree:         4096 kB
SwapCached:       1024 kB
"""
SMAPS = """00400000-7fff00000000 ---p 00000000 00:00 0 [rollup]
Rss:               90000 kB
Pss:               50000 kB
Pss_Anon:          20000 kB
Pss_File:           9000 kB
Pss_Shmem:         21000 kB
"""


class Figures(unittest.TestCase):
    def test_counters_are_read_and_subtracted(self):
        now = figures.counters(VMSTAT)
        # 55 jiffies of guests are in the 100 of user time.
        self.assertEqual((now["cpu"], now["iowait"], now["pswpin"], now["MemAvailable"]), (996, 40, 120, 1024))
        self.assertEqual((figures.slots(now), figures.swapped_pages(now)), (1024, 768))
        later = {**now, "cpu": now["cpu"] + 200, "iowait": 90, "pswpin": 1120, "pswpout": 507, "zswpin": 3}
        self.assertEqual(figures.between(now, later, 2.0),
                         {"iowait_pct": 25.0, "pages_in_s": 500, "pages_out_s": 250, "zswap_in_s": 0})

    def test_memory_is_of_one_kind(self):
        self.assertEqual(figures.memory_bytes(SMAPS, "Anon"), 20000 << 10)
        self.assertEqual(figures.memory_bytes(SMAPS, "Shmem"), 21000 << 10)
        self.assertEqual(figures.memory_bytes("", "Anon"), 0)

    def test_percentiles_are_those_of_a_count(self):
        rng = random.Random(1)
        for _ in range(200):
            values = sorted(rng.randrange(50) for _ in range(rng.randrange(1, 60)))
            share = rng.choice((0.01, 0.5, 0.9, 0.99, 1.0))
            got = figures.percentile(values, share)
            self.assertGreaterEqual(sum(v <= got for v in values), share * len(values))
            self.assertLess(sum(v < got for v in values), share * len(values))
        self.assertIsNone(figures.percentile([], 0.5))

    def test_rates_count_whole_seconds_only(self):
        done = [(0.4, 10.0), (0.9, 30.0), (1.2, 20.0), (2.6, 50.0)]
        self.assertEqual(figures.rates(done, 16), [32, 16])
        self.assertEqual(figures.rates([], 16), [])
        self.assertEqual(figures.summary(done, 16, 1.0), {"ops_s": 20, "p50_us": 20, "p99_us": 50, "longest_us": 50})
        self.assertEqual(figures.summary([], 16)["ops_s"], 0)

    def test_a_dip_is_the_worst_of_three_seconds_beside_the_median(self):
        series = [100, 90, 110, 100, 60, 30, 60, 100, 5]
        self.assertEqual(figures.dip_pct(series, 4, 8), 50.0)
        self.assertIsNone(figures.dip_pct(series, 0, 8))
        self.assertIsNone(figures.dip_pct(series, 4, 6))
        self.assertLess(figures.dip_pct([100] * 4 + [200] * 4, 4, 8), 0)

    def test_recovery_is_the_first_time_near_what_is_usual(self):
        self.assertEqual(figures.recovered_s([10, 20, 30, 90, 95, 100, 100], 100), 3)
        self.assertEqual(figures.recovered_s([100, 100, 100], 100), 0)
        self.assertIsNone(figures.recovered_s([10] * 9, 100))

    def test_dead_pages_are_those_without_a_slot(self):
        self.assertEqual(figures.dead_pct(1000, 750), 25.0)
        self.assertEqual(figures.dead_pct(1000, 1200), 0.0)
        self.assertIsNone(figures.dead_pct(0, 0))



class Accelerator(unittest.TestCase):
    def test_kvm_needs_a_processor_for_it(self):
        with mock.patch("os.access", return_value=True):
            self.assertEqual(guests.accelerator("auto", "flags : fpu svm sse")[0], "kvm")
            self.assertEqual(guests.accelerator("auto", "flags : fpu svm_lock sse")[0], "tcg")
        with mock.patch("os.access", return_value=False):
            self.assertEqual(guests.accelerator("auto", "flags : vmx")[0], "tcg")
        self.assertEqual(guests.accelerator("kvm", "")[0], "kvm")


class Server:
    """A fake key-value server behind a socket, over a dictionary."""

    def __init__(self, protocol, wrong=None):
        self.protocol, self.kept, self.wrong, self.out = protocol, {}, wrong, b""

    def sendall(self, request):
        stream, answers = io.BytesIO(request), []
        while head := stream.readline():
            if head[:1] == b"*":
                words = []
                for _ in range(int(head[1:])):
                    words.append(stream.read(int(stream.readline()[1:])))
                    stream.read(2)
                key = int(words[1][1:])
                if words[0] == b"SET":
                    self.kept[key] = words[2]
                answers.append(b"+OK\r\n" if words[0] == b"SET" else self._reply(key))
            else:
                words = head.split()
                key = int(words[1][1:])
                if words[0] == b"set":
                    self.kept[key] = stream.read(int(words[4]))
                    stream.read(2)
                answers.append(b"STORED\r\n" if words[0] == b"set" else self._reply(key))
        self.out += b"".join(answers)

    def _reply(self, key):
        return self.protocol.reply(key, self.wrong if key == 77 and self.wrong else self.kept[key])

    def recv_into(self, view):
        n = min(len(view), len(self.out), 777)
        view[:n], self.out = self.out[:n], self.out[n:]
        return n


class Stores(unittest.TestCase):
    def made(self, kind, **o):
        server = Server(store.PROTOCOLS[kind], **o)
        with mock.patch.object(store.Store, "_connect", return_value=server):
            return store.Store(kind, 0, 200), server

    def test_reads_are_compared_with_what_was_written_last(self):
        for kind in store.PROTOCOLS:
            one, server = self.made(kind)
            one.fill()
            done = one.work(0.3, "uniform", 0.5)
            self.assertGreater(len(done), 3)
            self.assertGreater(sum(one.versions), 10)
            one.read(range(200))
            self.assertEqual(server.kept[9], one.values.value(9, one.versions[9]))
            self.assertEqual(statistics.fmean(len(v) for v in server.kept.values()), store.VALUE_BYTES)

    def test_another_value_is_noticed(self):
        for kind in store.PROTOCOLS:
            one, _ = self.made(kind, wrong=b"?" * store.VALUE_BYTES)
            one.fill()
            one.read(range(77))
            with self.assertRaises(store.Wrong):
                one.read([77])

    def test_work_keeps_below_its_bound(self):
        one, _ = self.made("redis")
        one.fill(0, 100)
        one.work(0.2, "zipf", 0.3, below=100)
        self.assertEqual(sum(one.versions[100:]), 0)


class Grown(unittest.TestCase):
    def test_growth_is_even_and_whole(self):
        kept = mock.Mock(keys=3000, fill=mock.Mock())
        grower = parts.Grower(kept, 2000)
        for tenth in range(int(10 * parts.SPILL_S)):
            grower.step(tenth / 10)
            if tenth < 10 * parts.GROWS_S:
                self.assertEqual(grower.at, 2000)
        self.assertEqual(grower.at, 3000)
        filled = [call.args for call in kept.fill.call_args_list]
        self.assertEqual([a for a, _ in filled], [2000] + [b for _, b in filled][:-1])
        self.assertLessEqual(max(b - a for a, b in filled), 64)


if __name__ == "__main__":
    unittest.main()
