"""Accuracy, mean loss, and moving averages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import reference.idist as idist
from reference.engine import Engine, EventChoice, Events
from reference.metrics.base import Metric, OutputTransform, SumMetric, reduced, wide


class Accuracy(SumMetric):
    """Share of predictions that are right.

    `update` takes `(y_pred, y)`: multiclass logits [N, C, ...] with class indices [N, ...], or binary predictions
    of 0 and 1 (or False and True) with targets of the same shape. Each element of `y` is a prediction to count.

    Raises:
        ValueError: shapes that don't belong together; at `compute`, binary predictions other than 0 and 1.
    """

    _dtype = torch.int64
    _width = 2

    def update(self, output: tuple[Tensor, Tensor]) -> None:
        """Take a batch of predictions and targets in."""
        y_pred, y = output[0].detach(), output[1].detach()
        if (
            y_pred.dim() == y.dim() + 1
            and y_pred.shape[:1] + y_pred.shape[2:] == y.shape
            and y_pred.shape[1] > 1
        ):
            if y.is_floating_point():
                raise ValueError(f"{self.name}: class indices must be whole numbers, got {y.dtype}")
            y_pred = y_pred.argmax(dim=1)
            strange = torch.zeros((), dtype=torch.bool, device=y.device)
        elif y_pred.shape == y.shape and y.dim() > 0:
            strange = ((y_pred != 0) & (y_pred != 1)).any()
        else:
            raise ValueError(
                f"{self.name}: y_pred {list(y_pred.shape)} and y {list(y.shape)} don't belong together; expected "
                "logits [N, C, ...] with C >= 2 and classes [N, ...], or binary predictions shaped like y"
            )
        self._add(torch.stack([(y_pred == y).sum(), strange.long()]), y.numel())

    def compute(self) -> float:
        """Right predictions divided by all predictions, of all ranks."""
        right, strange = self._reduce()
        if strange:
            raise ValueError(f"{self.name}: binary predictions must be 0 or 1: round or threshold them first")
        return right / self.count


class Loss(SumMetric):
    """Mean of a loss over all samples.

    `update` takes `(y_pred, y)` or `(y_pred, y, kwargs of loss_fn)`.

    Args:
        loss_fn: `loss_fn(y_pred, y)` returns the mean over a batch, 0-d. It gets half-precision predictions in
            float32.
        output_transform: see `Metric`.
        batch_size: number of samples behind one value of the loss, by which it is weighted.
    """

    def __init__(
        self,
        loss_fn: Callable[..., Tensor],
        output_transform: OutputTransform = lambda output: output,
        batch_size: Callable[[Any], int] = len,
    ) -> None:
        super().__init__(output_transform)
        self._loss_fn = loss_fn
        self._batch_size = batch_size

    def update(self, output: Sequence[Any]) -> None:
        """Take a batch of predictions and targets in."""
        y_pred, y, *kwargs = output
        if isinstance(y_pred, Tensor) and y_pred.dtype in (torch.float16, torch.bfloat16):
            y_pred = y_pred.float()
        loss = self._loss_fn(y_pred, y, **(kwargs[0] if kwargs else {})).detach()
        if loss.dim() != 0:
            raise ValueError(
                f"{self.name}: loss_fn must return the mean over the batch, got shape {list(loss.shape)}"
            )
        samples = self._batch_size(y)
        self._add(loss.to(wide(torch.float64, loss.device)).reshape(1) * samples, samples)

    def compute(self) -> float:
        """The sum of all samples' losses divided by their number, of all ranks."""
        return self._reduce()[0] / self.count


class RunningAverage(Metric):
    """Exponential moving average over iterations, the mean over ranks: `alpha * old + (1 - alpha) * new`.

    Args:
        src: a metric to take each batch's value of (which communicates in each iteration), or nothing.
        alpha: weight of the past, in (0, 1].
        output_transform: without `src`, makes a number or 0-d tensor of the engine's output.
        epoch_bound: begin anew in each epoch.
    """

    def __init__(
        self,
        src: Metric | None = None,
        alpha: float = 0.98,
        output_transform: OutputTransform | None = None,
        epoch_bound: bool = True,
    ) -> None:
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha must be in (0, 1], got {alpha!r}")
        if src is not None and output_transform is not None:
            raise ValueError(
                "give src or output_transform, not both: the metric has an output_transform of its own"
            )
        self._src = src
        self._alpha = alpha
        self._epoch_bound = epoch_bound
        super().__init__(
            src._output_transform if src is not None else output_transform or (lambda output: output)
        )

    def reset(self) -> None:
        self._value: Tensor | float | None = None

    def update(self, output: Any) -> None:
        """Take one iteration in: a number or 0-d tensor, or with `src` that metric's input."""
        if self._src is not None:
            self._src.reset()
            self._src.update(output)
            output = self._src.compute()
        if isinstance(output, Tensor):
            if output.numel() != 1:
                raise ValueError(
                    f"{self.name}: expected one number, got a tensor of shape {list(output.shape)}"
                )
            output = output.detach().reshape(()).to(wide(torch.float64, output.device))
        self._value = (
            output if self._value is None else self._alpha * self._value + (1 - self._alpha) * output
        )

    def compute(self) -> float:
        """The mean of the ranks' averages (of the ranks that have one)."""
        mean = self._mean()
        if mean is None:
            raise self._empty()
        return mean

    def _mean(self) -> float | None:
        pair = (0.0, 0.0) if self._value is None else (float(self._value), 1.0)
        total, ranks = reduced(torch.tensor(pair, dtype=torch.float64))
        return total / ranks if ranks else None

    def attach(
        self, engine: Engine, name: str, event: Events | EventChoice = Events.ITERATION_COMPLETED
    ) -> None:
        """Update in each iteration, and leave the value in `state.metrics[name]` at `event` (default: each one).

        Only the latter reads the value from the device and communicates.
        """
        self.name = name
        engine.add_event_handler(
            Events.EPOCH_STARTED if self._epoch_bound else Events.STARTED, self._epoch_started
        )
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration_completed)
        engine.add_event_handler(event, self._publish, name)

    def _epoch_started(self, engine: Engine) -> None:
        if engine.state.epoch_iteration == 0 and (self._epoch_bound or engine.state.iteration == 0):
            self.reset()

    def _publish(self, engine: Engine, name: str) -> None:
        # there is nothing to publish where an epoch is resumed at its very end
        if (mean := self._mean()) is not None:
            engine.state.metrics[name] = mean

    def state_dict(self) -> dict[str, Any]:
        """Every rank's average; collective."""
        return {"ranks": idist.all_gather(None if self._value is None else float(self._value))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over this rank's average; with another world size the mean."""
        values = state_dict["ranks"]
        if len(values) == idist.get_world_size():
            self._value = values[idist.get_rank()]
        else:
            known = [value for value in values if value is not None]
            self._value = sum(known) / len(known) if known else None
