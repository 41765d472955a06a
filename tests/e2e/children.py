"""Programs below `canvas run` with libraries, filters and tools of their own, and the systems that canvas
runs on."""

import os
import re
import shutil
import subprocess

from lib.harness import ONCE, Skip, check

from .launching import PYTHON, both, command, managed_only, within

# Holds more memory than the limit, and prints a sum that is wrong if a page is.
PAGES = ("import hashlib, sys; b = [bytes([i % 251]) * 65536 + i.to_bytes(8, 'little') for i in range(400)]; "
         "print(hashlib.md5(b''.join(b)).hexdigest())")
# Installs a filter of (op, jt, jf, k), then executes the remaining arguments.
FILTER = r"""
import ctypes, os, struct, sys
ops = eval(sys.argv[1])
code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *op) for op in ops))
program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(ops), ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execvp(sys.argv[2], sys.argv[2:])
"""
MDWE = r"""
import ctypes, os, sys
assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0
os.execvp(sys.argv[1], sys.argv[1:])
"""
KILL, ALLOW, EPERM = 0x80000000, 0x7FFF0000, 0x00050001


def one_line(r, p, answer, word, code=0):
    r.same((p.returncode, p.stdout), (code, answer), f"code and output ({p.stderr})")
    lines = p.stderr.splitlines()
    r.require(len(lines) == 1 and word in lines[0] and "unmanaged" in lines[0], f"lines about {word}: {p.stderr!r}")


@check("preload-joined", as_user=True, normal=ONCE)
def preload_joined(r):
    """A library that a program names for its children is loaded in addition to canvas's, wherever the
    environment comes from."""
    managed_only(r)
    theirs, ours = "libutil.so.1", "canvas-preload"
    look = "cat /proc/self/maps"
    cases = [
        (f"LD_PRELOAD={theirs} {look}", True),
        (f"export LD_PRELOAD={theirs}; sh -c '{look}'", True),
        (f"env -i LD_PRELOAD={theirs} sh -c '{look}'", True),
        (f"LD_PRELOAD=\"$LD_PRELOAD:{theirs}\" {look}", True),
        (f"LD_PRELOAD=\"{theirs} libdl.so.2\" {look}", True),
        (f"unset LD_PRELOAD; {look}", False),
        (f"env -i {look}", False),
        (f"LD_PRELOAD= {look}", False),
    ]
    for script, has_theirs in cases:
        out = within(r, [*command(r), "sh", "-c", script])
        r.same((out.returncode, out.stderr), (0, ""), script)
        r.require(ours in out.stdout, f"{script}: canvas is not there")
        r.same(theirs.split(".")[0] in out.stdout, has_theirs, f"{script}: theirs")
    out = within(r, [*command(r), "sh", "-c", f"LD_PRELOAD={theirs} env | grep ^LD_PRELOAD="])
    r.require(re.fullmatch(rf"LD_PRELOAD=/proc/self/fd/\d+:{theirs}\n", out.stdout), f"order: {out.stdout}")
    # Too long to append canvas's library: the program's list stays, and nothing is cut off.
    long = ":".join(["/nonexistent/" + "x" * 200] * 30)
    out = within(r, [*command(r), "sh", "-c", f"LD_PRELOAD={long} env 2>/dev/null | grep -c ^LD_PRELOAD={long}$"])
    r.same(out.stdout, "1\n", "a long one")


