"""System calls that canvas handles return what the kernel returns: the same output with canvas and without."""

from lib.harness import program

from .hostile import C


@program("calls-bad-pointers", timeout_s=60, shares=(25,), normal=(("signal", 25), ("thread", 25)),
         footprint_mib=64, **C)
def bad_pointers(r):
    """EFAULT, without a signal, for a bad pointer to each call that canvas handles."""
    return r.call([r.binary("calls"), "bad"], tag="bad").out()
