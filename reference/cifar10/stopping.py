"""Stop at the end of an iteration, the same one on all ranks, when a signal asks for it.

A signal may reach any rank at any moment, so ranks must agree on where to stop. They ask each other about once a second: after
each question they know how long an iteration takes on the slowest rank, and so when the next one is due. Between questions an
iteration costs one comparison of integers.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType

import reference.idist as idist

SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_SECONDS_BETWEEN = 1.0


class StopRequest:
    """Context manager that catches `SIGNALS` and finds out together with the other ranks whether one came.

    Outside of the main thread, where Python allows no signal handlers, it only listens to the other ranks.
    """

    def __init__(self) -> None:
        self.received = 0  # number of the last signal that this process got
        self._previous: dict[int, object] = {}
        self._next = 0
        self._asked_at: tuple[int, float] | None = None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = number

    def agreed(self, iteration: int) -> signal.Signals | None:
        """After `iteration`: the signal that any rank got, or None. A collective when it is due, on all ranks alike."""
        if iteration < self._next:
            return None
        now = time.monotonic()
        seconds = 0.0
        if self._asked_at is not None:
            first, since = self._asked_at
            seconds = (now - since) / max(1, iteration - first)
        answers = idist.all_gather((self.received, seconds))
        number = max(received for received, _ in answers)
        slowest = max(taken for _, taken in answers)
        self._asked_at = (iteration, now)
        self._next = iteration + (max(1, round(_SECONDS_BETWEEN / slowest)) if slowest > 0 else 1)
        return signal.Signals(number) if number else None
