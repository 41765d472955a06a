"""`canvas run` between its caller and the program: the program sees the caller's settings as without canvas."""

import os
import signal
import socket
import subprocess
import tempfile
import time

from lib.harness import ONCE, Skip, check

# An interpreter that an ordinary user may execute.
PYTHON = "/usr/bin/python3"
# Settings inherited from the caller, as the kernel reports them.
SEEN = r"""
import os, resource, signal, sys
status = {l.split(":")[0]: l.split(":")[1].strip() for l in open("/proc/self/status")}
print([status[k] for k in ("SigIgn", "SigBlk", "Groups", "CapInh", "Cpus_allowed")])
print([resource.getrlimit(getattr(resource, "RLIMIT_" + n)) for n in
       ("CORE", "CPU", "FSIZE", "NOFILE", "NPROC", "STACK", "MEMLOCK", "AS", "DATA", "SIGPENDING", "MSGQUEUE", "NICE",
        "RTPRIO", "RTTIME")])
print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), open("/proc/self/oom_score_adj").read().strip())
print(os.umask(0), os.getcwd(), os.getsid(0), sorted(map(int, os.listdir("/proc/self/fd")))[:3])
print([os.path.exists(f"/proc/self/fd/{fd}") and os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)][:1])
"""


def command(r, *more):
    """The command prefix `canvas run` of this run; empty in the plain one."""
    if not r.managed:
        return []
    return [r.session.canvas, "run", "--local", "64M", "--mode", r.mode, *more, "--"]


def within(r, argv, setup=None, **o):
    return subprocess.run([*r._user_prefix(), *argv], preexec_fn=setup, cwd=r.dir, env=r._environment(o.pop("env", {})),
                          capture_output=True, text=True, timeout=60, **o)


def both(r, argv, setup=None, **o):
    """Output and exit status of `argv`, plain and managed, which must be equal."""
    plain = within(r, argv, setup, **o)
    ours = within(r, [*command(r), *argv], setup, **o)
    what = " ".join(argv)[:80]
    r.same((ours.returncode, ours.stdout, ours.stderr), (plain.returncode, plain.stdout, plain.stderr), what)
    return ours


def managed_only(r):
    if not r.managed:
        raise Skip("says nothing without canvas")


@check("launch-inherits", as_user=True, normal=ONCE)
def inherits(r):
    """Dispositions, mask, limits, priorities, closed streams: the program has its caller's, not canvas's."""
    managed_only(r)
    import resource

    def ignores():
        for s in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGHUP, signal.SIGRTMIN + 2):
            signal.signal(s, signal.SIG_IGN)

    def blocks():
        signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGTERM, signal.SIGUSR1, signal.SIGRTMIN + 5})

    def limits():
        for name, soft in (("CORE", 0), ("CPU", 50), ("STACK", 4 << 20), ("AS", 3 << 30), ("DATA", 2 << 30)):
            resource.setrlimit(getattr(resource, "RLIMIT_" + name), (soft, resource.RLIM_INFINITY
                               if name in ("AS", "DATA") else soft))
        os.nice(3)
        with open("/proc/self/oom_score_adj", "w") as f:
            f.write("500")

    program = [PYTHON, "-I", "-c", SEEN]
    for setup in (None, ignores, blocks, limits):
        both(r, program, setup)
    for fd in (0, 1):
        p = both(r, ["sh", "-c", f"test -e /proc/$$/fd/{fd}"], lambda fd=fd: os.close(fd))
        r.same(p.returncode, 1, f"descriptor {fd} is closed")


@check("launch-ends", as_user=True, normal=ONCE)
def ends(r):
    """The caller of canvas sees how the program ended, and has no child left; a pipeline ends with its reader."""
    managed_only(r)
    for end in ("exit 0", "exit 7", "exit 255", *(f"kill -{s} $$; sleep 9" for s in
                ("HUP", "INT", "QUIT", "ILL", "ABRT", "FPE", "KILL", "SEGV", "PIPE", "ALRM", "TERM", "USR1", "RTMIN", "RTMAX"))):
        both(r, ["sh", "-c", f"ulimit -c 0; {end}"])
    both(r, ["sh", "-c", "yes | head -1"])
    both(r, ["bash", "-c", "yes | head -1; echo ${PIPESTATUS[@]}"])


