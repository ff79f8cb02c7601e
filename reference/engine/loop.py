"""`Engine`: runs a step function over data, epoch by epoch, and can continue at any iteration."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from reference.engine.dispatch import EventSource
from reference.engine.events import Events, State

StepFunction = Callable[["Engine", Any], Any]
_POSITIONS = ("iteration", "epochs_completed", "epoch_iteration", "data_pass", "data_position")
_LENGTHS = ("epoch_length", "max_epochs")
_END = object()


class _Terminate(Exception):
    """`terminate` was called."""


class _TerminateEpoch(Exception):
    """`terminate_epoch` was called."""


class Engine(EventSource):
    """Calls `process_function(engine, batch)` for each batch and fires `Events` on the way.

    Args:
        process_function: one step; what it returns becomes `state.output`.
        evaluation: every run starts from zero, and data without any batch is legal: a rank that got no sample
            does no iteration, but all epoch events fire, so that its metrics take part in the reduction. An
            engine that is not an evaluation continues where it stopped (see `run`), and no batch is an error.
    """

    def __init__(self, process_function: StepFunction, *, evaluation: bool = False) -> None:
        super().__init__()
        self.process_function = process_function
        self.evaluation = evaluation
        self.logger = logging.getLogger("reference.engine")
        self.should_terminate = False
        self._should_terminate_epoch = False
        self._epoch_open = False  # an epoch has begun and EPOCH_COMPLETED has not been fired
        self._in_iteration = False  # state.iteration counts an iteration that isn't complete
        self._restored = False
        self._batches: Iterator[Any] | None = None
        self._data_length: int | None = None
        self._position = 0  # batches that completed iterations took from the current pass
        self._skip = 0  # batches to leave out of the next pass, when a run continues

    @property
    def data_position(self) -> int:
        """Batches of the current pass over the data that completed iterations took."""
        return self._position

    # ---- control

    def terminate(self) -> None:
        """End the run after the event (or step) under way: then only `TERMINATE` and `COMPLETED` are fired."""
        self.should_terminate = True

    def terminate_epoch(self) -> None:
        """End the epoch after the event (or step) under way; the next one begins a new pass over the data."""
        self._should_terminate_epoch = True

    @property
    def epochs_completed(self) -> int:
        """Epochs that have reached `EPOCH_COMPLETED`."""
        return self.state.epoch - self._epoch_open

    def state_dict(self) -> dict[str, Any]:
        """Where the run stands: ints (None for a length that isn't known yet), and those metrics that are numbers.

        Raises:
            ValueError: in the middle of a group of accumulated iterations, whose gradients are in no checkpoint.
        """
        state = self.state
        if state.accumulating and self._epoch_open:
            raise ValueError(
                f"iteration {state.iteration} is inside a group of accumulated gradients, which a checkpoint does "
                "not hold: save where state.accumulating is False"
            )
        return {
            "iteration": state.iteration - self._in_iteration,
            "epochs_completed": self.epochs_completed,
            "epoch_iteration": state.epoch_iteration if self._epoch_open else 0,
            "data_pass": state.data_pass,
            "data_position": self._position,
            "epoch_length": state.epoch_length,
            "max_epochs": state.max_epochs,
            "metrics": {k: v for k, v in state.metrics.items() if isinstance(v, (int, float))},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from there at the next `run`; ValueError if this isn't what `state_dict` returned."""
        positions: list[Any] = [state_dict.get(key) for key in _POSITIONS]
        lengths = [state_dict.get(key) for key in _LENGTHS]
        numbers = positions + [length for length in lengths if length is not None]
        keys = (*_POSITIONS, *_LENGTHS, "metrics")
        if set(state_dict) != set(keys) or any(type(n) is not int or n < 0 for n in numbers):
            raise ValueError(f"not the state of an engine ({', '.join(keys)}): {state_dict!r}")
        state = self.state
        state.iteration, state.epoch, state.epoch_iteration, state.data_pass, self._position = positions
        state.epoch_length, state.max_epochs = lengths
        state.metrics = dict(state_dict["metrics"])
        self._epoch_open = state.epoch_iteration > 0
        state.epoch += self._epoch_open
        self._in_iteration = state.accumulating = False
        self._restored = True

    # ---- running

    def _fire(self, event: Events, *event_args: Any) -> None:
        self._call_handlers(event, *event_args)
        if event in (Events.TERMINATE, Events.COMPLETED, Events.EXCEPTION_RAISED):
            return
        if self.should_terminate:
            raise _Terminate
        if self._should_terminate_epoch and self._epoch_open:
            raise _TerminateEpoch

    def run(
        self, data: Iterable[Any], max_epochs: int | None = None, epoch_length: int | None = None
    ) -> State:
        """Run until `max_epochs` epochs are complete (default 1) and return the state.

        An engine that was terminated, that failed, or whose state was loaded continues at the batch after the
        last complete iteration, up to `max_epochs` in total; one that finished its epochs continues if
        `max_epochs` is now larger and else starts from zero. `state.max_epochs = None` forces a new start.

        Args:
            data: any iterable of batches. When it continues inside a pass, a loader whose sampler has
                `start_index` begins there at no cost; from other data the known batches are drawn and dropped
                (except from an iterator that this engine itself left there).
            max_epochs: total number of epochs, at least 1.
            epoch_length: iterations per epoch; default: the length of the data, or what the first epoch finds.
                If it isn't the length of the data, the next epoch goes on where the last one stopped, and the
                data starts again when it ends.

        Raises:
            ValueError: counts below 1, contradictions with the state, no batch in data (unless `evaluation`),
                data that ended before `epoch_length` and can't start again.
        """
        self._prepare(data, max_epochs, epoch_length)
        self.logger.info("Engine run starting with max_epochs=%s.", self.state.max_epochs)
        try:
            self._run(data)
        except Exception as error:
            if not self._handlers[Events.EXCEPTION_RAISED]:
                raise
            self._fire(Events.EXCEPTION_RAISED, error)
        finally:
            self._batches = None  # lets the workers of a loader go
            self.state.batch = None
        return self.state

    def _prepare(self, data: Iterable[Any], max_epochs: int | None, epoch_length: int | None) -> None:
        for name, value in (("max_epochs", max_epochs), ("epoch_length", epoch_length)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        try:
            self._data_length = len(data)  # type: ignore[arg-type]
        except TypeError:
            self._data_length = None
        state = self.state
        limit = max_epochs or state.max_epochs or 1
        finished = not self._epoch_open and not self._restored and self.epochs_completed >= limit
        if self.evaluation or state.max_epochs is None or finished:
            state.epoch = state.iteration = state.epoch_iteration = state.data_pass = 0
            state.epoch_length, state.accumulating, state.metrics, state.times = None, False, {}, {}
            self._epoch_open = self._in_iteration = False
            self._position = 0
        elif limit < state.epoch:
            raise ValueError(f"max_epochs={limit}, but this run is at epoch {state.epoch} already")
        elif epoch_length is not None and state.epoch_length not in (None, epoch_length):
            raise ValueError(
                f"epoch_length={epoch_length}, but this run was started with {state.epoch_length}"
            )
        state.iteration -= self._in_iteration
        state.max_epochs = limit
        state.epoch_length = next(
            (n for n in (epoch_length, state.epoch_length, self._data_length) if n is not None), None
        )
        if state.epoch_length == 0 and not self.evaluation:
            raise ValueError("the data has no batch: is it empty, or smaller than one batch with drop_last?")
        # an iterator of this engine's own earlier run stands at the right place already
        self._skip = 0 if isinstance(data, Iterator) and not self._restored else self._position
        self._restored = self._in_iteration = self.should_terminate = False

    def _run(self, data: Iterable[Any]) -> None:
        state = self.state
        begin = time.perf_counter()
        try:
            self._fire(Events.STARTED)
            while self.epochs_completed < (state.max_epochs or 0):
                self._run_epoch(data)
        except _Terminate:
            self._fire(Events.TERMINATE)
        state.times["COMPLETED"] = time.perf_counter() - begin
        self._fire(Events.COMPLETED)
        state.times["COMPLETED"] = time.perf_counter() - begin
        self.logger.info("Engine run complete. Time taken: %s", _clock(state.times["COMPLETED"]))

    def _run_epoch(self, data: Iterable[Any]) -> None:
        state = self.state
        if not self._epoch_open:
            state.epoch += 1
            state.epoch_iteration = 0
            self._epoch_open = True
        self._should_terminate_epoch = False
        begin = time.perf_counter()
        try:
            self._fire(Events.EPOCH_STARTED)
            while state.epoch_length is None or state.epoch_iteration < state.epoch_length:
                if not self._iterate(data):
                    break
        except _TerminateEpoch:
            state.iteration -= self._in_iteration
            self._in_iteration = False
            if self._batches is not None:
                self._end_pass()
        else:
            state.epoch_length = state.epoch_iteration if state.epoch_length is None else state.epoch_length
            if not state.epoch_length and not self.evaluation:
                raise ValueError(f"the data gave no batch in epoch {state.epoch}")
        self._epoch_open = False
        state.times["EPOCH_COMPLETED"] = time.perf_counter() - begin
        self._fire(Events.EPOCH_COMPLETED)
        state.times["EPOCH_COMPLETED"] = time.perf_counter() - begin
        self.logger.info(
            "Epoch[%d] Complete. Time taken: %s", state.epoch, _clock(state.times["EPOCH_COMPLETED"])
        )

    def _iterate(self, data: Iterable[Any]) -> bool:
        state = self.state
        self._fire(Events.GET_BATCH_STARTED)
        state.batch = self._next_batch(data)
        if state.batch is _END:
            return False
        self._fire(Events.GET_BATCH_COMPLETED)
        state.iteration += 1
        self._in_iteration = True
        self._fire(Events.ITERATION_STARTED)
        state.output = self.process_function(self, state.batch)
        state.epoch_iteration += 1
        self._position += 1
        self._in_iteration = False
        if self._position == self._data_length:
            self._end_pass()
        self._fire(Events.ITERATION_COMPLETED)
        return True

    # ---- data

    def _next_batch(self, data: Iterable[Any]) -> Any:
        if self._batches is None:
            self._batches = self._start_pass(data)
        batch = next(self._batches, _END)
        if batch is _END:
            drawn = self._position
            self._end_pass()
            if self.state.epoch_length is None:
                return _END
            self._batches = self._start_pass(data)
            batch = next(self._batches, _END)
            if batch is _END:
                raise ValueError(
                    f"the data ended after {drawn} batches and gives nothing when it is started again, at iteration "
                    f"{self.state.epoch_iteration + 1} of an epoch of {self.state.epoch_length}: give a smaller "
                    "epoch_length, or data that can be iterated more than once"
                )
        return batch

    def _start_pass(self, data: Iterable[Any]) -> Iterator[Any]:
        self._fire(Events.PASS_STARTED)
        skip, self._skip = self._skip, 0
        sampler = getattr(data, "sampler", None)
        if skip and hasattr(sampler, "start_index"):
            sampler.start_index = skip * (getattr(data, "batch_size", None) or 1)  # type: ignore[union-attr]
            return iter(data)
        batches = iter(data)
        for index in range(skip):
            if next(batches, _END) is _END:
                raise ValueError(
                    f"cannot continue after batch {skip} of the data: it has only {index} batches"
                )
        return batches

    def _end_pass(self) -> None:
        self._batches = None
        self._position = 0
        self.state.data_pass += 1


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}"
