"""A progress bar on the terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import reference.idist as idist
from reference.engine import Engine, Events

if TYPE_CHECKING:
    from rich.console import Console

_WIDTH = 30
_REDRAW_SECONDS = 0.1


class ProgressBar:
    """One line on stderr: epoch, bar, iterations, time and metrics. Rank 0 only, and only on a terminal.

    Args:
        over: "epoch": the bar is full at the end of each epoch; "run": at the end of the run.
        console: where to draw; default: stderr.
    """

    def __init__(self, over: str = "epoch", console: Console | None = None) -> None:
        if over not in ("epoch", "run"):
            raise ValueError(f"over={over!r}: expected 'epoch' or 'run'")
        from rich.console import Console

        self._over = over
        self._console = console or Console(stderr=True)
        self._metric_names: Sequence[str] | str = ()
        self._drawn = self._begin = 0.0

    def attach(self, engine: Engine, metric_names: Sequence[str] | str = ()) -> None:
        """Draw for this engine, with these of its metrics (`"all"`: all that are numbers)."""
        if idist.get_rank() != 0 or not self._console.is_terminal:
            return
        self._metric_names = metric_names
        engine.add_event_handler(
            Events.EPOCH_STARTED if self._over == "epoch" else Events.STARTED, self._start
        )
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration_completed)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._epoch_completed)
        engine.add_event_handler(Events.TERMINATE, self._draw, end="\n")

    def _start(self, engine: Engine) -> None:
        self._begin = time.monotonic()

    def _iteration_completed(self, engine: Engine) -> None:
        if time.monotonic() - self._drawn >= _REDRAW_SECONDS:
            self._draw(engine)

    def _epoch_completed(self, engine: Engine) -> None:
        last = self._over == "epoch" or engine.state.epoch == engine.state.max_epochs
        self._draw(engine, end="\n" if last else "")

    def _draw(self, engine: Engine, end: str = "") -> None:
        from rich.control import Control
        from rich.segment import ControlType
        from rich.text import Text

        self._drawn = time.monotonic()
        erase = Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2))
        self._console.control(erase)
        self._console.print(Text(self._line(engine), no_wrap=True, overflow="crop"), end=end)

    def _line(self, engine: Engine) -> str:
        state = engine.state
        total, done = state.epoch_length, state.epoch_iteration
        if self._over == "run" and total:
            total, done = total * (state.max_epochs or 1), total * (state.epoch - 1) + done
        filled = _WIDTH * done // total if total else 0
        seconds = round(time.monotonic() - self._begin)
        names = self._metric_names
        if names == "all":
            names = [name for name, value in state.metrics.items() if isinstance(value, (int, float))]
        metrics = [f"{name}: {state.metrics[name]:.4g}" for name in names if name in state.metrics]
        bar = "━" * filled + "╌" * (_WIDTH - filled)
        clock = f"{seconds // 60}:{seconds % 60:02d}"
        return "  ".join(
            [f"epoch {state.epoch}/{state.max_epochs}", bar, f"{done}/{total or '?'}", clock, *metrics]
        )
