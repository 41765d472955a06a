"""Runs a command whose programs get no thread until a file exists.

`late_thread.py FILE PROGRAM COMMAND...`: stops every thread that a process of PROGRAM (a path) creates at its
start, until FILE exists, so that a background thread does nothing before that, even on an idle machine. Uses
ptrace; the command keeps this process's pid.
"""

import ctypes
import os
import signal
import sys
import time

SEIZE, CONT, EVENT_STOP = 0x4206, 7, 128
# PTRACE_O_TRACEFORK, TRACEVFORK, TRACECLONE, TRACEEXEC.
OPTIONS = 2 | 4 | 8 | 16
WALL = 0x40000000
PR_SET_PTRACER = 0x59616D61

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def ptrace(request, pid, data):
    return libc.ptrace(request, pid, None, data) == 0


def is_thread_of(program, tid):
    try:
        with open(f"/proc/{tid}/status") as f:
            tgid = next(int(line.split()[1]) for line in f if line.startswith("Tgid:"))
        return tgid != tid and os.path.realpath(f"/proc/{tgid}/exe") == os.path.realpath(program)
    except OSError:
        return False


def trace(pid, release, program):
    """Stops new threads until the file exists; the end of this process releases all of them."""
    while not os.path.exists(release):
        try:
            tid, status = os.waitpid(-1, WALL | os.WNOHANG)
        except ChildProcessError:
            return
        if tid == 0:
            time.sleep(0.0002)
        elif os.WIFSTOPPED(status):
            event, sig = status >> 16, os.WSTOPSIG(status)
            if event == EVENT_STOP and is_thread_of(program, tid):
                continue
            ptrace(CONT, tid, 0 if event or sig == signal.SIGSTOP else sig)


def main():
    release, program, command = sys.argv[1], sys.argv[2], sys.argv[3:]
    me = os.getpid()
    ready, go = os.pipe()
    tracer = os.fork()
    if tracer == 0:
        os.setsid()
        seized = ptrace(SEIZE, me, OPTIONS)
        os.write(go, b"y" if seized else b"n")
        os.close(go)
        if seized:
            trace(me, release, program)
        os._exit(0)
    libc.prctl(PR_SET_PTRACER, tracer, 0, 0, 0)
    os.close(go)
    if os.read(ready, 1) != b"y":
        sys.exit("late_thread.py: ptrace is not allowed here")
    os.close(ready)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
