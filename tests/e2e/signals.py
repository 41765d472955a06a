"""Signals at their edges: SIGBUS and SIGSYS, which canvas uses, and the stacks that handlers run on."""

from lib.harness import program

from . import hostile


def edges(part, timeout_s=60, normal=(("signal", 50), ("thread", 50)), **kw):
    @program(f"signal-{part}", timeout_s=timeout_s, shares=(50,), normal=normal,
             footprint_mib=24, **{**hostile.C, **kw})
    def test(r):
        return r.call([r.binary("signal_edges"), part, 16], tag=part).out()

    return test


for _part in ("altstack", "blocked", "flags", "restart", "locals", "coroutines", "small-stack", "forks"):
    edges(_part)
edges("generations", normal=(("signal", 50),))
