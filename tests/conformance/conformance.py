"""The frame of the suite's Python cases: functions with one expectation each, in processes of their own (README.md)."""

import ctypes
import errno
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback

PAGE = mmap.PAGESIZE
MIB = 1 << 20
# More than fits into the limit of the managed runs with the interpreter.
MUCH = 12 * MIB
EVERYBODY, ROOT_ALONE, USER_ALONE = range(3)
CASE_TIMEOUT_S = 90
EXIT_SKIP = 77
MADV_PAGEOUT = 21
PATTERN = bytes(range(256)) * (PAGE // 256)

_cases = {}
_libc = ctypes.CDLL(None, use_errno=True)


def case(fn, users=EVERYBODY):
    """Registers a case that is run as root and as an ordinary user."""
    if fn.__name__ in _cases:
        raise ValueError(f"two cases are named {fn.__name__}")
    _cases[fn.__name__] = (fn, users)
    return fn


def root_case(fn):
    return case(fn, ROOT_ALONE)


def user_case(fn):
    return case(fn, USER_ALONE)


def expect(condition, why):
    if not condition:
        raise AssertionError(why)


def same(got, want, what="the answer"):
    expect(got == want, f"{what} is {str(got)[:200]}, and not {str(want)[:200]}")


def error(number, call, *arguments, **named):
    """The call fails with this error."""
    try:
        got = call(*arguments, **named)
    except OSError as e:
        same(errno.errorcode.get(e.errno, e.errno), errno.errorcode[number], f"the error of {call.__name__}")
        return
    raise AssertionError(f"{call.__name__} gives {str(got)[:100]}, and not {errno.errorcode[number]}")


def skip(why):
    """For what the kernel or the machine lacks, never for what canvas lacks: that stands in `gaps`."""
    print(why, file=sys.stderr, flush=True)
    os._exit(EXIT_SKIP)


def child(fn, *arguments):
    """A child by fork that runs `fn` and exits with 0; its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            fn(*arguments)
            code = 0
        except BaseException:
            _explain()
        finally:
            os._exit(code)
    return pid


def ended(pid):
    """The exit code of a child, or -n where signal n ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def managed():
    """Whether canvas is there. Only helpers of this file may ask: a case expects one thing."""
    return "CANVAS_SEGMENT_FD" in os.environ


def _span(address, size):
    begin = address & -PAGE
    return begin, ((address + size + PAGE - 1) & -PAGE) - begin


def _place(buffer):
    """Address and size of what a buffer holds."""
    if isinstance(buffer, bytes):
        return ctypes.cast(ctypes.c_char_p(buffer), ctypes.c_void_p).value, len(buffer)
    view = memoryview(buffer)
    return ctypes.addressof(ctypes.c_char.from_buffer(view)), view.nbytes


def away(buffer):
    """Makes the pages of a buffer (of 2 MiB or more) leave local memory, but for the last 256 KiB that a process keeps;
    the buffer. Without canvas nothing happens."""
    if not managed():
        return buffer
    begin, size = _span(*_place(buffer))
    there = (ctypes.c_ubyte * (size // PAGE))()
    for _ in range(2000):
        _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), MADV_PAGEOUT)
        if _libc.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(size), there) == 0:
            if sum(byte & 1 for byte in there) <= 64:
                return buffer
        signal.sigtimedwait([], 0.005)
    raise AssertionError(f"{sum(byte & 1 for byte in there)} of {len(there)} pages did not leave")


def content(size, salt=0):
    """`size` bytes that tell their place."""
    blocks = [bytes([salt & 255]) + (i + salt).to_bytes(7, "little") + PATTERN[8:] for i in range(-(-size // PAGE))]
    return b"".join(blocks)[:size]


def absent(size, salt=0):
    """A bytearray of `content`, that is away."""
    return away(bytearray(content(size, salt)))


def expect_content(buffer, salt=0):
    """The buffer has what `content` says."""
    size = len(buffer)
    for at in range(0, size, PAGE):
        n = min(PAGE, size - at)
        want = (bytes([salt & 255]) + (at // PAGE + salt).to_bytes(7, "little") + PATTERN[8:])[:n]
        expect(bytes(buffer[at:at + n]) == want, f"byte {at} and what follows it are wrong")


def _explain():
    """One line that says where and why, the last on stderr."""
    kind, e, trace = sys.exc_info()
    line = 0
    for frame in traceback.extract_tb(trace):
        if os.path.dirname(frame.filename) == os.path.dirname(os.path.abspath(__file__)) \
                and os.path.basename(frame.filename) != "conformance.py":
            line = frame.lineno
    text = " ".join(str(e).split())
    print(f"line {line}: {text if kind is AssertionError else f'{kind.__name__}: {text}'}", file=sys.stderr, flush=True)


def _run(name):
    """Runs one case in a process, directory and session of its own; prints its line; whether it is right."""
    home = tempfile.mkdtemp(prefix="case-", dir=".")
    with tempfile.TemporaryFile() as out:
        argv = [sys.executable, "-B", os.path.abspath(sys.argv[0]), "--case", name]
        p = subprocess.Popen(argv, cwd=home, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                             env={**os.environ, "TMPDIR": os.path.abspath(home)})
        try:
            p.wait(CASE_TIMEOUT_S)
            hung = False
        except subprocess.TimeoutExpired:
            hung = True
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()
        shutil.rmtree(home, ignore_errors=True)
        out.seek(0)
        said = out.read().decode(errors="replace").strip().splitlines()
    last = said[-1][:600] if said else ""
    if not hung and p.returncode == 0:
        print(f"ok {name}", flush=True)
        return True
    if not hung and p.returncode == EXIT_SKIP:
        print(f"skip {name}: {last}", flush=True)
        return True
    if hung:
        last = f"not finished after {CASE_TIMEOUT_S} s {last}"
    elif p.returncode < 0:
        last = f"ended by signal {-p.returncode} {last}"
    print(f"FAIL {name}: {last or f'exit code {p.returncode}'}", flush=True)
    return False


def main():
    """Without arguments, or with names of cases, runs them; --list prints the names."""
    words = sys.argv[1:]
    if words == ["--list"]:
        print("\n".join(_cases))
        return
    if words[:1] == ["--case"]:
        try:
            _cases[words[1]][0]()
        except Exception:
            _explain()
            sys.exit(1)
        return
    other = USER_ALONE if os.geteuid() == 0 else ROOT_ALONE
    right = [_run(name) for name, (_, users) in _cases.items() if users != other and (not words or name in words)]
    sys.exit(0 if all(right) else 1)
