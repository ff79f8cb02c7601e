"""Schedules of optimizer parameters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from torch.optim import Optimizer


class PiecewiseLinear:
    """Sets a parameter of an optimizer by linear interpolation between milestones, one event after the other.

    Attach it to `Events.ITERATION_STARTED`: the value for event number i (from 0) is set before that iteration.
    Before the first milestone its value holds, after the last one that one's. Warm-up and linear decay:
    `[(0, 0.0), (warmup_iterations, peak), (iterations, 0.0)]`.

    Args:
        optimizer: whose `param_groups` are changed.
        param_name: the parameter, such as `"lr"`.
        milestones_values: `(event number, value)` with rising event numbers.
        param_group_index: change only this group.

    Raises:
        ValueError: no milestones, numbers that don't rise, an unknown parameter or group.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        param_name: str,
        milestones_values: Sequence[tuple[int, float]],
        param_group_index: int | None = None,
    ) -> None:
        self._milestones = [milestone for milestone, _ in milestones_values]
        self._values = [float(value) for _, value in milestones_values]
        if not self._milestones or any(
            not isinstance(milestone, int) or milestone < 0 for milestone in self._milestones
        ):
            raise ValueError(
                f"milestones must be whole numbers from 0, at least one: {list(milestones_values)!r}"
            )
        if any(a >= b for a, b in zip(self._milestones, self._milestones[1:], strict=False)):
            raise ValueError(f"milestones must rise: {self._milestones!r}")
        groups = optimizer.param_groups
        if param_group_index is not None and not 0 <= param_group_index < len(groups):
            raise ValueError(
                f"param_group_index={param_group_index!r}: the optimizer has {len(groups)} groups"
            )
        self.optimizer = optimizer
        self.param_name = param_name
        self._group_index = param_group_index
        if any(param_name not in group for group in self._groups()):
            raise ValueError(
                f"param_name={param_name!r} is not a parameter of this optimizer: {sorted(groups[0])}"
            )
        self.event_index = 0

    def _groups(self) -> list[dict[str, Any]]:
        # looked up each time: an optimizer's load_state_dict makes new groups
        groups = self.optimizer.param_groups
        return groups if self._group_index is None else [groups[self._group_index]]

    def get_param(self) -> float:
        """The value for the next event."""
        right = bisect_right(self._milestones, self.event_index)
        if right == 0:
            return self._values[0]
        if right == len(self._milestones):
            return self._values[-1]
        start, end = self._milestones[right - 1 : right + 1]
        low, high = self._values[right - 1 : right + 1]
        return low + (high - low) / (end - start) * (self.event_index - start)

    def __call__(self) -> None:
        """Set the value for this event."""
        value = self.get_param()
        for group in self._groups():
            group[self.param_name] = value
        self.event_index += 1

    def state_dict(self) -> dict[str, int]:
        """The number of events so far."""
        return {"event_index": self.event_index}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on after that many events."""
        self.event_index = int(state_dict["event_index"])
