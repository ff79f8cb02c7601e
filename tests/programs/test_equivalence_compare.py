"""The yardstick itself: rounding passes, planted mistakes don't."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest

import reference.idist as idist
from reference.programs.equivalence import compare
from reference.programs.equivalence.compare import CLOSE, DIFFERENT, IDENTICAL, difference, judge
from reference.programs.equivalence.training import RECIPES, STEPS, train

CURVE: dict[str, Any] = {
    "losses": [2.0, 1.0, 0.5],
    "state": {"weight": [1.0, -4.0], "bias": [0.001]},
    "digest": "abc",
    "replicas_equal": True,
}


def changed(**values: Any) -> dict[str, Any]:
    curve = copy.deepcopy(CURVE)
    curve["state"].update(values.pop("state", {}))
    return {**curve, **values}


@pytest.fixture(scope="module")
def serial() -> dict[str, Any]:
    return train(RECIPES["float64"])


def test_largest_differences_by_hand() -> None:
    found = difference(
        changed(losses=[2.0, 1.1, 0.4], state={"weight": [1.5, -4.0], "bias": [0.002]}, digest="d"), CURVE
    )
    assert found.loss_absolute == pytest.approx(0.1)
    assert found.steps == pytest.approx([0.0, 0.1, 0.2])
    assert found.loss_relative == pytest.approx(0.2)
    assert found.state_absolute == pytest.approx(0.5)
    assert found.state_relative == pytest.approx(1.0)  # the bias: 0.001 of 0.001; the weight: 0.5 of 4
    assert found.relative == found.state_relative
    assert not found.identical


@pytest.mark.parametrize(
    ("curve", "verdict"),
    [
        (CURVE, IDENTICAL),
        (changed(digest="other bits"), CLOSE),
        (changed(losses=[2.0, 1.0, float(np.nextafter(0.5, 1))]), CLOSE),
        (changed(losses=[2.0, 1.0, 0.5 * (1 + 1e-6)]), DIFFERENT),
        (changed(losses=[2.0, 1.0, float("nan")]), DIFFERENT),
        (changed(state={"bias": [0.001 * (1 + 1e-6)]}, digest="d"), DIFFERENT),
        (changed(state={"weight": [float("inf"), -4.0]}, digest="d"), DIFFERENT),
    ],
)
def test_verdict_in_float64(curve: dict[str, Any], verdict: str) -> None:
    found = difference(curve, CURVE)
    for expected in (IDENTICAL, CLOSE, DIFFERENT):
        fine = verdict == expected or (expected == CLOSE and verdict == IDENTICAL)
        assert judge(found, expected, "float64") == (verdict, fine)


def test_the_tolerance_shrinks_with_the_precision() -> None:
    found = difference(changed(losses=[2.0, 1.0, 0.5 * (1 + 1e-6)]), CURVE)
    assert judge(found, CLOSE, "float32") == (CLOSE, True)
    assert judge(found, CLOSE, "float64") == (DIFFERENT, False)
    assert compare.tolerance("float32") / compare.tolerance("float64") == 2.0**29


@pytest.mark.parametrize(
    ("curve", "text"),
    [(changed(losses=[2.0, 1.0]), "2 steps instead of 3"), (changed(state={"more": [1.0]}), "other tensors")],
)
def test_other_trainings_are_not_compared(curve: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        difference(curve, CURVE)


def test_same_seed_twice_gives_the_same_bits(serial: dict[str, Any]) -> None:
    again = train(RECIPES["float64"])
    assert judge(difference(again, serial), IDENTICAL, "float64") == (IDENTICAL, True)
    assert len(serial["losses"]) == STEPS
    json.dumps(again)  # what a cell writes


@pytest.mark.parametrize("name", ["another-seed", "lost-sample"])
def test_planted_mistakes_of_one_process_are_found(serial: dict[str, Any], name: str) -> None:
    verdict, passed = judge(difference(train(RECIPES[name]), serial), IDENTICAL, "float64")
    assert (verdict, passed) == (DIFFERENT, False)


def several(local_rank: int, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: train(RECIPES[name]) for name in names}


@pytest.mark.timeout(300)
def test_two_processes_agree_and_their_mistakes_are_found(serial: dict[str, Any]) -> None:
    names = ("float64", "lost-sample", "local-batch-norm", "equal-weights")
    curves = idist.spawn("gloo", several, (names,), nproc_per_node=2, timeout=120)
    verdicts = {name: judge(difference(curve, serial), CLOSE, "float64")[0] for name, curve in curves.items()}
    assert verdicts == {name: CLOSE if name == "float64" else DIFFERENT for name in names}
    assert curves["float64"]["replicas_equal"]
    assert not curves["local-batch-norm"]["replicas_equal"]  # each rank has its own running statistics
