"""Job arrays: which cells stand in which, the commands that submit them, and what their output is read as."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import slurm
from experiments.plan import Planned, make
from experiments.rules import ROOT, Machine
from experiments.slurm_log import result_of
from tests.experiments.test_matrix import load

MATRIX = """\
presets:
  own:
    about: for a test
    repeats: 2
    time_limit: 100
    settings: {threads: 2}
    axes:
      program: [idist]
      backend: [gloo, nccl]
      launcher: [slurm, slurm_torchrun]
      processes: [2]
      nodes: [1, 2]
"""


def starts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Planned]:
    monkeypatch.setattr(Machine, "cannot", lambda *_, **__: None)
    plan = make("own", load(MATRIX, folder)["own"], folder, Machine("slurm"), no_data=lambda settings: None)
    return plan.starts


def test_arrays_hold_cells_of_one_layout_and_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = starts(tmp_path, monkeypatch)
    found = slurm.arrays(everything)
    assert [array.name for array in found[:4]] == [
        "r1-slurm-1x2-t2",
        "r1-slurm-2x2-t2",
        "r1-slurm_torchrun-1x2-t2",
        "r1-slurm_torchrun-2x2-t2",
    ]
    assert sum(len(array.starts) for array in found) == len(everything) == 16
    assert all(len(array.starts) == 2 for array in found)  # gloo and nccl
    assert all(array.name.startswith("r2-") for array in found[4:])


def test_the_commands_that_submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_task, by_node = (slurm.arrays(starts(tmp_path, monkeypatch))[index] for index in (1, 3))
    run = Path("/shared/run")
    variables, command = slurm.sbatch(by_task, run, 100.0, None)
    assert variables == {
        "TIMEOUT": "100",
        "LOG_DIR": "/shared/run/slurm/logs",
        "NP": "2",
        "OMP_NUM_THREADS": "2",
    }
    assert shlex.join(command) == (
        "sbatch --parsable --array=0-1%1 --nodes=2 --ntasks-per-node=2 --time=7 --no-requeue "
        "--job-name=matrix-r1-slurm-2x2-t2 --output=/shared/run/slurm/r1-slurm-2x2-t2-%a.out --cpus-per-task=2 "
        "launchers/slurm.sbatch experiments/supervise/rank.py -m experiments.slurm_cell "
        "/shared/run/slurm/r1-slurm-2x2-t2.json %a"
    )
    _, command = slurm.sbatch(by_node, run, 100.0, "17")
    for word in ("--ntasks-per-node=1", "--cpus-per-task=4", "--dependency=afterany:17"):
        assert word in command


def test_a_process_becomes_the_program_of_its_cell(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        json.dumps([["-c", "wrong"], ["-c", "import sys; print(sys.argv)", "two words"]])
    )
    command = [sys.executable, "-m", "experiments.slurm_cell", str(tmp_path / "a.json"), "1"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert found.stdout.strip() == "['-c', 'two words']", found.stderr


def event(task: int, when: float, name: str, **values: object) -> str:
    line = json.dumps({"time": when, "event": name, **values})
    return f"{task}: [node{task + 1}:{task}] #supervise {line}\n"


GOOD = (
    "RUNTIME=venv srun ...\n"
    + event(0, 11.0, "started", pid=1)
    + event(1, 12.0, "started", pid=1)
    + event(0, 15.0, "rendezvous", rank=0, world_size=2)
    + event(1, 16.0, "rendezvous", rank=1, world_size=2)
    + "0: [node1:0] epoch 1, step 1 of 4: loss 2.4100, 2459 images/s\n"
    + event(0, 18.0, "first_step", rank=0)
    + event(0, 19.0, "exit", returncode=0)
    + event(1, 20.0, "exit", returncode=0)
    + "slurm.sbatch: job 3 ends with exit code 0\n"
)


def test_a_good_job(tmp_path: Path) -> None:
    (tmp_path / "out").write_text(GOOD)
    found = result_of(tmp_path / "out", tmp_path / "logs", started=10.0, limit=100)
    assert (found["reason"], found["exit_code"], found["failed"]) == ("finished", 0, None)
    assert [found[name] for name in ("started", "rendezvous_s", "first_step_s", "wall_s")] == [
        10.0,
        6.0,
        8.0,
        10.0,
    ]
    assert found["hosts"] == ["node1", "node2"]
    assert set(found["logs"]) == {"launcher.log", "node1-rank-0.log"}
    assert "step 1 of 4" in (tmp_path / "logs" / "node1-rank-0.log").read_text()
    found = result_of(tmp_path / "out", tmp_path / "logs", started=None, limit=100)
    assert found["first_step_s"] == 7.0  # after its first process


def test_jobs_that_failed(tmp_path: Path) -> None:
    text = (
        event(0, 11.0, "started", pid=1)
        + event(1, 11.0, "started", pid=1)
        + "1: [node2:1] Traceback (most recent call last):\n1: [node2:1] ValueError: no\n"
        + event(1, 12.0, "exit", returncode=7)
    )
    (tmp_path / "out").write_text(text + "slurm_torchrun.sbatch: job 3 ends with exit code 7\n")
    found = result_of(tmp_path / "out", tmp_path / "logs", started=10.0, limit=100)
    assert found["exit_code"] == 7 and "rank 1 on node2" in found["reason"]
    assert found["failed"]["rank"] == 1 and found["failed"]["log"] == "node2-rank-1.log"
    (tmp_path / "out").write_text(text + "slurm.sbatch: job 3 ends with exit code 124\n")
    assert (
        result_of(tmp_path / "out", tmp_path / "logs", started=10.0, limit=100)["reason"]
        == "not ready after 100 s"
    )
    (tmp_path / "out").write_text(text)
    found = result_of(tmp_path / "out", tmp_path / "logs", started=10.0, limit=100)
    assert found["exit_code"] == 1 and "cancelled, or its node failed" in found["reason"]
    found = result_of(tmp_path / "nothing", tmp_path / "logs", started=None, limit=100)
    assert found["exit_code"] == 1 and found["started"] is None


def test_an_unknown_scheduler_is_refused() -> None:
    command = [sys.executable, "-m", "experiments", "plan"]
    env = {"PATH": "/usr/bin:/bin", "SCHEDULER": "pbs"}
    found = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert found.returncode == 2 and "SCHEDULER=pbs is unknown: use local or slurm" in found.stderr
