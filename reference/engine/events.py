"""What happens during a run (`Events`), where it stands (`State`), and the handlers that listen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch

EventFilter = Callable[[Any, int], bool]  # (engine, count)


class Events(Enum):
    """The moments of a run, in the order in which they happen.

    Each has a count: the iteration for the iteration events (for the `GET_BATCH_*` events, the iteration
    that the batch is for) and the epoch for all others. Filters look at that count:
    `Events.ITERATION_COMPLETED(every=100)`, `Events.EPOCH_STARTED(once=1)`. `|` joins events:
    `Events.EPOCH_COMPLETED(every=3) | Events.COMPLETED`.
    """

    STARTED = "started"
    """`run` has begun; also fired when a run continues."""
    EPOCH_STARTED = "epoch_started"
    """Also fired when an epoch is continued after a resume; then `state.epoch_iteration` is not 0."""
    PASS_STARTED = "pass_started"
    """A new iterator over the data is about to be made: `state.data_pass` is the number of earlier ones."""
    GET_BATCH_STARTED = "get_batch_started"
    GET_BATCH_COMPLETED = "get_batch_completed"
    ITERATION_STARTED = "iteration_started"
    ITERATION_COMPLETED = "iteration_completed"
    EPOCH_COMPLETED = "epoch_completed"
    TERMINATE = "terminate"
    """`terminate` was called; `COMPLETED` follows."""
    EXCEPTION_RAISED = "exception_raised"
    """The run failed. Handlers get `(engine, exception)` and replace the raising: raise again to pass it on."""
    COMPLETED = "completed"

    def __call__(
        self,
        event_filter: EventFilter | None = None,
        *,
        every: int | None = None,
        once: int | Sequence[int] | None = None,
        before: int | None = None,
        after: int | None = None,
    ) -> EventChoice:
        """This event, only when all given conditions hold for its count n.

        Args:
            event_filter: `event_filter(engine, n)` is true.
            every: n is a multiple of this number.
            once: n is this number, or one of these numbers.
            before: n is smaller than this number.
            after: n is larger than this number.

        Raises:
            ValueError: no condition, a count below 1, or a filter that doesn't take two arguments.
        """
        numbers = () if once is None else (once,) if isinstance(once, int) else tuple(once)
        for name, values in (("every", () if every is None else (every,)), ("once", numbers)):
            if any(not isinstance(value, int) or value < 1 for value in values):
                raise ValueError(f"{self.name}: {name} must be positive whole numbers, got {values!r}")
        conditions: list[EventFilter] = []
        if event_filter is not None:
            if not accepts(event_filter, 2):
                raise ValueError(f"{self.name}: event_filter must take (engine, count), got {event_filter!r}")
            conditions.append(event_filter)
        if every is not None:
            conditions.append(lambda _, n: n % every == 0)
        if once is not None:
            conditions.append(lambda _, n: n in numbers)
        if before is not None:
            conditions.append(lambda _, n: n < before)
        if after is not None:
            conditions.append(lambda _, n: n > after)
        if not conditions:
            raise ValueError(f"{self.name}: give at least one of event_filter, every, once, before, after")
        accept = conditions[0] if len(conditions) == 1 else lambda e, n: all(c(e, n) for c in conditions)
        return EventChoice(((self, accept),))

    def __or__(self, other: Events | EventChoice) -> EventChoice:
        return as_choice(self) | other


@dataclass(frozen=True)
class EventChoice:
    """One or more events, each with a filter or None: what `Events.X(...)` and `|` make."""

    parts: tuple[tuple[Events, EventFilter | None], ...]

    def __or__(self, other: Events | EventChoice) -> EventChoice:
        return EventChoice(self.parts + as_choice(other).parts)


def as_choice(event: Events | EventChoice) -> EventChoice:
    """The event as an `EventChoice`; ValueError for anything that isn't an event."""
    if isinstance(event, EventChoice):
        return event
    if isinstance(event, Events):
        return EventChoice(((event, None),))
    raise ValueError(f"expected an event such as Events.EPOCH_COMPLETED, got {event!r}")


@dataclass
class State:
    """Where a run stands. Handlers may add attributes of their own."""

    epoch: int = 0
    """The current epoch, from 1; after it, the last one."""
    iteration: int = 0
    """The current iteration over all epochs, from 1."""
    epoch_iteration: int = 0
    """Iterations that are complete in the current epoch."""
    data_pass: int = 0
    """How many iterators over the data came before the current one. It is `epoch - 1`, except when
    `epoch_length` is not the length of the data. Shuffling samplers use it as their epoch."""
    max_epochs: int | None = None
    epoch_length: int | None = None
    """Iterations in an epoch; None until the end of the first epoch over data without a length."""
    batch: Any = None
    output: Any = None
    """What the step function returned last."""
    metrics: dict[str, Any] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    """Seconds of the last epoch (`EPOCH_COMPLETED`) and of the run (`COMPLETED`). While handlers of those
    events run, the time until they began; afterwards, theirs included."""
    scaler: torch.amp.GradScaler | None = None
    """The gradient scaler of a supervised trainer in fp16, to be put into its checkpoints."""
    accumulating: bool = False
    """True while a trainer holds gradients of an unfinished group of accumulated iterations."""

    def count(self, event: Events) -> int:
        """The number that filters and global steps use for an event: an iteration or an epoch."""
        if event in (Events.ITERATION_STARTED, Events.ITERATION_COMPLETED):
            return self.iteration
        if event in (Events.GET_BATCH_STARTED, Events.GET_BATCH_COMPLETED):
            return self.iteration + 1
        return self.epoch


def accepts(
    function: Callable[..., Any], leading: int, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
) -> bool:
    """Whether the function can be called with that many leading arguments before these."""
    try:
        inspect.signature(function).bind(*(None,) * leading, *args, **(kwargs or {}))
    except TypeError:
        return False
    except ValueError:  # a function written in C that doesn't tell its signature: it knows no engine
        return leading == 0
    return True
