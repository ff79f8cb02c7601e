"""`Metric`, and `SumMetric` for metrics that are made of sums over samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import reference.idist as idist
from reference.engine import Engine, Events

OutputTransform = Callable[[Any], Any]


class Metric:
    """Base class: `reset`, then `update(output)` for each batch, then `compute`.

    Attached to an engine, that happens by itself in each epoch, and the result is `state.metrics[name]`. One metric
    may be attached to several engines that run one after the other.

    Args:
        output_transform: makes `update`'s argument of the engine's output.
    """

    collective_state = True  # `state_dict` must be called on every rank

    def __init__(self, output_transform: OutputTransform = lambda output: output) -> None:
        self._output_transform = output_transform
        self.name = type(self).__name__
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        raise NotImplementedError

    def update(self, output: Any) -> None:
        """Take one batch in."""
        raise NotImplementedError

    def compute(self) -> float:
        """The value over all batches and ranks; ValueError if there was nothing on any rank."""
        raise NotImplementedError

    def attach(self, engine: Engine, name: str) -> None:
        """Compute this metric over each epoch of the engine and leave it in `state.metrics[name]`."""
        self.name = name
        engine.add_event_handler(Events.EPOCH_STARTED, self._epoch_started)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration_completed)
        engine.add_event_handler(Events.EPOCH_COMPLETED, self._publish, name)

    def _epoch_started(self, engine: Engine) -> None:
        if (
            engine.state.epoch_iteration == 0
        ):  # else a resumed epoch goes on with what `load_state_dict` brought
            self.reset()

    def _iteration_completed(self, engine: Engine) -> None:
        self.update(self._output_transform(engine.state.output))

    def _publish(self, engine: Engine, name: str) -> None:
        engine.state.metrics[name] = self.compute()

    def _empty(self) -> ValueError:
        return ValueError(f"metric {self.name!r} has nothing to compute from: no rank saw a sample")


class SumMetric(Metric):
    """A metric that is made of sums: a few accumulators on the device and a count on the host."""

    count = 0
    """After `compute`: the number of samples on all ranks."""
    _dtype = torch.float64
    _width = 1

    def reset(self) -> None:
        self._sums: Tensor | None = None
        self._samples = 0

    def _add(self, sums: Tensor, samples: int) -> None:
        """Add [width] sums that `samples` samples made."""
        sums = sums.detach().to(wide(self._dtype, sums.device))
        self._sums = sums if self._sums is None else self._sums.to(sums.device) + sums
        self._samples += samples

    def _local(self) -> Tensor:
        """[width + 1] on the CPU: the accumulators and the count."""
        sums = torch.zeros(self._width) if self._sums is None else self._sums.cpu()
        return torch.cat([sums.to(self._dtype), torch.tensor([self._samples], dtype=self._dtype)])

    def _reduce(self) -> list[float]:
        """The accumulators over all ranks; sets `count`, and raises if it is 0."""
        *sums, count = reduced(self._local())
        self.count = int(count)
        if self.count == 0:
            raise self._empty()
        return sums

    def state_dict(self) -> dict[str, Any]:
        """Every rank's accumulators; collective."""
        rows = idist.all_gather(self._local()[None])
        assert isinstance(rows, Tensor)
        return {"ranks": rows.tolist()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over this rank's accumulators; with another world size rank 0 takes them all."""
        rows = state_dict["ranks"]
        if len(rows) == idist.get_world_size():
            mine = rows[idist.get_rank()]
        else:
            mine = [sum(column) if idist.get_rank() == 0 else 0 for column in zip(*rows, strict=True)]
        self._samples = int(mine[-1])
        self._sums = torch.tensor(mine[:-1], dtype=self._dtype)


def wide(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype, or float32 for float64 on a device that doesn't have it."""
    return torch.float32 if dtype is torch.float64 and device.type == "mps" else dtype


def reduced(x: Tensor, op: str = "SUM") -> list[float]:
    """The 1-d tensor's values after reduction over all ranks."""
    result = idist.all_reduce(x, op)
    assert isinstance(result, Tensor)
    return list(result.tolist())
