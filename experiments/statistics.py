"""Medians with intervals, and when a difference is one.

The interval is a bootstrap over two levels (A. C. Davison, D. V. Hinkley, Bootstrap Methods and their Application, 1997,
section 3.8): repeats are drawn with replacement, then steps within each. So it covers what differs from start to start as
well as what differs from step to step. With a single repeat it can only cover the steps; such a number is shown, but never
called different from another one.

Of two or three repeats a bootstrap knows little: it never leaves what they gave, and two pairs of starts of the same thing lie
apart in one case of three. So a difference has to pass Welch's t-test on the logarithms of the medians of the starts as well
(B. L. Welch, The generalization of "Student's" problem when several different population variances are involved, Biometrika
34, 1947), which takes into account how few there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import stats

from experiments.records import Record

CONFIDENCE = 0.95
DRAWS = 2000
_SEED = 543  # the same records give the same numbers


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A median and its interval, and what they are from."""

    value: float
    low: float
    high: float
    steps: int  # values in all repeats together
    repeats: int
    starts: tuple[float, ...] = ()  # the median of each repeat; of a ratio: none

    @property
    def n(self) -> str:
        """For people: "36 steps in 3 repeats"."""
        return f"{self.steps:,} step{'s' * (self.steps != 1)} in {self.repeats} repeat{'s' * (self.repeats != 1)}"