@check("write-xor-execute", as_user=True, normal=ONCE)
def write_xor_execute(r):
    """Under MemoryDenyWriteExecute= programs are managed, with prepared code and without."""
    managed_only(r)
    limited = [r.session.canvas, "run", "--local", "16M", "--mode", r.mode, "--require", "--"]
    program = [PYTHON, "-I", "-c", PAGES]
    plain = within(r, program)
    # systemd's filter: mmap with WRITE and EXEC, mprotect and pkey_mprotect with EXEC, shmat with SHM_EXEC.
    load = lambda arg: (0x20, 0, 0, 16 + 8 * arg)  # noqa: E731
    ops = [(0x20, 0, 0, 0), (0x15, 0, 4, 9), load(2), (0x54, 0, 0, 6), (0x15, 0, 6, 6), (6, 0, 0, EPERM),
           (0x15, 1, 0, 10), (0x15, 0, 3, 329), load(2), (0x45, 0, 1, 4), (6, 0, 0, EPERM), (6, 0, 0, ALLOW)]
    copies = r.path("libraries")
    os.mkdir(copies)
    os.chmod(copies, 0o755)
    for name in ("libc.so.6",):
        shutil.copy(f"/lib/x86_64-linux-gnu/{name}", copies)
    for env in ({}, {"LD_LIBRARY_PATH": copies}):
        for wrap in ([PYTHON, "-c", MDWE], [PYTHON, "-c", FILTER, repr(ops)]):
            p = within(r, [*wrap, *limited, *program], env=env)
            if "AssertionError" in p.stderr and wrap[2] is MDWE:
                raise Skip("this kernel has no PR_SET_MDWE")
            r.same((p.returncode, p.stdout, p.stderr), (0, plain.stdout, ""), f"{env}: {wrap[2][:40]}")


@check("killing-filter", as_user=True, normal=ONCE)
def killing_filter(r):
    """A sandbox's filter that kills on unknown calls: the programs it executes run nevertheless."""
    managed_only(r)
    for number in (323, 319):
        ops = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, KILL), (6, 0, 0, ALLOW)]
        argv = [PYTHON, "-c", FILTER, repr(ops), "echo", "hello"]
        one_line(r, within(r, [*command(r), *argv]), "hello\n", "seccomp filter")
        # Forks of the program with the filter get a message too; programs without such a filter are managed.
        script = f"import subprocess, sys; subprocess.run(sys.argv[1:]); subprocess.run(['grep', '-c', 'canvas-preload', '/proc/self/maps'])"
        p = within(r, [*command(r), PYTHON, "-c", script, *argv])
        first, count = p.stdout.split("\n")[:2]
        r.require(first == "hello" and int(count) > 0, f"beside a sandbox: {p.stdout}{p.stderr}")


@check("strict-mode", as_user=True, normal=ONCE)
def strict_mode(r):
    """Strict mode, in which no page could be faulted in, is refused with one line, and the program continues."""
    managed_only(r)
    script = ("import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.prctl(22, 1), ctypes.get_errno()); "
              "print(c.syscall(317, 0, 0, None), ctypes.get_errno())")
    p = within(r, [*command(r), PYTHON, "-c", script])
    r.same((p.returncode, p.stdout), (0, "-1 22\n-1 22\n"), "prctl and seccomp")
    r.require("strict mode of seccomp is refused" in p.stderr, f"what is told: {p.stderr}")


@check("sanitizers", as_user=True, normal=ONCE, timeout_s=120)
def sanitizers(r):
    """A program built with a sanitizer runs unmanaged after one line, as the command and as a child."""
    managed_only(r)
    source = r.write("s.c", "#include <stdio.h>\n#include <stdlib.h>\nint main(void) { char *p = calloc(1, 1 << 20);"
                     " FILE *f = fopen(\"/proc/self/stat\", \"r\"); p[5] = fgetc(f) > 0; fclose(f);"
                     " printf(\"%d\\n\", p[5] + 1); free(p); return 4; }\n")
    for kind, name in (("address", "AddressSanitizer"), ("thread", "ThreadSanitizer"), ("leak", "LeakSanitizer")):
        binary = r.path(kind)
        if subprocess.run(["gcc", f"-fsanitize={kind}", "-g", "-o", binary, source], capture_output=True).returncode:
            raise Skip(f"gcc has no {kind} sanitizer here")
        os.chmod(binary, 0o755)
        plain = within(r, [binary])
        r.same((plain.returncode, plain.stdout), (4, "2\n"), "plain")
        one_line(r, within(r, [*command(r), binary]), "2\n", name, 4)
        one_line(r, within(r, [*command(r), "sh", "-c", f"{binary}; exit $?"]), "2\n", name, 4)
    undefined = r.path("undefined")
    subprocess.run(["gcc", "-fsanitize=undefined", "-o", undefined, source], check=True)
    both(r, [undefined])