@check("launch-signals", as_user=True, normal=ONCE, timeout_s=180)
def signals(r):
    """Each signal that can be caught reaches the program, once; with the queued value; and so do its timers."""
    managed_only(r)
    script = ("import os, signal, sys\n"
              "own = set(range(1, 65)) - {9, 19, 32, 33}\n"
              "signal.pthread_sigmask(signal.SIG_BLOCK, own)\n"
              "print('ready', flush=True)\n"
              "for _ in range(int(sys.argv[1])):\n"
              "    i = signal.sigwaitinfo(own)\n"
              "    print(i.si_signo, i.si_code == -1 and i.si_pid, flush=True)\n")
    # Stop and continue signals belong to job control; a program that blocks them has them pending like others.
    wanted = [n for n in range(1, 65) if n not in (9, 17, 18, 19, 32, 33)]
    argv = [*r._user_prefix(), *command(r), PYTHON, "-I", "-c", script, str(len(wanted))]
    p = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=r.dir, env=r._environment({}))
    try:
        r.same(p.stdout.readline(), "ready\n", "first line")
        for n in wanted:
            os.kill(p.pid, n)
            r.same(p.stdout.readline(), f"{n} False\n", f"signal {n}")
        r.same((p.stdout.read(), p.wait(30)), ("", 0), "the rest")
    finally:
        p.kill()
        p.wait()
    both(r, ["sleep", "20"], lambda: signal.setitimer(signal.ITIMER_REAL, 1.0))


@check("launch-stops", as_user=True, normal=ONCE)
def stops(r):
    """Stopping canvas as a job stops the program, visibly to the caller; SIGCONT continues both."""
    managed_only(r)
    argv = [*r._user_prefix(), *command(r), "sh", "-c", "echo $$; read x; echo went on"]
    p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=r.dir,
                         env=r._environment({}), process_group=0)
    try:
        program = int(p.stdout.readline())

        def is_in(state):
            for _ in range(2000):
                with open(f"/proc/{program}/stat") as f:
                    if (f.read().rsplit(")", 1)[1].split()[0] == "T") == (state == "T"):
                        return
                time.sleep(0.01)
            r.require(False, f"the program is never in state {state}")

        for stop in (signal.SIGTSTP, signal.SIGTTIN):
            os.kill(p.pid, stop)
            is_in("T")
            _, status = os.waitpid(p.pid, os.WUNTRACED)
            r.require(os.WIFSTOPPED(status), f"{stop}: canvas has not stopped: {status}")
            os.kill(p.pid, signal.SIGCONT)
            is_in("S")
        r.same(p.communicate("\n", timeout=30)[0], "went on\n", "output")
    finally:
        p.kill()
        p.wait()


@check("launch-hang-up", as_user=True, normal=ONCE)
def hang_up(r):
    """A terminal that hangs up signals the program, also where canvas leads its session."""
    managed_only(r)
    import pty
    said = r.path("said")
    script = f"trap 'echo hung up >{said}; exit 3' HUP; echo ready; while :; do sleep 0.1; done"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(r.dir)
        os.chmod(r.dir, 0o777)
        argv = [*r._user_prefix(), *command(r), "sh", "-c", script]
        os.execvpe(argv[0], argv, r._environment({}))
    seen = b""
    while b"ready" not in seen:
        seen += os.read(terminal, 1000)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    r.same(os.waitstatus_to_exitcode(status), 3, "exit code")
    with open(said) as f:
        r.same(f.read(), "hung up\n", "the program's words")


