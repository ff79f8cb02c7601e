"""Shows lines without ever waiting for whoever reads them: a reader that is stopped must not stop the supervisor."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable

_WAITING = 20_000  # lines that may wait for the reader
_AT_THE_END = 5.0  # seconds that the last lines have


class Printer:
    """Writes lines to a file descriptor from a thread of its own.

    What the reader is too slow for is left out, and a line says how much: the files of the run have all of it.

    Args:
        descriptor: where to.
        gone: called when nobody reads any more.
    """

    def __init__(self, descriptor: int, gone: Callable[[], None]) -> None:
        self._descriptor = descriptor
        self._gone = gone
        self._lines: queue.Queue[str] = queue.Queue(_WAITING)
        self._left_out = 0
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def __call__(self, line: str) -> None:
        """Show a line."""
        try:
            if self._left_out:
                self._lines.put_nowait(f"supervise: {self._left_out:,} lines are not shown, but in the files")
                self._left_out = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._left_out += 1

    def close(self) -> None:
        """Wait until all is written, for a while at most."""
        deadline = time.monotonic() + _AT_THE_END
        while self._lines.unfinished_tasks and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)

    def _write(self) -> None:
        while True:
            data = f"{self._lines.get()}\n".encode(errors="replace")
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:
                self._gone()
                return
            self._lines.task_done()