def _medians(samples: Sequence[Sequence[float]], draws: int, seed: int) -> npt.NDArray[np.float64]:
    """[draws] medians of resampled repeats and steps."""
    random = np.random.Generator(np.random.PCG64(seed))
    lengths = np.array([len(sample) for sample in samples])
    table = np.full((len(samples), lengths.max()), np.nan)
    for row, sample in zip(table, samples, strict=True):
        row[: len(sample)] = sample
    median = np.median if lengths.min() == lengths.max() else np.nanmedian
    found = []
    for part in np.array_split(np.arange(draws), 1 + draws * table.size // 2**21):  # 16 MB at once
        chosen = random.integers(0, len(samples), (len(part), len(samples)))
        steps = lengths[chosen][..., None]
        drawn = table[chosen[..., None], random.integers(0, steps, (*chosen.shape, table.shape[1]))]
        drawn[np.broadcast_to(np.arange(table.shape[1]) >= steps, drawn.shape)] = np.nan
        found.append(median(drawn.reshape(len(part), -1), axis=1))
    return np.concatenate(found)


def _interval(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _checked(samples: Iterable[Sequence[float]]) -> list[Sequence[float]]:
    kept = [sample for sample in samples if len(sample)]
    if not kept:
        raise ValueError("nothing was measured: there is no step after the warm-up")
    return kept


def estimate(samples: Iterable[Sequence[float]]) -> Estimate:
    """The median of all values, with its interval.

    Args:
        samples: the values of each repeat; a number of which a repeat has only one is a list of one.

    Raises:
        ValueError: no value at all.
    """
    kept = _checked(samples)
    low, high = _interval(_medians(kept, DRAWS, _SEED))
    everything = np.concatenate([np.asarray(sample, dtype=np.float64) for sample in kept])
    return Estimate(
        value=float(np.median(everything)),
        low=low,
        high=high,
        steps=len(everything),
        repeats=len(kept),
        starts=tuple(float(np.median(sample)) for sample in kept),
    )


def ratio(samples: Iterable[Sequence[float]], others: Iterable[Sequence[float]]) -> Estimate:
    """The median of `samples` divided by that of `others`; steps and repeats are those of the smaller part.

    The interval is the wider one of the bootstrap and of Welch's test, as a ratio is there to be called 1 or not.

    Raises:
        ValueError: one of them has no value.
    """
    ours, theirs = _checked(samples), _checked(others)
    a, b = estimate(ours), estimate(theirs)
    # two seeds: the two are independent
    low, high = _interval(_medians(ours, DRAWS, _SEED) / _medians(theirs, DRAWS, _SEED + 1))
    if min(a.repeats, b.repeats) > 1:
        welch = _welch(a.starts, b.starts)
        low, high = min(low, welch[0]), max(high, welch[1])
    return Estimate(
        value=a.value / b.value,
        low=low,
        high=high,
        steps=min(a.steps, b.steps),
        repeats=min(a.repeats, b.repeats),
    )


def ratio_of_turns(samples: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> Estimate:
    """The median quotient of samples that took turns: sample i of a repeat was measured right beside sample i of the other side.

    What drifts on the machine hits both, and is not in their quotient. The interval is the wider one of the bootstrap and of
    Student's over the repeats, on the logarithms of their medians.

    Raises:
        ValueError: the two sides have not the same numbers of samples, or none.
    """
    quotients = [
        [a / b for a, b in zip(ours, theirs, strict=True)]
        for ours, theirs in zip(samples, others, strict=True)
    ]
    found = estimate(quotients)
    if found.repeats < 2:
        return found
    logs = np.log(np.asarray(found.starts))
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1) * logs.std(ddof=1)) / len(logs) ** 0.5
    center = float(logs.mean())
    return replace(
        found,
        low=min(found.low, float(np.exp(center - reach))),
        high=max(found.high, float(np.exp(center + reach))),
    )


def together(pairs: Sequence[tuple[Estimate, Estimate]]) -> Estimate:
    """What several ratios of starts have in common: the mean of their logarithms, with Welch's interval over all starts.

    Each pair counts the same. The starts of all pairs tell how far one start is from the next, so the interval is narrower
    than that of any pair. It is about these pairs on average, and says nothing about a single one.

    Args:
        pairs: numbers above 0 with two starts or more, different starts in each pair.

    Raises:
        ValueError: a number with a single start, or no pair.
    """
    if not pairs or any(len(one.starts) < 2 for pair in pairs for one in pair):
        raise ValueError("each number must be from two starts or more")
    low, high = _welch_of([(a.starts, b.starts) for a, b in pairs])
    logs = [np.log(a.starts).mean() - np.log(b.starts).mean() for a, b in pairs]
    return Estimate(
        value=float(np.exp(np.mean(logs))),
        low=low,
        high=high,
        steps=sum(min(a.steps, b.steps) for a, b in pairs),
        repeats=sum(min(a.repeats, b.repeats) for a, b in pairs),
    )


def _welch(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """Interval of the ratio of what is typical of two kinds of starts, from two values or more of each, all above 0."""
    return _welch_of([(ours, theirs)])


def _welch_of(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> tuple[float, float]:
    logs = [tuple(np.log(np.asarray(values)) for values in pair) for pair in pairs]
    center = float(np.mean([ours.mean() - theirs.mean() for ours, theirs in logs]))
    samples = [values for pair in logs for values in pair]
    shares = [float(values.var(ddof=1)) / len(values) / len(pairs) ** 2 for values in samples]
    variance = sum(shares)
    if variance == 0:
        return float(np.exp(center)), float(np.exp(center))
    degrees = variance**2 / sum(
        share**2 / (len(values) - 1) for share, values in zip(shares, samples, strict=True)
    )
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees)) * variance**0.5
    with np.errstate(over="ignore"):  # two starts that are far apart: anything is possible
        return float(np.exp(center - reach)), float(np.exp(center + reach))


def differs(a: Estimate, b: Estimate) -> bool:
    """Whether two numbers above 0 are called different: each is from two repeats or more, their intervals do not touch, and
    Welch's test agrees."""
    if min(len(a.starts), len(b.starts)) < 2 or not (a.high < b.low or b.high < a.low):
        return False
    low, high = _welch(a.starts, b.starts)
    return not low <= 1 <= high


def is_one(found: Estimate) -> bool:
    """Whether a ratio may be 1: its interval holds 1, or is from a single repeat and so tells nothing."""
    return found.repeats < 2 or found.low <= 1 <= found.high


def step_times(records: Iterable[Record]) -> list[list[float]]:
    """The step times of each measured record, in seconds, without its warm-up."""
    return [r.measured.step_s[r.warmup :] for r in records if r.state == "ok" and r.measured is not None]


def throughput(records: Sequence[Record]) -> Estimate:
    """Images per second over all ranks: the batch size by the median step time.

    Args:
        records: repeats of one cell on one machine.

    Raises:
        ValueError: nothing was measured, or the records are of different cells.
    """
    keys = {record.cell.key for record in records}
    if len(keys) > 1:
        raise ValueError(f"different cells: {', '.join(sorted(keys))}")
    batch = records[0].cell.settings.batch_size if records else 0
    return estimate([[batch / seconds for seconds in sample] for sample in step_times(records)])


def times(records: Iterable[Record], name: str) -> Estimate:
    """Seconds from the launch to `name` (rendezvous_s, first_step_s or wall_s), one value a repeat.

    Raises:
        ValueError: no successful record has it.
    """
    found = [getattr(record.times, name) for record in records if record.state == "ok"]
    return estimate([[value] for value in found if value is not None])


def curve_gap(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The largest difference between two loss curves, relative to the loss of the same step; infinite if one is no number.

    Raises:
        ValueError: they have different numbers of steps, or none.
    """
    if len(ours) != len(theirs) or not len(ours):
        raise ValueError(f"curves of {len(ours)} and {len(theirs)} steps cannot be compared")
    a, b = np.asarray(ours), np.asarray(theirs)
    gap = np.max(np.abs(a - b) / np.maximum(np.abs(b), np.finfo(np.float64).tiny))
    return float(gap) if np.isfinite(gap) else float("inf")
