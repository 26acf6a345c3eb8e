"""Debian's Chromium without a window, driven over the DevTools protocol through a pipe: no package, no port.

    with Browser(chromium) as browser:
        page = browser.open(path, width=390, dark=True)
        page.evaluate("document.title"); page.screenshot()
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--remote-debugging-pipe",
]  # fmt: skip
# The browser reads its commands from descriptor 3 and answers on 4.
_AS_3_AND_4 = """
import os, sys
one, two = os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2]))
for old, new in ((one, 3), (two, 4)):
    os.dup2(old, new)
    os.set_inheritable(new, True)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str | None:
    return shutil.which("chromium")


class Browser:
    """One Chromium process with a profile of its own."""

    def __init__(self, program: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, from_write = os.pipe()
        wrapper = [sys.executable, "-c", _AS_3_AND_4, str(to_read), str(from_write), program]
        self._process = subprocess.Popen(
            [*wrapper, *FLAGS, f"--user-data-dir={self._profile.name}"],
            pass_fds=(to_read, from_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(from_write)
        self._buffer = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)
        self._process.terminate()
        self._process.wait(timeout=20)
        os.close(self._from)
        self._profile.cleanup()

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer; events that come before it are kept in `events`."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._from, 1 << 20)
            if not chunk:
                raise RuntimeError("the browser ended")
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def wait_for(self, method: str, session: str) -> None:
        while not any(event.get("method") == method and event.get("sessionId") == session for event in self.events):
            self.events.append(self._read())

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> "Page":
        """Load a file in a tab of its own and wait until it is there."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", session, features=[scheme])
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", session, **size)
        self.call("Page.navigate", session, url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired", session)
        return Page(self, session, target)


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target

    def evaluate(self, expression: str) -> Any:
        answer = self._browser.call("Runtime.evaluate", self._session, expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def screenshot(self, *, whole: bool = True) -> bytes:
        answer = self._browser.call(
            "Page.captureScreenshot", self._session, format="png", captureBeyondViewport=whole, **self._clip(whole)
        )
        return base64.b64decode(answer["data"])

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self._browser.call("Page.getLayoutMetrics", self._session)["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}}

    def pdf(self) -> bytes:
        return base64.b64decode(self._browser.call("Page.printToPDF", self._session)["data"])

    def events(self, method: str) -> list[dict[str, Any]]:
        """What the browser reported about this tab, for example "Network.requestWillBeSent"."""
        mine = [event for event in self._browser.events if event.get("sessionId") == self._session]
        return [event["params"] for event in mine if event.get("method") == method]

    def close(self) -> None:
        self._browser.call("Target.closeTarget", targetId=self._target)
