"""A headless Chromium, driven over the DevTools protocol through its pipe: nothing but the browser has to be installed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DEADLINE = 60.0  # seconds for one answer


def program() -> str | None:
    """The browser, if there is one."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """A tab.

    Args:
        commands, answers: ends of the pipes to and from the browser.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers = commands, answers
        self._number = 0
        self._received = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + DEADLINE
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            content = os.read(self._answers, 1 << 20)
            assert content, "the browser has ended"
            self._received += content
        line, self._received = self._received.split(b"\0", 1)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def open(self, file: Path) -> None:
        """Load a file and wait until it is there."""
        self.events.clear()
        self.call("Page.navigate", url=file.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def run(self, script: str) -> Any:
        """The value of an expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, userGesture=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def size(self, width: int, height: int) -> None:
        """Of the window, in CSS pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            **{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
        )

    def media(self, kind: str = "screen", scheme: str = "light") -> None:
        """Screen or print, light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=kind, features=features)

    def screenshot(self, file: Path) -> None:
        """The whole page, as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def requests(self) -> list[str]:
        """Addresses that were asked for since the last `open`."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[Any]:
        """Exceptions, and what the browser or a script wrote to the console."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event["params"] for event in self.events if event["method"] in kinds]


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A page of a browser of its own, which ends with it.

    Args:
        folder: for its profile and its log.
    """
    path = program()
    assert path is not None
    reading, commands = os.pipe()
    answers, writing = os.pipe()
    # out of the way of 3 and 4, where the browser expects them
    ours = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (reading, writing)]
    options = [
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--disable-background-networking", f"--user-data-dir={folder / 'profile'}"),
        "--remote-debugging-pipe",
    ]
    pipes = f'exec "$@" 3<&{ours[0]} 4>&{ours[1]}'
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", pipes, "bash", path, *options],
            pass_fds=ours,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    for end in (reading, writing, *ours):
        os.close(end)
    try:
        page = Page(commands, answers)
        yield page
    finally:
        os.close(commands)  # the browser ends with its pipe
        try:
            process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait(DEADLINE)
        os.close(answers)
