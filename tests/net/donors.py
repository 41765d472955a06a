"""Donors on hosts."""

import json
import os
import re
import signal
import subprocess
import time

from lib.harness import Failure

from . import hosts

PORT = 7070


def key_file(run, name="key"):
    """A new cluster key."""
    path = run.path(name)
    r = subprocess.run([run.session.canvas, "keygen", path], capture_output=True, text=True)
    run.require(r.returncode == 0, f"canvas keygen: {r.stderr}")
    return path


class Donor:
    """`canvas serve` on a host, or another program that takes the same flags."""

    def __init__(self, run, host, key, memory="1G", extra=(), program=None):
        self.run, self.host, self.key, self.memory, self.extra = run, host, key, memory, extra
        self.has_state = program is None
        self.program = program or [run.session.canvas, "serve", "--reserve", "64M"]
        self.addr = f"{host.addr}:{PORT}"
        self.state_path = run.path(f"donor{host.number}.json")
        self.log_path = run.path(f"donor{host.number}.log")
        self.start()

    def start(self):
        """Starts the donor, and waits until it listens."""
        argv = [*self.host.prefix(), *hosts.BOUND, *self.program, "--listen", self.addr, "--memory",
                self.memory, "--key-file", self.key, "--state-json", self.state_path, *self.extra]
        at = os.path.getsize(self.log_path) if os.path.exists(self.log_path) else 0
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True, cwd=self.run.dir)
        end = time.monotonic() + 30
        while "listening on" not in self.log(at):
            if self.process.poll() is not None or time.monotonic() > end:
                raise Failure(f"donor {self.addr} does not listen:\n{self.log(at)}")
            time.sleep(0.005)
        while self.has_state and not os.path.exists(self.state_path):
            time.sleep(0.005)

    def log(self, at=0):
        with open(self.log_path, "rb") as f:
            f.seek(at)
            return f.read().decode(errors="replace")

    def signal(self, sig):
        self.process.send_signal(sig)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Ends the donor with SIGTERM, as an operator would; returns its exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(timeout=30)

    def state(self):
        with open(self.state_path) as f:
            return json.load(f)

    def close(self):
        if self.process.poll() is None:
            # A stopped process dies of SIGKILL too.
            self.kill()


class Donors(list):
    """All donors of a test; a context manager."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for donor in self:
            donor.close()

    def flag(self):
        return ",".join(d.addr for d in self)


def answered(text, pattern, what):
    if not re.search(pattern, text):
        raise Failure(f"{what}: no line matches {pattern!r}:\n{text[-3000:]}")
