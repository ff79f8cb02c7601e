"""Matrix runs in real processes under the supervisor: records whatever happens, resume, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from experiments import runner
from experiments.board import LiveBoard
from experiments.plan import Plan, Planned, folder_of
from experiments.records import Record, read_records
from experiments.rules import ROOT, Machine
from experiments.runner import RunError, Runner
from tests.experiments import made

PROGRAM = "tests/experiments/cell_program.py"
PRESET = {
    "about": "for a test",
    "time_limit": 30,
    "axes": {name: [1] for name in ("program", "backend", "launcher", "processes")},
}


class Notes:
    """A board."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, bool]] = []
        self.lines: list[str] = []

    def started(self, planned: Planned) -> None: ...

    def line(self, text: str) -> None:
        self.lines.append(text)

    def ended(self, planned: Planned, record: Record, *, kept: bool) -> None:
        self.ends.append((record.state, kept))


class Setting:
    """A folder, and a python in an environment of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run = folder / "run"
        self.starts = folder / "starts"
        self.starts.touch()
        monkeypatch.chdir(ROOT)
        monkeypatch.setenv("STARTS", str(self.starts))
        monkeypatch.setenv("RESULT", str(folder / "made.json"))
        (folder / "made.json").write_text(json.dumps(made.measured([0.1, 0.1])))
        (folder / ".venv" / "bin").mkdir(parents=True)
        (folder / ".venv" / "bin" / "python").symlink_to(sys.executable)
        self.machine = Machine(home=folder)
        self.board = Notes()

    def plan(self, *hows: str, **preset: object) -> Plan:
        starts = []
        for order, how in enumerate(hows, start=1):
            empty = made.planned(order)
            command = ["launchers/plain.sh", PROGRAM, str(folder_of(self.run, empty.cell)), how]
            skipped = "not here" if how == "skipped" else None
            starts.append(empty.model_copy(update={"command": command, "skipped": skipped}))
        return Plan.model_validate(
            {
                "preset_name": "own",
                "preset": {**PRESET, **preset},
                "scheduler": "local",
                "starts": [one.model_dump() for one in starts],
                "left_out": {},
            }
        )

    def go(self, plan: Plan, *, resume: bool = False) -> int:
        runner.prepare(self.run, plan, resume=resume)
        return Runner(self.run, plan, self.board, self.machine).run()


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    return Setting(tmp_path, monkeypatch)


def test_every_start_leaves_a_record(setting: Setting) -> None:
    assert setting.go(setting.plan("works", "fails", "skipped", "silent", "works")) == 1
    records = read_records(setting.run)
    assert [record.state for record in records] == ["ok", "failed", "skipped", "failed", "ok"]
    good, failed, skipped, silent, _ = records
    assert good.measured is not None and good.exit_code == 0 and good.reason == "finished"
    assert good.times.wall_s is not None and good.times.wall_s > 0
    assert failed.exit_code == 7 and failed.failed is not None and failed.failed.exit_code == 7
    assert "7" in failed.reason
    assert good.hosts == [good.host.name] * 2 and skipped.hosts == []
    assert skipped.reason == "not here" and skipped.started is None
    assert silent.reason.startswith("the program left no result")
    for record in (good, failed, silent):
        folder = folder_of(setting.run, record.cell)
        assert record.logs and all((folder / log).is_file() for log in record.logs)
        assert any("step 1 of 2" in (folder / log).read_text() for log in record.logs)
        assert record.command[0] == "launchers/plain.sh" and record.environment == {"NP": "2"}
    if failed.failed.log is not None:
        assert (folder_of(setting.run, failed.cell) / failed.failed.log).is_file()
    assert len(setting.starts.read_text().splitlines()) == 4
    assert any("step 1 of 2" in line for line in setting.board.lines)


def test_resume_runs_what_is_missing_or_failed(setting: Setting) -> None:
    assert setting.go(setting.plan("works", "fails", "skipped")) == 1
    with pytest.raises(RunError, match="--resume goes on with it"):
        setting.go(setting.plan("works", "works", "works"))
    setting.starts.write_text("")
    setting.board.ends.clear()
    assert setting.go(setting.plan("works", "works", "works"), resume=True) == 0
    assert setting.board.ends == [("ok", True), ("ok", False), ("ok", False)]
    assert len(setting.starts.read_text().splitlines()) == 2
    with pytest.raises(RunError, match="is of another matrix: repeats has changed"):
        setting.go(setting.plan("works", "works", "works", repeats=2), resume=True)


def test_a_cell_has_a_time_limit(setting: Setting) -> None:
    assert setting.go(setting.plan("hangs", "works", time_limit=3)) == 1
    first, second = read_records(setting.run)
    assert (first.state, second.state) == ("failed", "ok")
    assert "3 s" in first.reason
    assert not _left(setting.run)


def test_another_world_than_asked_for_is_a_failure(setting: Setting, tmp_path: Path) -> None:
    other = made.measured([0.1], made.cell(processes=1))
    (tmp_path / "made.json").write_text(json.dumps(other))
    assert setting.go(setting.plan("works")) == 1
    assert read_records(setting.run)[0].reason == "it ran with world_size 1 instead of 2"
    (tmp_path / "made.json").write_text(json.dumps(made.measured([0.1], replicas_equal=False)))
    assert setting.go(setting.plan("works"), resume=True) == 1
    assert read_records(setting.run)[0].reason == "the ranks ended with different parameters"


def test_the_board_on_a_terminal_and_without(setting: Setting) -> None:
    from rich.console import Console

    plan = setting.plan("works", "skipped")
    for terminal in (True, False):
        console = Console(
            force_terminal=terminal,
            width=160,
            height=20,
            record=True,
            file=(setting.run.parent / "out").open("w"),
        )
        with LiveBoard(plan, console) as board:
            board.started(plan.starts[0])
            board.line("[here:0] epoch 1, step 3 of 44: loss 2.0, 512 images/s")
            if terminal:
                console.print(board.table())
            board.ended(plan.starts[0], made.record(of=plan.starts[0].cell), kept=False)
            board.ended(
                plan.starts[1],
                made.record(of=plan.starts[1].cell, state="skipped", reason="not here", measured=None),
                kept=False,
            )
        text = console.export_text()
        assert ("step 3 of 44" in text) == terminal
        assert "skipped" in text and "not here" in text and "128" in text


def _left(run: Path) -> list[psutil.Process]:
    """Processes whose command names the folder of the run."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(run) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


