"""The parts of the bench over guests: each boots guests, runs programs in them, and yields lines of results."""

import threading
import time

from . import figures, guests, swaps
from .figures import COUNTERS, between, counters, rates, summary
from .host import MIB
from .store import VALUE_BYTES, Store

SERVERS = {
    "redis": "redis-server --port {port} --bind 0.0.0.0 --protected-mode no --save '' --appendonly no",
    "memcached": "memcached -u root -p {port} -m 4096 -t 2 -o no_lru_crawler",
}
# Bytes of a key with its value, in either server.
KEY_BYTES = VALUE_BYTES + 150
# A server must have exited before swapoff, which the kernel kills when the pages do not fit.
END_REDIS = "kill $(pidof redis-server); while pidof redis-server > /dev/null; do sleep 0.1; done"
# Timeout of a kernel that swaps everything in.
SWAPOFF_S = 30
# Part `spill`: the growth begins and ends at these seconds; the last number is the duration.
GROWS_S, GROWN_S, SPILL_S = 10, 20, 32


class Row:
    """A guest on one of the variants, from its start to its end."""

    def __init__(self, bench, name, data_mib):
        self.bench, self.args, self.name, self.data_mib = bench, bench.args, name, data_mib

    def __enter__(self):
        args = self.args
        self.swap = swaps.make(self.bench, self.name, max(256, int(3 * self.data_mib)))
        self.guest = guests.Guest(self.bench.host, self.bench.place, self.bench.initrd, args.memory_mib,
                                  self.swap.words, args.accel, args.cpus, self.swap.before, self.swap.is_shared,
                                  args.page_cluster)
        self.swap.setup(self.guest)
        # Memory of the guest itself; the rest is for its programs.
        self.own_mib = args.memory_mib - (self.counters()["MemAvailable"] >> 10)
        return self

    def __exit__(self, *_why):
        self.guest.end()

    def counters(self):
        return counters(self.guest.run(COUNTERS, 120))

    def leave(self, mib):
        """Sets the memory that is left for programs."""
        self.swap.limit(min(self.args.memory_mib, self.own_mib + int(mib)))

    def serve(self, kind="redis", keys=None):
        self.guest.serve(SERVERS[kind].format(port=guests.SERVER_PORT))
        return Store(kind, self.guest.port, keys or int(self.data_mib * MIB / KEY_BYTES))

    def measured(self, work):
        """Result of `work`, and table II's figures of that time."""
        before, cpu = self.counters(), self.swap.cpu_s()
        began = time.monotonic()
        found = work()
        took_s = time.monotonic() - began
        cpu = None if cpu is None else round(self.swap.cpu_s() - cpu, 2)
        after = self.counters()
        moved = sum(after[k] - before[k] for k in ("pswpin", "pswpout"))
        return found, {"seconds": round(took_s, 1), **between(before, after, took_s), "server_cpu_s": cpu,
                       "server_us_page": round(1e6 * cpu / moved, 1) if cpu and moved > 1000 else None}

    def memory(self):
        """Memory of the host, and the amount stored."""
        if self.swap.state():
            # The state is written once a second.
            time.sleep(1.1)
        state, now = self.swap.state(), self.counters()
        guest, server, monitor = self.swap.guest_bytes(), self.swap.server_bytes(), self.swap.monitor_bytes()
        return {"guest_mib": guest >> 20, "server_mib": server >> 20, "monitor_mib": monitor >> 20,
                "host_mib": (guest + server + monitor) >> 20,
                "donor_mib": self.swap.donor_bytes() >> 20, "swapped_pages": figures.swapped_pages(now),
                "space_bytes": self.swap.space_bytes(), "far_bytes": state.get("far_bytes", 0),
                "stored_pages": state.get("stored_pages"), "ratio": state.get("ratio"),
                "dead_pct": figures.dead_pct(state["stored_pages"], figures.slots(now)) if state else None}


def redis(bench, name):
    """A redis larger than its guest's memory; then the guest gets more memory (figure 2, tables II and IV)."""
    args = bench.args
    with Row(bench, name, args.data * args.available_mib) as row:
        row.leave(args.available_mib)
        store = row.serve()
        found = {"keys": store.keys}
        rate, loading = row.measured(store.fill)
        found["fill"] = {"keys_s": round(rate), **loading}
        for popularity, writes in (("zipf", 0), ("uniform", 0.5)):
            done, figure = row.measured(lambda p=popularity, w=writes: store.work(args.seconds, p, w))
            found[popularity] = {**summary(done, store.batch, 1), **figure, "per_second": rates(done, store.batch)}
        found["memory"] = row.memory()
        row.leave(args.memory_mib)
        done = store.work(args.seconds, "uniform", 0.5)
        if row.swap.device:
            found["swapoff"] = swapoff(row)
        # The baseline, when no page is swapped out any more.
        whole, series = summary(store.work(args.seconds / 2, "uniform", 0.5), store.batch), rates(done, store.batch)
        found["grown"] = {**summary(done, store.batch), "per_second": series, "whole_ops_s": whole["ops_s"],
                          "recovered_s": figures.recovered_s(series, whole["ops_s"])}
        store.read(range(0, store.keys, 7))
        found["checked_values"] = store.checked
    yield found


def us_page(pages, seconds):
    return round(seconds * 1e6 / pages, 1) if pages > 500 else None


