"""Programs with a pool that is far too small, and far memory on a disk below it."""

from lib.harness import deep

from . import hostile, languages, servers, workloads  # noqa: F401  (they register what is run again)

deep("hammer", normal=(("signal", 25), ("thread", 25)))
deep("hammer-no-fork", normal=(("signal", 25),))
deep("window-model", normal=(("signal", 25), ("thread", 50)))
deep("memory-forks", normal=(("signal", 25), ("thread", 25)))
deep("memory-threads", normal=(("signal", 25),))
deep("python-fork", normal=(("signal", 25), ("thread", 50)))
deep("redis", normal=(("signal", 25), ("thread", 25)), shares=(25, 50))
deep("postgres", normal=(("signal", 25),))
deep("java-g1", normal=(("signal", 25),))
deep("workload-random-write", normal=(("signal", 25), ("thread", 25)))
deep("workload-quicksort", normal=(("signal", 25),))
