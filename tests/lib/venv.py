"""Python environments with packages from PyPI, made on first use under the user's cache."""

import functools
import os
import subprocess
import sys

SETS = {
    "pyspark": ("pyspark==3.5.3", "numpy==1.26.4"),
    # The API's schemas for each Kubernetes version since 1.25, and a validator.
    "kubernetes": ("kubernetes-validate==1.37.0", "PyYAML==6.0.3"),
    "xgboost": ("xgboost==2.1.3", "numpy==1.26.4", "scipy==1.14.1"),
}


@functools.cache
def python_with(name):
    """An interpreter whose environment has the named set, or None if it cannot be installed."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    home = os.path.join(cache, "canvas-tests", name)
    exe, ready = os.path.join(home, "bin", "python"), os.path.join(home, "ready")
    wanted = " ".join(SETS[name])
    if os.path.exists(ready):
        with open(ready) as f:
            if f.read() == wanted:
                return exe
    pip = [exe, "-m", "pip", "install", "-q"]
    if name == "xgboost":
        # Its dependency on a large GPU library is not needed.
        pip.append("--no-deps")
    for argv in ([sys.executable, "-m", "venv", "--clear", home], [*pip, *SETS[name]]):
        try:
            r = subprocess.run(argv, capture_output=True, text=True, timeout=900)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if r.returncode:
            return None
    with open(ready, "w") as f:
        f.write(wanted)
    return exe
