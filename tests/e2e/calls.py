"""System calls that canvas handles, as the kernel answers them: the same words with canvas and without."""

from lib.harness import program

from .hostile import C


@program("calls-bad-pointers", timeout_s=60, shares=(25,), normal=(("signal", 25), ("thread", 25)),
         footprint_mib=64, **C)
def bad_pointers(r):
    """EFAULT for a bad pointer to each call that canvas handles, and no signal."""
    return r.call([r.binary("calls"), "bad"], tag="bad").out()