@check("tools", as_user=True, normal=ONCE, timeout_s=120)
def tools(r):
    """valgrind, rr and similar tools run a program unmanaged, after one line."""
    managed_only(r)
    program = ["sh", "-c", "echo x; exit 3"]
    for name, variable in (("rr", "RUNNING_UNDER_RR"), ("DynamoRIO", "DYNAMORIO_RUNUNDER")):
        p = within(r, [*command(r), "env", f"{variable}=1", *program])
        one_line(r, p, "x\n", name, 3)
    if not shutil.which("valgrind"):
        raise Skip("valgrind is not installed")
    one_line(r, within(r, [*command(r), "valgrind", "-q", *program]), "x\n", "valgrind", 3)


@check("limits-over-exec", as_user=True, normal=ONCE)
def limits_over_exec(r):
    """Limits on address space are lifted at an exec, whoever set them."""
    managed_only(r)
    both(r, ["bash", "-c", "ulimit -Sv 800000; ulimit -Sd 700000; ulimit -Sv; bash -c 'ulimit -Sv; ulimit -Sd'; "
             "exec bash -c 'ulimit -Sv; exec nonexistent-program 2>/dev/null || ulimit -Sv'"])
    script = "import mmap\ntry:\n    print(len(mmap.mmap(-1, 2 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)))\nexcept (OSError, MemoryError) as e:\n    print(e)"
    both(r, ["bash", "-c", f"ulimit -Sv 1000000; exec {PYTHON} -I -c '{script}'"])


@check("no-proc", normal=ONCE)
def no_proc(r):
    """Without /proc the loader does not find the library: the program runs, without a message."""
    managed_only(r)
    enter = ["unshare", "-m", "--propagation", "private"]
    if subprocess.run([*enter, "true"], capture_output=True).returncode:
        raise Skip("needs the right to make namespaces")
    script = "mount -t tmpfs none /proc && exec sh -c 'echo $LD_PRELOAD; ls /proc; exit 6'"
    p = within(r, [*enter, *command(r), "sh", "-c", script])
    r.same((p.returncode, p.stdout, p.stderr), (6, "\n", ""), "without /proc")


# The version that the documents promise.
GLIBC = (2, 31)


def newest(path):
    """The newest glibc version that a file requires, and the libraries it needs."""
    said = subprocess.run(["readelf", "-W", "-V", "-d", path], capture_output=True, text=True, check=True).stdout
    versions = [tuple(map(int, v.split("."))) for v in re.findall(r"\bGLIBC_([\d.]+)", said)]
    return max(versions), set(re.findall(r"Shared library: \[(.*?)\]", said))


@check("portable", normal=ONCE)
def portable(r):
    """The command requires no newer C library than promised, the library an even older one, and few other
    libraries."""
    managed_only(r)
    if not shutil.which("readelf"):
        raise Skip("readelf is not installed")
    version, needed = newest(r.session.canvas)
    r.require(version <= GLIBC, f"the command needs glibc {version}")
    r.same(needed - {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"},
           set(), "what else the command needs")
    library = r.path("library.so")
    p = within(r, [*command(r), "sh", "-c", f"cat /proc/self/fd/$CANVAS_PRELOAD_FD > {library}"])
    r.same(p.returncode, 0, p.stderr)
    version, needed = newest(library)
    # Old enough to load on older systems, where the library itself reports why it does nothing.
    r.require(version <= (2, 17), f"the library needs glibc {version}")
    r.same(needed, {"libc.so.6", "ld-linux-x86-64.so.2"}, "what the library needs")
