"""The laboratory's command `lab`, which cargo builds in the same directory as canvas."""

import os
import subprocess

from .harness import PATIENCE, Failure, Skip


def path(r):
    """Path of the command; its runs measure the session's canvas."""
    if not r.session.canvas:
        raise Skip("lab is found beside canvas")
    lab = os.path.join(os.path.dirname(r.session.canvas), "lab")
    if not os.path.exists(lab):
        raise Failure("there is no lab beside canvas; build it: cargo build -p canvas-lab")
    return lab


def call(r, *argv, timeout_s=30):
    """Runs `lab` as the test's user, in the test's directory."""
    return subprocess.run([*r._user_prefix(), path(r), *[str(a) for a in argv]], cwd=r.dir,
                          env=r._environment({}), capture_output=True, text=True, timeout=timeout_s * PATIENCE)