@check("launch-service", as_user=True, normal=ONCE)
def service(r):
    """Socket activation and watchdogs name the program's pid; its messages to the service manager come from canvas,
    the main process there, with its descriptors; the program's pid does not become the main one."""
    managed_only(r)
    script = ("import os; me = str(os.getpid())\n"
              "print([os.environ.get(v) == me for v in ('LISTEN_PID', 'WATCHDOG_PID', 'SYSTEMD_EXEC_PID')], "
              "os.environ['LISTEN_FDS'], os.environ.get('OTHER_PID') == me, os.fstat(3).st_mode >> 12)")
    wrap = ["sh", "-c", "exec env LISTEN_PID=$$ WATCHDOG_PID=$$ SYSTEMD_EXEC_PID=$$ LISTEN_FDS=1 OTHER_PID=1 \"$@\"", "sh"]
    listener = socket.socket()
    listener.listen()

    def third():
        os.dup2(listener.fileno(), 3)

    argv = [*wrap, *command(r), PYTHON, "-I", "-c", script]
    p = within(r, argv, third, pass_fds=(3,))
    r.same((p.stdout, p.stderr), ("[True, True, True] 1 False 12\n", ""), "variables")

    name = b"\0canvas-test-" + os.urandom(8).hex().encode()
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    manager.bind(name)
    manager.settimeout(30)
    script = ("import array, os, socket\n"
              "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
              "to = os.environ['NOTIFY_SOCKET'].replace('@', '\\0', 1)\n"
              "rights = lambda fds: [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', fds))] if fds else []\n"
              "say = lambda text, fds=(): s.sendmsg([text.encode()], rights(fds), 0, to)\n"
              "say(f'READY=1\\nMAINPID={os.getpid()}')\n"
              "say('FDSTORE=1', [0])\n"
              "say('STATUS=last\\nMAINPID=1')\n")
    argv = [*command(r), PYTHON, "-I", "-c", script]
    with tempfile.TemporaryFile() as stored:
        env = r._environment({"NOTIFY_SOCKET": "@" + name[1:].decode()})
        p = subprocess.Popen(argv, cwd=r.dir, env=env, stdin=stored)
        got = []
        for _ in range(3):
            text, control, _, _ = manager.recvmsg(4096, 4096)
            creds = [d for _, kind, d in control if kind == socket.SCM_CREDENTIALS]
            fds = [d for _, kind, d in control if kind == socket.SCM_RIGHTS]
            sender = int.from_bytes(creds[0][:4], "little")
            same_file = [os.fstat(int.from_bytes(d, "little")).st_ino == os.fstat(stored.fileno()).st_ino for d in fds]
            got.append((text.decode(), sender == p.pid, same_file))
        r.same(p.wait(30), 0, "exit code")
    r.same(got, [("READY=1", True, []), ("FDSTORE=1", True, [True]), ("STATUS=last\nMAINPID=1", True, [])], "messages")


@check("launch-init", normal=ONCE)
def init(r):
    """As the first process of a container canvas reaps orphans."""
    managed_only(r)
    if subprocess.run(["unshare", "-pf", "--mount-proc", "true"], capture_output=True).returncode:
        raise Skip("needs the right to make namespaces")
    script = ("(sleep 0.1 & sleep 0.1 & exit 5); sleep 0.1; for i in $(seq 200); do "
              "ps -eo stat= | grep -q Z || break; sleep 0.05; done; ps -eo stat= | grep -c Z; kill -TERM $$")
    p = within(r, ["unshare", "-pf", "--mount-proc", *command(r), "sh", "-c", script])
    r.same((p.stdout, p.returncode), ("0\n", 143), f"zombies, and the end ({p.stderr})")


@check("launch-report", as_user=True, normal=ONCE)
def report(r):
    """The report is complete when the caller sees the program's end, however it ended."""
    managed_only(r)
    for end in ("exit 0", "kill -KILL $$", "kill -SEGV $$"):
        path = r.path("report.json")
        p = within(r, [*command(r, "--stats", path), "sh", "-c", f"ulimit -c 0; {end}"])
        with open(path) as f:
            r.require(f.read().rstrip().endswith("}"), f"{end}: no whole report ({p.stderr})")
        os.unlink(path)