MATRIX = """\
presets:
  long:
    about: for a test
    time_limit: 200
    settings: {dataset: digits, num_epochs: 100000, threads: 1}
    axes: {program: [idist], backend: [none], launcher: [plain], processes: [1], seed: [1, 2]}
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_ctrl_c_ends_the_cell_and_leaves_a_record(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    run = tmp_path / "run"
    home = str(Path(sys.prefix).parent)
    command = [
        sys.executable,
        "-m",
        "experiments",
        "run",
        "--preset=long",
        f"--matrix={tmp_path / 'matrix.yaml'}",
    ]
    env = {**os.environ, "VENV_HOME": home}
    process = subprocess.Popen(
        [*command, f"--output={run}"],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not list(run.glob("cells/*/events.jsonl")) and process.poll() is None:
        assert time.monotonic() < deadline, "no cell has started"
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 130, output
    (record,) = read_records(run)
    assert record.state == "interrupted" and "SIGINT" in record.reason
    assert not _left(run)
    found = subprocess.run(
        [sys.executable, "-m", "experiments", "status", str(run)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert "1 interrupted, 1 not yet" in found.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--preset=smok"], "unknown preset 'smok': there are smoke, cpu, gpu, cluster"),
        (["status", "/nowhere"], "/nowhere is not the folder of a matrix run"),
        (["collect", "/nowhere", "--output=/tmp/none"], "/nowhere holds no records"),
    ],
)
def test_wrong_commands_are_one_line(arguments: list[str], message: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "experiments", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert found.returncode == 2
    assert message in found.stderr and len(found.stderr.splitlines()) == 1
