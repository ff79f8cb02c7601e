"""Intervals that hold what they promise, and differences that are only called so when they are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from experiments import statistics
from experiments.statistics import Estimate, differs, estimate, is_one, ratio, ratio_of_turns, together
from tests.experiments import made


def samples(mean: float, spread: float, repeats: int, steps: int, seed: int) -> list[list[float]]:
    random = np.random.default_rng(seed)
    centres = random.normal(mean, spread, repeats)
    return [random.normal(centre, 0.05, steps).tolist() for centre in centres]


def test_median_interval_and_n() -> None:
    found = estimate([[1.0, 2.0, 3.0], [2.0, 2.0, 9.0]])
    assert found.value == 2.0
    assert found.low <= found.value <= found.high
    assert found.n == "6 steps in 2 repeats"
    assert estimate([[1.0]]).n == "1 step in 1 repeat"
    assert estimate([[1.0, 2.0], []]).repeats == 1
    assert estimate([[0.1, 0.3]] * 3) == estimate([[0.1, 0.3]] * 3), "the same records, the same report"
    with pytest.raises(ValueError, match="nothing was measured"):
        estimate([[], []])


def test_the_interval_covers_what_differs_from_start_to_start() -> None:
    """Steps agree within a repeat, repeats do not: a bootstrap over steps alone would be far too sure."""
    found = estimate(samples(1.0, 0.3, repeats=4, steps=200, seed=1))
    alone = estimate([list(itertools.chain(*samples(1.0, 0.3, repeats=4, steps=200, seed=1)))])
    assert found.high - found.low > 3 * (alone.high - alone.low)


def test_most_intervals_hold_the_truth() -> None:
    held = 0
    for seed in range(40):
        found = estimate(samples(1.0, 0.1, repeats=6, steps=20, seed=seed))
        held += found.low <= 1.0 <= found.high
    assert held >= 30  # of 38 that a perfect interval would


def test_a_difference_needs_disjoint_intervals_and_repeats() -> None:
    slow, fast = (samples(mean, 0.01, repeats=3, steps=30, seed=1) for mean in (2.0, 1.0))
    assert differs(estimate(slow), estimate(fast))
    assert not differs(estimate(slow), estimate(samples(2.0, 0.01, repeats=3, steps=30, seed=2)))
    assert not differs(estimate(slow[:1]), estimate(fast)), "one start tells nothing of the next"
    assert not is_one(ratio(slow, fast))
    assert ratio(slow, fast).value == pytest.approx(2.0, rel=0.05)
    assert is_one(ratio(slow[:1], fast[:1]))
    same = ratio(samples(1.0, 0.05, 3, 30, seed=3), samples(1.0, 0.05, 3, 30, seed=4))
    assert is_one(same)
    assert same.repeats == 3


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_few_starts_of_the_same_are_seldom_called_different(repeats: int) -> None:
    """Intervals that do not touch would not be enough: 33 % of the pairs of two starts, 10 % of those of three."""
    random = np.random.default_rng(repeats)
    called = 0
    for _ in range(200):
        ours, theirs = (random.lognormal(2.0, 0.1, (repeats, 1)).tolist() for _ in range(2))
        different = differs(estimate(ours), estimate(theirs))
        assert not (different and is_one(ratio(ours, theirs)))
        called += different
    assert called <= 20  # of 10 that a perfect test would


def test_pairs_together_decide_more_than_one_and_are_right_about_as_often_as_they_say() -> None:
    random = np.random.default_rng(0)

    def pair(effect: float) -> tuple[Estimate, Estimate]:
        level = random.uniform(0.1, 10)  # the pairs have nothing in common but the effect
        ours, theirs = (level * np.exp(random.normal(size=3) * 0.05) for _ in range(2))
        return estimate([[value * (1 + effect)] for value in ours]), estimate([[value] for value in theirs])

    found = [together([pair(0.03) for _ in range(6)]) for _ in range(400)]
    held = np.mean([one.low <= 1.03 <= one.high for one in found])
    assert 0.92 <= held <= 0.99
    alone = [together([pair(0.03)]) for _ in range(100)]
    widths = [np.median([one.high - one.low for one in kind]) for kind in (found, alone)]
    assert widths[0] < widths[1] / 2
    assert (found[0].repeats, found[0].steps) == (18, 18)


def test_one_pair_together_is_welch() -> None:
    ours, theirs = estimate([[1.0], [1.1], [1.3]]), estimate([[0.9], [1.0], [1.2]])
    found = together([(ours, theirs)])
    test = stats.ttest_ind(np.log(ours.starts), np.log(theirs.starts), equal_var=False)
    low, high = test.confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((np.exp(low), np.exp(high)))
    with pytest.raises(ValueError, match="two starts or more"):
        together([(estimate([[1.0]]), theirs)])


def test_quotients_of_turns_do_not_see_what_drifts() -> None:
    random = np.random.default_rng(0)
    held, widths = [], []
    for _ in range(200):
        drift = np.exp(np.cumsum(random.normal(size=(3, 20)) * 0.2, axis=1))
        noise = [np.exp(random.normal(size=(3, 20)) * 0.02) for _ in range(2)]
        ours, theirs = (1.05 * drift * noise[0]).tolist(), (drift * noise[1]).tolist()
        found = ratio_of_turns(ours, theirs)
        held.append(found.low <= 1.05 <= found.high)
        widths.append((found.high - found.low) / (ratio(ours, theirs).high - ratio(ours, theirs).low))
    assert np.mean(held) >= 0.93
    assert np.median(widths) < 0.2
    with pytest.raises(ValueError):
        ratio_of_turns([[1.0, 2.0]], [[1.0]])


def test_repeats_of_different_lengths() -> None:
    found = estimate([[1.0] * 5, [2.0], [3.0] * 9])
    assert (found.value, found.starts) == (3.0, (1.0, 2.0, 3.0))
    assert 1.0 <= found.low <= found.high <= 3.0
    assert estimate([[1.0], [1.0, 1.0]]).low == estimate([[1.0], [1.0, 1.0]]).high == 1.0


def test_records_without_their_warm_up() -> None:
    records = [made.record([first, 0.5, 0.5, 0.5], warmup=1) for first in (9.0, 7.0)]
    assert statistics.step_times(records) == [[0.5] * 3] * 2
    assert statistics.throughput(records).value == 64 / 0.5
    assert statistics.throughput(records).n == "6 steps in 2 repeats"
    failed = made.record(state="failed", reason="exit code 7", measured=None)
    assert statistics.throughput([*records, failed]).repeats == 2
    assert statistics.times(records, "first_step_s").value == 2.0
    with pytest.raises(ValueError, match="nothing was measured"):
        statistics.throughput([failed])
    with pytest.raises(ValueError, match="different cells"):
        statistics.throughput([records[0], made.record(of=made.cell(launcher="spawn"))])


def test_gap_of_curves() -> None:
    assert statistics.curve_gap([1.0, 2.0], [1.0, 2.0]) == 0
    assert statistics.curve_gap([1.0, 2.2], [1.0, 2.0]) == pytest.approx(0.1)
    assert statistics.curve_gap([1.0, float("nan")], [1.0, 2.0]) == float("inf")
    with pytest.raises(ValueError, match="1 and 2 steps"):
        statistics.curve_gap([1.0], [1.0, 2.0])
