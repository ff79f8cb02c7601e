"""Two runs held against each other: what is called a regression, and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.__main__ import main
from experiments.compare import BETTER, CHANGED, SAME, UNKNOWN, WORSE, Change, compare
from experiments.records import Host, Record
from experiments.report import groups
from experiments.report.groups import Run
from tests.experiments import made, made_runs
from tests.experiments.made_runs import LOSSES, failed, skipped, starts


def run(*records: Record) -> Run:
    return Run(folder=Path(), groups=groups.grouped(records), left_out={}, missing=[])


def one(changes: list[Change], what: str) -> Change:
    (found,) = [change for change in changes if change.what == what]
    return found


@pytest.mark.parametrize(
    ("before", "after", "repeats", "verdict", "regression"),
    [
        (1.0, 1.25, 3, WORSE, True),
        (1.0, 1.03, 3, WORSE, False),  # certain, but less than the threshold
        (1.0, 0.8, 3, BETTER, False),
        (1.0, 1.0, 3, SAME, False),
        (1.0, 2.0, 1, UNKNOWN, False),
    ],
)
def test_speed(before: float, after: float, repeats: int, verdict: str, regression: bool) -> None:
    changes = compare(run(*starts(before, repeats=repeats)), run(*starts(after, repeats=repeats)))
    found = one(changes, "throughput")
    assert (found.verdict, found.regression) == (verdict, regression)
    assert f"{before / after - 1:+.1%}" in found.text


def test_the_threshold_is_given() -> None:
    before, after = run(*starts(1.0)), run(*starts(1.25))
    assert one(compare(before, after, threshold=0.19), "throughput").regression
    assert not one(compare(before, after, threshold=0.21), "throughput").regression


def test_a_slower_start_and_more_memory_are_regressions() -> None:
    before = run(*starts(1.0, first_step_s=10.0))
    ranks = [{**rank, "peak_memory_bytes": 2**21} for rank in made.measured([1.0])["ranks"]]
    after = run(*starts(1.0, first_step_s=12.0, changes={"ranks": ranks}))
    changes = compare(before, after)
    assert one(changes, "first step").regression and "+20.0%" in one(changes, "first step").text
    assert one(changes, "memory").regression and "1 -> 2 MiB: +100.0%" in one(changes, "memory").text


@pytest.mark.parametrize(
    ("losses", "verdict", "regression"),
    [
        (LOSSES, SAME, False),
        ([loss * (1 + 1e-6) for loss in LOSSES], SAME, False),
        ([loss * 1.01 for loss in LOSSES], CHANGED, True),
        (LOSSES[:-1], CHANGED, True),
    ],
)
def test_curves(losses: list[float], verdict: str, regression: bool) -> None:
    found = one(compare(run(*starts(1.0)), run(*starts(1.0, losses=losses))), "loss curve")
    assert (found.verdict, found.regression) == (verdict, regression)


def test_states() -> None:
    good, bad = starts(1.0), failed()
    lost = one(compare(run(*good), run(bad)), "state")
    assert (lost.verdict, lost.regression) == (WORSE, True)
    assert lost.text == "ok -> failed: rank 1 on here exited with code 7"
    won = one(compare(run(bad), run(*good)), "state")
    assert (won.verdict, won.regression, won.text) == (BETTER, False, "failed -> ok")
    assert one(compare(run(*good), run(skipped())), "state").regression
    assert one(compare(run(*good, *starts(1.0, processes=1)), run(*good)), "state").regression
    assert not one(compare(run(*good), run(*good, *starts(1.0, processes=1))), "state").regression


def test_runs_of_several_machines_are_matched_by_machine() -> None:
    there = Host.model_validate({**made.HOST, "name": "there"})
    moved = [record.model_copy(update={"host": there}) for record in starts(2.0)]
    both = run(*starts(1.0), *moved)
    assert {change.verdict for change in compare(both, both)} == {SAME}
    swapped = [record.model_copy(update={"host": there}) for record in starts(1.0)]
    slower = compare(both, run(*starts(2.0), *swapped))
    assert [c.verdict for c in slower if c.what == "throughput"] == [WORSE, BETTER]


def test_versions() -> None:
    newer: dict[str, Any] = {"versions": {"python": "3.11", "torch": "2.1"}}
    found = one(compare(run(*starts(1.0)), run(*starts(1.0, changes=newer))), "versions")
    assert found.text == "gloo: python 3.11, torch 2.0 -> gloo: python 3.11, torch 2.1"
    assert (found.verdict, found.regression) == (CHANGED, False)


def test_a_run_is_the_same_as_itself(tmp_path: Path) -> None:
    found = groups.read(made_runs.whole(tmp_path))
    assert {change.verdict for change in compare(found, found)} == {SAME}


def test_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = str(made_runs.write(tmp_path / "before", *starts(1.0)))
    after = str(made_runs.write(tmp_path / "after", *starts(1.25)))
    assert main(["compare", before, before]) == 0
    assert "0 regressions" in capsys.readouterr().out
    assert main(["compare", before, after]) == 1
    assert "REGRESSION idist-gloo-torchrun-1x2-" in capsys.readouterr().out
    assert main(["compare", before, after, "--threshold=0.5"]) == 0
    assert main(["compare", before, str(tmp_path)]) == 2
    assert "holds no records" in capsys.readouterr().err
    with pytest.raises(SystemExit) as error:
        main(["compare", before, after, "--threshold=-1"])
    assert error.value.code == 2
