"""A headless Chromium, driven over a pipe (the DevTools protocol), for pages in files."""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time

from .harness import Failure

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--disable-default-apps", "--disable-extensions", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--force-color-profile=srgb", "--force-device-scale-factor=1", "--remote-debugging-pipe")


def missing():
    """Reason why there is no browser, or None."""
    return None if shutil.which("chromium") else "no chromium"


class Browser:
    """One browser with one page; records its logs and requests."""

    def __init__(self, profile):
        # The browser reads commands from descriptor 3 and writes answers to 4.
        to_read, self._to = os.pipe()
        self._from, from_write = os.pipe()
        # Far above 4, so that the shell's redirections do not overwrite one with the other.
        pair = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_read, from_write)]
        argv = ["chromium", *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        shell = 'exec "$@" 3<&%d 4>&%d' % tuple(pair)
        self.log = open(os.path.join(os.path.dirname(profile), "chromium.log"), "w")
        self.child = subprocess.Popen(
            ["bash", "-c", shell, "bash", *argv], pass_fds=pair, stdin=subprocess.DEVNULL, stdout=self.log,
            stderr=self.log, start_new_session=True, env={**os.environ, "HOME": os.path.dirname(profile)})
        for fd in (to_read, from_write, *pair):
            os.close(fd)
        self._buffer, self._count, self.session = b"", 0, None
        self.console, self.requests, self.loaded = [], [], 0

    def ask(self, method, timeout_s=20, **parameters):
        """Sends a command and waits for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._to, data):]
        answer = self._until(lambda m: m.get("id") == message["id"], timeout_s, method)
        if "error" in answer:
            raise Failure(f"chromium: {method}: {answer['error']}")
        return answer["result"]

    def _until(self, wanted, timeout_s, what):
        end = time.monotonic() + timeout_s
        while True:
            while b"\0" in self._buffer:
                text, self._buffer = self._buffer.split(b"\0", 1)
                message = json.loads(text)
                self._note(message)
                if wanted(message):
                    return message
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise Failure(f"chromium: no answer to {what} within {timeout_s} s")
            got = os.read(self._from, 1 << 20)
            if not got:
                raise Failure("chromium ended")
            self._buffer += got

    def _note(self, message):
        method, p = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        elif method == "Log.entryAdded":
            self.console.append(f"{p['entry']['level']}: {p['entry']['text']}")
        elif method == "Runtime.consoleAPICalled":
            self.console.append(f"{p['type']}: {p['args']}")
        elif method == "Runtime.exceptionThrown":
            self.console.append(f"exception: {p['exceptionDetails'].get('text')}")
        elif method == "Page.loadEventFired":
            self.loaded += 1

    def open(self, path, width, dark):
        """Loads a file in a window of this width."""
        if self.session is None:
            target = self.ask("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Network", "Log", "Runtime"):
                self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", features=scheme)
        before = self.loaded
        self.ask("Page.navigate", url="file://" + path)
        if self.loaded == before:
            self._until(lambda m: m.get("method") == "Page.loadEventFired", 20, "loading the page")

    def value(self, expression):
        """Value of a JavaScript expression, as JSON."""
        result = self.ask("Runtime.evaluate", expression=f"JSON.stringify({expression})", returnByValue=True)
        if "exceptionDetails" in result:
            raise Failure(f"chromium: {expression}: {result['exceptionDetails'].get('text')}")
        return json.loads(result["result"]["value"])

    def screenshot(self, path, box=None):
        """Writes a PNG of the whole page, or of the rectangle (x, y, width, height)."""
        if box is None:
            size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
            box = (0, 0, size["width"], size["height"])
        clip = dict(zip(("x", "y", "width", "height"), box), scale=1)
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        with open(path, "wb") as f:
            f.write(base64.b64decode(shot["data"]))
        return path

    def close(self):
        """Ends the browser and all its processes, which are a process group of their own."""
        for fd in (self._to, self._from):
            os.close(fd)
        try:
            self.child.wait(3)
        except subprocess.TimeoutExpired:
            pass
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.child.wait()
        self.log.close()
