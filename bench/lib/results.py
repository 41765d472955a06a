"""Results as JSON lines, written as they come."""

import json
import re

from lib.host import facts, load_average

# Places on this host mean nothing elsewhere.
PLACES = re.compile(r"(/var)?/tmp/[^\s\"]*")


class Results:
    """What was measured, in the order in which it was; the first line is about the machine and the settings."""

    def __init__(self, schema, path, **settings):
        self.schema, self.runs = schema, []
        self.file = open(path, "w") if path else None
        self._write({"kind": "run", **facts(), **settings})

    def _write(self, line):
        text = PLACES.sub("PLACE", json.dumps({"schema": self.schema, **line}))
        print(text, flush=True)
        if self.file:
            self.file.write(text + "\n")
            self.file.flush()

    def add(self, line, load=None):
        line = {"load_average": load_average() if load is None else load, **line}
        self.runs.append(line)
        self._write(line)

    def good(self):
        """Those that count."""
        return [run for run in self.runs if "wrong" not in run]

    def is_good(self):
        return len(self.good()) == len(self.runs)
