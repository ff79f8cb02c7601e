"""What the batch scripts make of what srun says: recorded output of Slurm 22.05 goes in, the job's end comes out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ENDED = "srun: error: node2: task 3: {}\nsrun: launch/slurm: _step_signal: Terminating StepId=7.0\n"
OTHERS = "srun: error: node2: task 2: Terminated\nsrun: error: node1: task 0: Exited with exit code 1\n"
REPORT = """\
1: Root Cause (first observed failure):
1: [0]:
1:   rank      : 3 (local_rank: 1)
1:   exitcode  : {} (pid: 387) {}
0: Root Cause (first observed failure):
0:   exitcode  : 1 (pid: 591)
srun: error: node1: task 0: Exited with exit code 1
srun: error: node2: task 1: Exited with exit code 1
"""


def run(
    folder: Path, script: str, said: str, code: int, **variables: str
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run a batch script with an srun that says this and ends with this code; its end, and what scontrol was asked."""
    (folder / "said").write_text(said)
    scripts = {
        "srun": f'cat "{folder}/said"; exit {code}',
        "scontrol": f'echo "$@" >>"{folder}/asked"; echo node1',
    }
    for name, text in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin", "LOG_DIR": str(folder / "logs"), "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2", **variables,
    }  # fmt: skip
    command = [str(ROOT / "launchers" / script), "program.py"]
    result = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=60)
    asked = folder / "asked"
    return result, asked.read_text() if asked.exists() else ""


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("Exited with exit code 7", 7),
        ("Killed", 137),
        ("Out Of Memory", 137),
        ("Segmentation fault (core dumped)", 139),
        ("Aborted (core dumped)", 134),
    ],
)
def test_the_first_task_to_end_decides(tmp_path: Path, how: str, code: int) -> None:
    said = (
        "3: Traceback (most recent call last):\n3: KeyError: 'three'\n0: late\n" + ENDED.format(how) + OTHERS
    )
    result, asked = run(tmp_path, "slurm.sbatch", said, 143)
    assert result.returncode == code
    end = result.stdout.split("the last lines of process 3, which ended first:\n")[1]
    assert end == (
        f"3: Traceback (most recent call last):\n3: KeyError: 'three'\nslurm.sbatch: node2: task 3: {how}\n"
        f"slurm.sbatch: job 7 ends with exit code {code}\n"
    )
    assert "requeue" not in asked


@pytest.mark.parametrize(("exitcode", "signal", "code"), [("7", "", 7), ("-9", " (SIGKILL)", 137)])
def test_the_first_torchrun_to_report_decides(tmp_path: Path, exitcode: str, signal: str, code: int) -> None:
    result, asked = run(tmp_path, "slurm_torchrun.sbatch", REPORT.format(exitcode, signal), 1)
    assert result.returncode == code
    assert result.stdout.endswith(
        f"1:   exitcode  : {exitcode} (pid: 387) {signal}\nslurm_torchrun.sbatch: job 7 ends with exit code {code}\n"
    )
    assert "requeue" not in asked


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("slurm.sbatch", ENDED.format("Exited with exit code 140")),
        ("slurm.sbatch", ENDED.format("User defined signal 2")),
        ("slurm_torchrun.sbatch", REPORT.format(140, "")),
        ("slurm_torchrun.sbatch", REPORT.format(-12, " (SIGUSR2)")),
    ],
)
@pytest.mark.parametrize(("restarts", "again"), [("0", True), ("9", True), ("10", False)])
def test_usr2_requeues_up_to_ten_times(
    tmp_path: Path, script: str, said: str, restarts: str, again: bool
) -> None:
    result, asked = run(tmp_path, script, said, 143, SLURM_RESTART_COUNT=restarts)
    assert result.returncode == 140
    assert ("requeue 7" in asked) == again


@pytest.mark.parametrize("script", ["slurm.sbatch", "slurm_torchrun.sbatch"])
def test_a_step_that_does_not_start_keeps_the_code_of_srun(tmp_path: Path, script: str) -> None:
    said = "srun: error: Unable to create step for job 7: More processors requested than permitted\n"
    result, _ = run(tmp_path, script, said, 1)
    assert result.returncode == 1
    assert result.stdout.endswith(f"{script}: job 7 ends with exit code 1\n")


@pytest.mark.parametrize("script", ["slurm.sbatch", "slurm_torchrun.sbatch"])
def test_success(tmp_path: Path, script: str) -> None:
    result, asked = run(tmp_path, script, "0: done\n", 0)
    assert result.returncode == 0
    assert result.stdout.endswith(f"0: done\n{script}: job 7 ends with exit code 0\n")
    assert (tmp_path / "logs" / "7.log").read_text() == "0: done\n"
    assert "requeue" not in asked
