"""`Throughput`: samples per second over all ranks, and the times of steps."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from reference.engine import Engine, Events
from reference.metrics.base import Metric, reduced


class Throughput(Metric):
    """Samples per second over all ranks, with the first iterations of a run left out.

    The clock runs from the end of the warm-up to the end of the last iteration. It stands between epochs (attach
    this before what runs there, such as validation), but not for logging or checkpoints within an epoch. At the end
    of an epoch it waits for the device, so that queued work is counted. A step is timed from the end of the last.

    Args:
        samples: per step of this rank: a number, or a function of the engine's output or (`from_batch=True`) of the
            batch that returns it.
        warmup: iterations at the start of a run to leave out.
        from_batch: `samples` gets `state.batch` instead of `state.output`.
    """

    collective_state = False
    _kept_steps = 10_000  # percentiles look at the last so many steps, so that memory does not grow

    def __init__(
        self, samples: int | Callable[[Any], int], warmup: int = 10, from_batch: bool = False
    ) -> None:
        if warmup < 0 or isinstance(samples, int) and samples < 1:
            raise ValueError(
                f"samples must be at least 1 and warmup at least 0, got {samples!r} and {warmup!r}"
            )
        self._samples_of = (lambda _: samples) if isinstance(samples, int) else samples
        self._warmup = warmup
        self._from_batch = from_batch
        super().__init__()

    def reset(self) -> None:
        self._begin = time.perf_counter()
        self._mark: float | None = self._begin  # the end of the last step; None while the clock stands
        self._first_step: float | None = None
        self._seen = self._samples = self._steps = 0
        self._seconds = 0.0
        self._step_seconds: deque[float] = deque(maxlen=self._kept_steps)

    def update(self, output: int) -> None:
        """One step of that many samples has ended."""
        self._seen += 1
        if self._first_step is None:
            _wait_for_device()
            self._first_step = time.perf_counter() - self._begin
        if self._seen <= self._warmup:
            if self._seen == self._warmup:
                _wait_for_device()
            self._mark = time.perf_counter()
            return
        self._steps += 1
        self._samples += output
        self._step_seconds.append(self._lap())

    def start(self) -> None:
        """Let the clock run (again)."""
        self._mark = time.perf_counter()

    def stop(self) -> None:
        """Wait for the device and stop the clock."""
        _wait_for_device()
        if self._steps and self._mark is not None:
            self._lap()
        self._mark = None

    def _lap(self) -> float:
        now = time.perf_counter()
        lap = now - (now if self._mark is None else self._mark)
        self._mark = now
        self._seconds += lap
        return lap

    def compute(self) -> float:
        """Samples per second over all ranks."""
        rate = self.summary()["samples_per_second"]
        if rate is None:
            raise ValueError(f"metric {self.name!r}: no step after the {self._warmup} of the warm-up")
        return rate

    def summary(self) -> dict[str, float | None]:
        """All that was measured; collective. None where there was no step after the warm-up.

        `samples_per_second` (samples of all ranks divided by the slowest rank's seconds), `step_p50` and `step_p95`
        (seconds, of the slowest rank), `samples`, `seconds`, `steps`, and `time_to_first_step` (seconds from the
        start of the run to the end of its first step, slowest rank).
        """
        times = [self._seconds, *_percentiles(self._step_seconds), self._first_step or 0.0]
        seconds, p50, p95, first = reduced(torch.tensor(times, dtype=torch.float64), "MAX")
        samples, steps = (int(value) for value in reduced(torch.tensor([self._samples, self._steps])))
        measured = steps > 0 and seconds > 0
        return {
            "samples_per_second": samples / seconds if measured else None,
            "step_p50": p50 if measured else None,
            "step_p95": p95 if measured else None,
            "samples": samples,
            "seconds": seconds,
            "steps": steps,
            "time_to_first_step": first or None,
        }

    def attach(self, engine: Engine, name: str) -> None:
        """Measure the engine's run; at the end of each epoch `state.metrics` has `name` (samples per second so far),
        `name/step_p50` and `name/step_p95` (seconds), once there was a step after the warm-up."""
        self.name = name
        engine.add_event_handler(Events.STARTED, self.reset)
        engine.add_event_handler(Events.EPOCH_STARTED, self.start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration_completed)
        engine.add_event_handler(Events.EPOCH_COMPLETED | Events.TERMINATE, self.stop)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._publish, name)

    def _iteration_completed(self, engine: Engine) -> None:
        self.update(self._samples_of(engine.state.batch if self._from_batch else engine.state.output))

    def _publish(self, engine: Engine, name: str) -> None:
        summary = self.summary()
        if summary["samples_per_second"] is not None:
            engine.state.metrics[name] = summary["samples_per_second"]
            engine.state.metrics[f"{name}/step_p50"] = summary["step_p50"]
            engine.state.metrics[f"{name}/step_p95"] = summary["step_p95"]


def _wait_for_device() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _percentiles(seconds: deque[float]) -> tuple[float, float]:
    """The 50th and the 95th percentile (nearest rank), zeros for nothing."""
    ordered = sorted(seconds) or [0.0]
    return ordered[math.ceil(0.50 * len(ordered)) - 1], ordered[math.ceil(0.95 * len(ordered)) - 1]
