"""The suite itself: it notices failures, ends broken worlds, and never hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import harness, runner
from tests.conformance.expectations import Refusal
from tests.conformance.registry import Check
from tests.conformance.runner import Ledger, WorldBroken
from tests.conformance.world import World

REFUSAL = Refusal(error="ValueError", text="no [0-9]+")


def _perform(tmp_path: Path, function: Callable[..., Any], refusal: Refusal | None = None) -> dict[str, Any]:
    check = Check(name="c", call="x", row="x", function=function, parameters={"value": 3})
    return runner.perform(check, World(backend=None, size=1, rank=0, scratch=tmp_path, limit=1), refusal)


def _raise(error: Exception) -> Callable[..., None]:
    def function(world: World, value: int) -> None:
        raise error

    return function


def test_outcomes(tmp_path: Path) -> None:
    assert _perform(tmp_path, lambda world, value: None)["status"] == "passed"
    failed = _perform(tmp_path, _raise(AssertionError("wrong")))
    assert failed["status"] == "failed" and failed["text"].rstrip().endswith("AssertionError: wrong")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("no 12"), "refused"),
        (ValueError("no 12, really"), "failed"),
        (TypeError("no 12"), "failed"),
    ],
)
def test_declared_refusals(tmp_path: Path, error: Exception, status: str) -> None:
    assert _perform(tmp_path, _raise(error), REFUSAL)["status"] == status


def test_a_refusal_that_is_gone_is_a_failure(tmp_path: Path) -> None:
    outcome = _perform(tmp_path, lambda world, value: None, REFUSAL)
    assert outcome["status"] == "failed" and "remove the declaration" in outcome["text"]


def _agree(folder: Path, statuses: list[list[str]]) -> list[str | None]:
    """Each rank in a thread posts its statuses; returns what stopped it."""
    stopped: list[str | None] = [None] * len(statuses)

    def run(rank: int) -> None:
        ledger = Ledger(folder, rank, len(statuses))
        try:
            for number, status in enumerate(statuses[rank]):
                ledger.post({"check": f"check {number}", "status": status, "broken": False})
                ledger.agree(f"check {number}", limit=0.5 if len(set(map(len, statuses))) > 1 else 20)
        except (WorldBroken, TimeoutError) as error:
            stopped[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(statuses))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return stopped


def test_ranks_that_agree_go_on(tmp_path: Path) -> None:
    assert _agree(tmp_path, [["passed", "failed", "refused"]] * 3) == [None] * 3


def test_ranks_that_differ_stop(tmp_path: Path) -> None:
    text = "stopped after check 1: the ranks ended it as ['passed', 'failed']"
    assert _agree(tmp_path, [["passed", "passed", "passed"], ["passed", "failed", "passed"]]) == [text, text]


def test_a_silent_rank_stops_the_others(tmp_path: Path) -> None:
    assert (
        _agree(tmp_path, [["passed", "passed"], ["passed"]])[0]
        == "check 1: not every rank came to an end within 0.5 s"
    )


def test_a_world_that_hangs_is_killed(tmp_path: Path) -> None:
    result = harness.run_world("serial", 1, ["all_reduce_requires_grad"], tmp_path, limit=0.05)
    assert result["error"] == "the world did not end within 0.05 s and was killed"
    assert result["checks"] == {"all_reduce_requires_grad": [None]}


def test_what_was_not_reached_is_told_from_what_failed(tmp_path: Path) -> None:
    passed, failed = {"status": "passed", "text": ""}, {"status": "failed", "text": "wrong"}
    worlds = harness.Worlds({}, tmp_path)
    checks: dict[str, Any] = {"a": [passed, passed], "b": [passed, failed], "c": [None, None]}
    worlds._results["gloo", 2] = {"checks": checks, "error": "stopped", "log": ""}
    assert [worlds.verdict("gloo", 2, name)[0] for name in "abc"] == ["passed", "failed", "not reached"]
    assert worlds.verdict("gloo", 2, "b")[1] == "rank 1: wrong"
    del checks["b"]  # the world died without a word: the first check that was not reached has to say so
    checks["d"] = [None, None]
    assert [worlds.verdict("gloo", 2, name)[0] for name in "acd"] == ["passed", "failed", "not reached"]
