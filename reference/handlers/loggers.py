"""Scalars of engines and optimizers, written to TensorBoard or to a file of JSON lines, on rank 0."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from torch import Tensor
from torch.optim import Optimizer

import reference.idist as idist
from reference.engine import Engine, EventChoice, Events

StepTransform = Callable[[Engine, Events], int]
Self = TypeVar("Self", bound="ScalarLogger")


def global_step_from_engine(engine: Engine, event: Events | None = None) -> StepTransform:
    """Take steps from another engine, typically the trainer for what an evaluator logs.

    The step is that engine's iteration if the event that fires (or `event`) is an iteration event, else its epoch.
    """
    return lambda _, fired: engine.state.count(event or fired)


class ScalarLogger:
    """Base of the loggers: what is logged when. Subclasses say where it goes. Other ranks than 0 write nothing."""

    def __init__(self) -> None:
        self.active = idist.get_rank() == 0

    def write(self, tag: str, scalars: Mapping[str, float], step: int) -> None:
        """Write values that belong to one step. `tag` may be empty. Only called on rank 0."""
        raise NotImplementedError

    def close(self) -> None:
        """Write out what is pending."""
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def attach_output_handler(
        self,
        engine: Engine,
        event_name: Events | EventChoice,
        tag: str,
        metric_names: Sequence[str] | str | None = None,
        output_transform: Callable[[Any], Any] | None = None,
        global_step_transform: StepTransform | None = None,
    ) -> None:
        """Log metrics and output of an engine.

        Args:
            engine: whose state is logged.
            event_name: when.
            tag: first part of the names, such as "training".
            metric_names: of `state.metrics`; `"all"`: those that are numbers. One that isn't there yet is left out.
            output_transform: makes a number (called "output") or a dictionary of numbers of `state.output`.
            global_step_transform: see `global_step_from_engine`; default: this engine's iteration or epoch.
        """
        if metric_names is None and output_transform is None:
            raise ValueError("nothing to log: give metric_names or output_transform")

        def log() -> None:
            if not self.active:
                return
            state = engine.state
            names = state.metrics if metric_names == "all" else metric_names or ()
            scalars = {name: _number(state.metrics[name]) for name in names if name in state.metrics}
            if output_transform is not None:
                output = output_transform(state.output)
                output = output if isinstance(output, Mapping) else {"output": output}
                scalars |= {name: _number(value) for name, value in output.items()}
            numbers = {name: value for name, value in scalars.items() if value is not None}
            if missing := [name for name in scalars if name not in numbers and metric_names != "all"]:
                raise ValueError(f"cannot log {missing}: not a number")
            if numbers:
                self.write(tag, numbers, _step(engine, global_step_transform))

        engine.add_event_handler(event_name, log)

    def attach_opt_params_handler(
        self,
        engine: Engine,
        event_name: Events | EventChoice,
        optimizer: Optimizer,
        param_name: str = "lr",
        tag: str = "",
        global_step_transform: StepTransform | None = None,
    ) -> None:
        """Log a parameter of each parameter group of an optimizer, as `lr/group_0` and so on."""

        def log() -> None:
            if self.active:
                values = {
                    f"{param_name}/group_{i}": float(g[param_name])
                    for i, g in enumerate(optimizer.param_groups)
                }
                self.write(tag, values, _step(engine, global_step_transform))

        engine.add_event_handler(event_name, log)


class TensorboardLogger(ScalarLogger):
    """Writes TensorBoard events; names are `tag/name`.

    Args:
        log_dir: folder of the event files.
        kwargs: further arguments of `torch.utils.tensorboard.SummaryWriter`.

    Raises:
        ImportError: tensorboard is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str], **kwargs: Any) -> None:
        super().__init__()
        if self.active:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError as error:
                raise ImportError("TensorboardLogger needs tensorboard: pip install tensorboard") from error
            self.writer = SummaryWriter(os.fspath(log_dir), **kwargs)

    def write(self, tag: str, scalars: Mapping[str, float], step: int) -> None:
        """See `ScalarLogger.write`."""
        for name, value in scalars.items():
            self.writer.add_scalar(f"{tag}/{name}" if tag else name, value, step)

    def close(self) -> None:
        """Write out what is pending and close the event file."""
        if self.active:
            self.writer.close()


class JsonLinesLogger(ScalarLogger):
    """Writes one JSON object a line, flushed at once, to the end of a file.

    Scalars: `{"time": seconds since 1970, "event": tag (or "optimizer"), "step": int, "metrics": {name: number}}`.
    `log` writes lines with other fields. Numbers that JSON doesn't have are the strings "nan", "inf" and "-inf".

    Put it into the checkpoint to resume exactly: lines that were written after the checkpoint are then removed,
    because they are about to be written again. For that the handler that saves must run after those that log. A last
    line that a crash left incomplete is removed in any case.

    Args:
        path: the file; it and its folder are made if they aren't there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = Path(path)
        if self.active:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab+")
            self._file.truncate(_complete_lines(self.path))

    def write(self, tag: str, scalars: Mapping[str, float], step: int) -> None:
        """See `ScalarLogger.write`."""
        self.log(tag or "optimizer", step=step, metrics=scalars)

    def log(self, event: str, **fields: Any) -> None:
        """Write a line of any JSON values; nothing on other ranks than 0."""
        if self.active:
            record = {"time": round(time.time(), 3), "event": event, **fields}
            self._file.write(
                json.dumps(_strict(record), ensure_ascii=False, allow_nan=False).encode() + b"\n"
            )
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self.active:
            self._file.close()

    def state_dict(self) -> dict[str, int]:
        """The size of the file in bytes (0 on other ranks than 0)."""
        return {"size": self._file.seek(0, os.SEEK_END) if self.active else 0}

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Remove what was written after that state. A file that is shorter, in another run's folder, stays."""
        if self.active and self._file.seek(0, os.SEEK_END) > state_dict["size"]:
            self._file.truncate(state_dict["size"])


def _step(engine: Engine, transform: StepTransform | None) -> int:
    event = engine.last_event or Events.COMPLETED
    return engine.state.count(event) if transform is None else transform(engine, event)


def _number(value: Any) -> float | None:
    """As a Python number; None if it isn't a number or a tensor of one."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    return value if isinstance(value, int) else float(value) if isinstance(value, Real) else None


def _strict(value: Any) -> Any:
    """Without the numbers that JSON doesn't have."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, (list, tuple)) else value


def _complete_lines(path: Path) -> int:
    """The size of a file up to its last line end."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - 65536)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0
