"""How far two trainings are apart, and whether that is rounding.

Nothing here knows how a curve came about, so planted mistakes can be put to the same test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

IDENTICAL, CLOSE, DIFFERENT = "bit-identical", "within tolerance", "different"

# Another order of a sum of n terms changes its result by about sqrt(n) roundings (independent errors; N. J. Higham, Accuracy
# and Stability of Numerical Algorithms, 2002, chapter 4). The longest sums of a step, those of the first batch norm, have 64
# images * 16 * 16 places = 16,384 terms, which makes 128 epsilon. Each of the 12 steps goes on from the last one: 12 * 128 =
# 1,536. The power of two above the double of that is the tolerance, a multiple of epsilon in both precisions: in
# float64 it is 5.4e8 times smaller than in float32, and a difference that is anything else than rounding can't follow it.
TOLERANCE_IN_EPSILONS = 4096


def tolerance(precision: str) -> float:
    """The relative difference that is taken for rounding; ``precision`` is "float32" or "float64"."""
    return TOLERANCE_IN_EPSILONS * float(np.finfo(precision).eps)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The largest differences between a training and its reference. Infinite where a number isn't finite."""

    loss_absolute: float
    loss_relative: float  # to the loss of the same step
    state_absolute: float
    state_relative: float  # to the largest value of the same tensor
    identical: bool  # all losses and all bits of the state
    steps: list[float]  # loss_relative of each step

    @property
    def relative(self) -> float:
        """The larger of the two relative ones."""
        return max(self.loss_relative, self.state_relative)


def difference(curve: Mapping[str, Any], reference: Mapping[str, Any]) -> Difference:
    """How far ``curve`` is from ``reference``; both are what `training.train` returns.

    Raises:
        ValueError: they have different numbers of steps, or different tensors.
    """
    losses, expected = np.array(curve["losses"]), np.array(reference["losses"])
    if losses.shape != expected.shape:
        raise ValueError(f"{len(losses)} steps instead of {len(expected)}")
    shapes, wanted = ({name: len(v) for name, v in c["state"].items()} for c in (curve, reference))
    if shapes != wanted:
        raise ValueError(f"other tensors than the reference: {shapes} instead of {wanted}")
    pairs = [(np.array(curve["state"][name]), np.array(reference["state"][name])) for name in wanted]
    steps = [_relative(ours, theirs) for ours, theirs in zip(losses, expected, strict=True)]
    return Difference(
        loss_absolute=_absolute(losses, expected),
        loss_relative=max(steps),
        state_absolute=max(_absolute(ours, theirs) for ours, theirs in pairs),
        state_relative=max(_relative(ours, theirs) for ours, theirs in pairs),
        identical=curve["losses"] == reference["losses"] and curve["digest"] == reference["digest"],
        steps=steps,
    )


def _absolute(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> float:
    gap = float(np.max(np.abs(ours - theirs)))
    return gap if np.isfinite(gap) else float("inf")


def _relative(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> float:
    gap, size = _absolute(ours, theirs), float(np.max(np.abs(theirs)))
    return gap / size if gap else 0.0


def judge(found: Difference, expected: str, precision: str) -> tuple[str, bool]:
    """What the two trainings are to each other (one of this module's three words), and whether that is as expected.

    Identical where close is expected is fine; a control has to be different.
    """
    verdict = IDENTICAL if found.identical else CLOSE if found.relative <= tolerance(precision) else DIFFERENT
    return verdict, verdict == expected or (verdict, expected) == (IDENTICAL, CLOSE)