def swapoff(row):
    """Time that the kernel needs to swap everything in, and the part of it that stays stored although nothing
    needs it."""
    before = row.swap.state().get("stored_pages")
    pages, took_s = row.swap.swap_in(SWAPOFF_S)
    found = {"pages": pages, "seconds": round(took_s, 2), "us_page": us_page(pages, took_s)}
    if before:
        time.sleep(3)
        now = row.swap.state()["stored_pages"]
        row.guest.run(f"blkdiscard {row.swap.device}; true", 60)
        time.sleep(3)
        found.update(stored_pages=before, dead_pages=now, left_pages=row.swap.state()["stored_pages"])
    return found


def analytics(row, kind, mib, passes):
    """A program over a data set of this size: duration of its passes in seconds, and its answer."""
    words = row.guest.run(f"analytics {kind} {int(mib)} {passes}", 400).split()
    # The laboratory compares the answers of all variants.
    return {"ready_s": float(words[1]), "run_s": float(words[3]), "answer": words[4]}


def lr(bench, name):
    """Logistic regression together with a redis, and k-means alone (tables I to III)."""
    args = bench.args
    with Row(bench, name, args.available_mib / 3) as row:
        row.leave(args.available_mib)
        store = row.serve()
        store.fill()
        for percent in (100, 75, 50):
            mib = 2 / 3 * args.available_mib * 100 / percent
            yield {"program": "lr", "in_memory_pct": percent, "mib": int(mib), **beside(row, store, mib),
                   "checked_values": store.checked}
        row.guest.run(END_REDIS + "; sleep 2")
        yield {"program": "ended", "memory": row.memory()}
        mib = 2 * args.available_mib
        found, figure = row.measured(lambda: analytics(row, "kmeans", mib, 3))
        yield {"program": "kmeans", "in_memory_pct": 50, "mib": mib, **figure, **found}


def beside(row, store, mib):
    """LR while redis answers Zipf-distributed reads, for as long as LR takes."""
    stop, done, failed = threading.Event(), [], []

    def read():
        try:
            done.extend(store.work(600, "zipf", 0, stop))
        except OSError as e:
            failed.append(e)

    def both():
        reader = threading.Thread(target=read)
        reader.start()
        try:
            return analytics(row, "lr", mib, 3)
        finally:
            stop.set()
            reader.join()

    found, figure = row.measured(both)
    if failed:
        raise failed[0]
    return {**figure, **found, "redis": summary(done, store.batch), "memory": row.memory()}


def spill(bench, name):
    """A redis that grows by half while it is read: the pool reaches its limit, and pages are demoted (figures
    9 to 11)."""
    args = bench.args
    keys = int(args.data * args.available_mib * MIB / KEY_BYTES)
    with Row(bench, name, 1.5 * args.data * args.available_mib) as row:
        row.leave(args.available_mib)
        store = row.serve(keys=keys + keys // 2)
        store.fill(0, keys)
        # Four fifths of the pool of the other variants are then full when half of the growth is done.
        wanted_mib = max(16, int(row.memory()["space_bytes"] / MIB * 1.25 / 0.8)) if name == "lz4" else None
        grown = Grower(store, keys)
        (done, figure) = row.measured(lambda: store.work(SPILL_S, "uniform", 0.5, each=grown.step, below=keys))
        series = rates(done, store.batch)
        found = {"wanted_pool_mib": wanted_mib, "pool_mib": getattr(row.swap, "pool_mib", None), **figure,
                 "per_second": series, "memory": row.memory(), "grown_keys": grown.at - keys, **summary(done, store.batch),
                 "dip_pct": figures.dip_pct(series, GROWS_S, GROWN_S + 2),
                 "growth_ops_s": round(sum(series[GROWS_S:GROWN_S + 2]) / (GROWN_S + 2 - GROWS_S)),
                 "after_ops_s": round(sum(series[GROWN_S + 2:]) / max(1, len(series[GROWN_S + 2:])))}
        store.read(range(0, grown.at, 7))
        yield {**found, "checked_values": store.checked}


class Grower:
    """Stores more keys between the batches, at a constant rate from GROWS_S to GROWN_S."""

    def __init__(self, store, first):
        self.store, self.first, self.at = store, first, first

    def step(self, gone_s):
        share = min(1.0, max(0.0, (gone_s - GROWS_S) / (GROWN_S - GROWS_S)))
        wanted = self.first + int(share * (self.store.keys - self.first))
        if wanted > self.at:
            # At most a batch at once, so that the rate grows in small steps.
            last = min(wanted, self.at + 64)
            self.store.fill(self.at, last)
            self.at = last


def infiniswap(bench, name, program):
    """A server with 100, 75 and 50 % of its working set local (Infiniswap's applications)."""
    args = bench.args
    with Row(bench, name, args.available_mib * args.data) as row:
        store = row.serve(program)
        before = row.counters()["MemAvailable"]
        store.fill()
        set_mib = (before - row.counters()["MemAvailable"]) >> 10
        for percent in (100, 75, 50):
            if percent < 100:
                row.leave(set_mib * percent / 100)
            store.work(args.seconds / 3, "zipf", 0.05)
            done, figure = row.measured(lambda: store.work(args.seconds, "zipf", 0.05))
            yield {"program": program, "in_memory_pct": percent, "set_mib": set_mib, **summary(done, store.batch),
                   **figure, "memory": row.memory(), "checked_values": store.checked}


RUN = {"redis": redis, "lr": lr, "spill": spill, "redis-set": lambda b, name: infiniswap(b, name, "redis"),
       "memcached-set": lambda b, name: infiniswap(b, name, "memcached")}
