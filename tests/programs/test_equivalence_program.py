"""The program around the trainings: commands, deadlines, verdicts, report and pictures, with made-up curves."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest

from reference.programs.equivalence import __main__ as program
from reference.programs.equivalence import cell as cell_program
from reference.programs.equivalence import running
from reference.programs.equivalence.matrix import (
    CELLS,
    CONTROL,
    LAUNCHERS,
    SECTIONS,
    SERIAL,
    TORCHRUN,
    XLA_2,
    Cell,
)
from reference.programs.equivalence.results import judge_all
from reference.programs.equivalence.running import Outcome, Runner, run_command


def curve(shift: float = 0.0, replicas_equal: bool = True) -> dict[str, Any]:
    return {
        "losses": [2.0 + shift, 1.5, 1.0],
        "state": {"weight": [1.0, 2.0]},
        "digest": f"bits {shift}",
        "replicas_equal": replicas_equal,
    }


def outcomes() -> dict[Cell, Outcome]:
    """What a run gives in which all is well."""
    facts = {"torch": "2.0", "python": "3.10"}
    made = {}
    for cell in CELLS:
        shift = 0.1 if cell is CONTROL else 0.0
        curves = {recipe: curve(shift) for recipe in cell.recipes}
        made[cell] = Outcome(cell=cell, seconds=1.0, facts=facts, curves=curves)
    return made


def runs(pid: int) -> bool:
    """Whether a process is there; one that only waits for init to take note of its end is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def failures(made: dict[Cell, Outcome]) -> dict[tuple[str, str], str]:
    rows = (row for _, section_rows in judge_all(made) for row in section_rows if row.passed is False)
    return {(row.comparison.cell.name, row.comparison.recipe): row.verdict for row in rows}


def test_every_comparison_is_made_once() -> None:
    assert failures(outcomes()) == {}
    seen = [(item.cell, item.recipe, item.reference) for section in SECTIONS for item in section.comparisons]
    assert len(set(seen)) == len(seen)
    assert len({cell.name for cell in CELLS}) == len(CELLS)


@pytest.mark.parametrize(
    ("cell", "recipe", "wrong", "verdict"),
    [
        (LAUNCHERS[0], "float32", curve(1e-9), "within tolerance"),  # launchers have to be bit-identical
        (XLA_2, "float64", curve(1e-9), "different"),
        (XLA_2, "float32", curve(1e-2), "different"),
        (CONTROL, "lost-sample", curve(), "bit-identical"),  # a control has to be found
        (TORCHRUN, "float64", curve(replicas_equal=False), "the ranks ended with different parameters"),
    ],
)
def test_a_wrong_curve_fails_its_comparison(
    cell: Cell, recipe: str, wrong: dict[str, Any], verdict: str
) -> None:
    made = outcomes()
    made[cell].curves[recipe] = wrong
    assert failures(made)[cell.name, recipe] == verdict


def test_a_failed_cell_fails_and_a_skipped_one_does_not() -> None:
    made = outcomes()
    made[XLA_2] = Outcome(cell=XLA_2, skipped="not here")
    assert failures(made) == {}
    made[XLA_2] = Outcome(cell=XLA_2, failed="exit code 1")
    assert set(failures(made)) == {(XLA_2.name, "float32"), (XLA_2.name, "float64")}
    assert "exit code 1" in failures(made)[XLA_2.name, "float32"]


def test_commands() -> None:
    assert TORCHRUN.shown() == (
        "docker/with.sh gloo -- env NP=2 OMP_NUM_THREADS=1 launchers/torchrun.sh -m "
        "reference.programs.equivalence.cell --backend=gloo --recipes=float32,float64 --out=gloo-torchrun-2.json"
    )
    assert SERIAL.command(Path("a b.json")) == [
        "launchers/plain.sh",
        "-m",
        "reference.programs.equivalence.cell",
        "--recipes=float32,float64",
        "--out=a b.json",
    ]
    for cell in CELLS:
        assert (running.ROOT / "launchers" / f"{cell.launcher}.sh").is_file()


def test_the_whole_program_with_made_up_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = outcomes()
    made[XLA_2] = Outcome(cell=XLA_2, skipped="not here")
    monkeypatch.setattr(Runner, "run", lambda self, cell: made[cell])
    options = [f"--output={tmp_path}", f"--work={tmp_path / 'cells'}"]
    assert program.main(options) == 0
    text = (tmp_path / "equivalence.md").read_text()
    for cell in CELLS:
        assert f"`{cell.shown()}`" in text
    assert "skipped: not here" in text and "2 were not made" in text
    data = json.loads((tmp_path / "equivalence.json").read_text())
    assert len(data["comparisons"]) == sum(len(section.comparisons) for section in SECTIONS)
    for picture in tmp_path.glob("*.svg"):
        assert f"]({picture.name})" in text
        ElementTree.parse(picture)
    assert len(list(tmp_path.glob("*.svg"))) == 2

    made[SERIAL] = dataclasses.replace(made[SERIAL], failed="exit code 7", curves={})
    assert program.main(options) == 1
    assert "FAIL World sizes" in capsys.readouterr().out


def test_deadline_ends_every_process_also_in_other_sessions(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = (
        f"trap '' TERM; setsid sh -c 'echo $$ >>{pids}; sleep 600' & echo $$ >>{pids}; sleep 600 & wait; wait"
    )
    assert run_command(["bash", "-c", script], {}, tmp_path / "log", deadline=5.0) is None
    found = [int(line) for line in pids.read_text().split()]
    assert found
    assert not any(runs(pid) for pid in found)


def test_a_cell_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = (
        f"setsid sh -c 'echo $$ >{pids}; exec sleep 600' & until [ -s {pids} ]; do sleep 0.1; done; exit 3"
    )
    assert run_command(["bash", "-c", script], {}, tmp_path / "log", deadline=60.0) == 3
    assert not runs(int(pids.read_text()))


def test_runner_tells_failed_skipped_and_wrong_worlds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner(python=Path("/bin/python"), xla_python=tmp_path / "none", folder=tmp_path, deadline=5.0)
    assert "make env BACKEND=xla-tpu" in str(runner.run(XLA_2).skipped)

    monkeypatch.setattr(running, "run_command", lambda *_: 7)
    assert str(runner.run(SERIAL).failed).startswith("exit code 7")
    monkeypatch.setattr(running, "run_command", lambda *_: None)
    assert str(runner.run(SERIAL).failed).startswith("no end within 5 s")

    def write(command: list[str], *_: Any) -> int:
        out = Path(command[-1].removeprefix("--out="))
        out.write_text(json.dumps({"backend": "gloo", "world_size": 1, "curves": {"float32": curve()}}))
        return 0

    monkeypatch.setattr(running, "run_command", write)
    assert runner.run(TORCHRUN).failed == "it ran with world_size 1 instead of 2"


def test_cell_refuses_an_unknown_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cell_program.main(["--recipes=float16", "--out=x.json"])
    assert "float16: there are float32, float64" in capsys.readouterr().err
