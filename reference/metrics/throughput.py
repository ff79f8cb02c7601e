"""`Throughput`: samples per second over all ranks, the times of steps, and what part of them the input takes."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from reference.engine import Engine, Events
from reference.metrics.base import Metric, reduced

T = TypeVar("T")


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
        self._seconds = self._warmup_seconds = 0.0
        self._input = _InputClock()
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
            self._warmup_seconds += self._lap()
            return
        self._steps += 1
        self._samples += output
        lap = self._lap()
        self._seconds += lap
        self._step_seconds.append(lap)

    def start(self) -> None:
        """Let the clock run (again)."""
        self._mark = time.perf_counter()

    def stop(self) -> None:
        """Wait for the device and stop the clock."""
        _wait_for_device()
        if self._steps:
            self._seconds += self._lap()
        else:
            self._warmup_seconds += self._lap()
        self._mark = None

    def timed(self, prepare_batch: Callable[..., T]) -> Callable[..., T]:
        """`prepare_batch`, with a note of when the batch was ready: for `input_share` of `summary`."""

        def prepare(*args: Any, **kwargs: Any) -> T:
            prepared = prepare_batch(*args, **kwargs)
            self._input.stop()
            return prepared

        return prepare

    def _lap(self) -> float:
        now = time.perf_counter()
        lap = now - (now if self._mark is None else self._mark)
        self._mark = now
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
        (seconds, of the slowest rank), `samples`, `seconds`, `steps`, `total_seconds` (with the warm-up),
        `time_to_first_step` (seconds from the start of the run to the end of its first step, slowest rank), and
        `input_share`: the part of `seconds` from asking the data for a batch until `timed` had it prepared, on the rank
        where it is largest. On a GPU that is the time of the device, including when it waits for the host; None
        without `timed`.
        """
        seconds, timed = self._seconds, self._input.seconds
        share = timed / seconds if seconds and timed is not None else -1.0
        total = seconds + self._warmup_seconds
        times = [seconds, *_percentiles(self._step_seconds), self._first_step or 0.0, total, share]
        seconds, p50, p95, first, total, share = reduced(torch.tensor(times, dtype=torch.float64), "MAX")
        samples, steps = (int(value) for value in reduced(torch.tensor([self._samples, self._steps])))
        measured = steps > 0 and seconds > 0
        return {
            "samples_per_second": samples / seconds if measured else None,
            "step_p50": p50 if measured else None,
            "step_p95": p95 if measured else None,
            "samples": samples,
            "seconds": seconds,
            "steps": steps,
            "total_seconds": total,
            "input_share": share if measured and share >= 0 else None,
            "time_to_first_step": first or None,
        }

    def attach(self, engine: Engine, name: str) -> None:
        """Measure the engine's run; at the end of each epoch `state.metrics` has `name` (samples per second so far),
        `name/step_p50` and `name/step_p95` (seconds), once there was a step after the warm-up."""
        self.name = name
        engine.add_event_handler(Events.STARTED, self.reset)
        engine.add_event_handler(Events.EPOCH_STARTED, self.start)
        engine.add_event_handler(Events.GET_BATCH_STARTED, self._get_batch_started)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration_completed)
        engine.add_event_handler(Events.EPOCH_COMPLETED | Events.TERMINATE, self.stop)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._publish, name)

    def _get_batch_started(self) -> None:
        if self._seen >= self._warmup:
            self._input.start()

    def _iteration_completed(self, engine: Engine) -> None:
        self.update(self._samples_of(engine.state.batch if self._from_batch else engine.state.output))

    def _publish(self, engine: Engine, name: str) -> None:
        summary = self.summary()
        if summary["samples_per_second"] is not None:
            engine.state.metrics[name] = summary["samples_per_second"]
            engine.state.metrics[f"{name}/step_p50"] = summary["step_p50"]
            engine.state.metrics[f"{name}/step_p95"] = summary["step_p95"]


class _InputClock:
    """Adds up the time between `start` and `stop`: on a GPU, between the two places in its queue of work."""

    _pending_at_most = 1000  # pairs of events that have not been read

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._begin: Any = None
        self._pending: deque[tuple[Any, Any]] = deque()

    def start(self) -> None:
        """A batch is asked for."""
        self._begin = _mark()

    def stop(self) -> None:
        """It is ready; without a `start` before, nothing happens."""
        if self._begin is None:
            return
        self._pending.append((self._begin, _mark()))
        self._begin = None
        if len(self._pending) >= self._pending_at_most:
            self._read()

    @property
    def seconds(self) -> float | None:
        """The sum so far, None if nothing was timed. Waits for the device."""
        self._read()
        return self._seconds

    def _read(self) -> None:
        while self._pending:
            begin, end = self._pending.popleft()
            self._seconds = (self._seconds or 0.0) + _between(begin, end)


def _mark() -> Any:
    """Now: a time of the host, or an event in the queue of the current GPU."""
    if not torch.cuda.is_initialized():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between(begin: Any, end: Any) -> float:
    """Seconds between two marks."""
    if isinstance(begin, float):
        return float(end - begin)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def _wait_for_device() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _percentiles(seconds: deque[float]) -> tuple[float, float]:
    """The 50th and the 95th percentile (nearest rank), zeros for nothing."""
    ordered = sorted(seconds) or [0.0]
    return ordered[math.ceil(0.50 * len(ordered)) - 1], ordered[math.ceil(0.95 * len(ordered)) - 1]
