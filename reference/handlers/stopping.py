"""Handlers that end a run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import reference.idist as idist
from reference.engine import Engine


class TerminateOnNan:
    """Terminates an engine, on all ranks in the same iteration, when its output has a NaN or an infinity on any rank.

    Attach it to `Events.ITERATION_COMPLETED`. All iterations are looked at, on the device; every `every` iterations
    the finding is read and shared, which waits for the device and communicates.

    Args:
        output_transform: what to look at; default: the whole output. Numbers and tensors, also inside of
            dictionaries, lists and tuples, are looked at, anything else isn't.
        every: iterations between two decisions.
    """

    def __init__(
        self, output_transform: Callable[[Any], Any] = lambda output: output, every: int = 1
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be at least 1, got {every!r}")
        self._output_transform = output_transform
        self._every = every
        self._bad: bool | Tensor = False
        self._decided = False
        self.triggered = False
        """Whether the last decision was to terminate."""

    def __call__(self, engine: Engine) -> None:
        """Look at this iteration."""
        self._decided = False
        self._bad = _either(self._bad, _not_finite(self._output_transform(engine.state.output)))
        if engine.state.iteration % self._every == 0:
            self.decide(engine)

    def decide(self, engine: Engine) -> None:
        """Read what was found since the last decision and terminate if there was something; collective.

        A second call in the same iteration does nothing.
        """
        if self._decided:
            return
        found, self._bad, self._decided = bool(self._bad), False, True
        self.triggered = bool(idist.all_reduce(found, "OR"))
        if self.triggered:
            logging.getLogger("reference.handlers").warning(
                "The output is NaN or infinite%s at or before iteration %d: the run is terminated.",
                "" if found else " on another rank", engine.state.iteration,
            )  # fmt: skip
            engine.terminate()


class EarlyStopping:
    """Terminates a trainer when the score has not improved for a number of evaluations.

    Attach it to `Events.COMPLETED` of an evaluator. The score must be the same on all ranks, as metrics are.

    Args:
        patience: evaluations without improvement after which to stop, at least 1.
        score_function: `score_function(evaluator)` returns a number; larger is better.
        trainer: the engine to terminate.
        min_delta: a smaller rise than this, over the best score, isn't an improvement.
        cumulative_delta: compare with the score of the last improvement even if a slightly better one came since.
    """

    def __init__(
        self,
        patience: int,
        score_function: Callable[[Engine], float],
        trainer: Engine,
        min_delta: float = 0.0,
        cumulative_delta: bool = False,
    ) -> None:
        if patience < 1 or min_delta < 0:
            raise ValueError(
                f"patience must be at least 1 and min_delta at least 0, got {patience!r} and {min_delta!r}"
            )
        self._patience = patience
        self._score_function = score_function
        self._trainer = trainer
        self._min_delta = min_delta
        self._cumulative_delta = cumulative_delta
        self.counter = 0
        self.best_score: float | None = None

    def __call__(self, engine: Engine) -> None:
        """Take in the score of one evaluation. NaN is no improvement."""
        score = float(self._score_function(engine))
        best = -math.inf if self.best_score is None else self.best_score
        if score > best + self._min_delta:
            self.best_score, self.counter = score, 0
            return
        if score > best and not self._cumulative_delta:
            self.best_score = score
        self.counter += 1
        if self.counter >= self._patience:
            self._trainer.logger.info("No better score in %d evaluations: training is stopped.", self.counter)
            self._trainer.terminate()

    def state_dict(self) -> dict[str, Any]:
        """The best score, and the number of evaluations since."""
        return {"counter": self.counter, "best_score": self.best_score}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.counter, self.best_score = state_dict["counter"], state_dict["best_score"]


def _not_finite(value: Any) -> bool | Tensor:
    """Whether there is a NaN or an infinity in it: a bool, or a 0-d tensor on the device."""
    if isinstance(value, Tensor):
        if not (value.is_floating_point() or value.is_complex()):
            return False  # class indices
        return ~torch.isfinite(value.detach()).all()
    if isinstance(value, float):
        return not math.isfinite(value)
    found: bool | Tensor = False
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            found = _either(found, _not_finite(item))
    return found


def _either(a: bool | Tensor, b: bool | Tensor) -> bool | Tensor:
    if isinstance(a, Tensor):
        return a | b
    return b | a if isinstance(b, Tensor) else a or b
