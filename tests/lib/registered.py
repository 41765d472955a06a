"""Imports all tests of tests/e2e, which register themselves."""

import importlib
import os

from . import harness

E2E = os.path.join(harness.TESTS, "e2e")


def load():
    """Registers the tests; returns the registry by name."""
    for name in sorted(os.listdir(E2E)):
        if name.endswith(".py") and name != "__init__.py":
            importlib.import_module("e2e." + name[:-3])
    return {t.name: t for t in harness.REGISTRY}
