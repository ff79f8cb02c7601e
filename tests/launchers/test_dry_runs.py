"""What every launcher starts: exactly what its dry run prints, with the arguments as they were given."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = sorted(Path(__file__).with_name("golden").glob("*.txt"))
AWKWARD = ["two words", "it's", '"quoted" $HOME *', "", "semi;colon", "new\nline"]
STARTED = ("python", "torchrun", "horovodrun", "mpirun", "srun", "sbatch")
JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_NNODES": "2",
    "SLURM_CPUS_PER_TASK": "4",
}


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs that say the same on every machine, and others that write down how they were started."""
    folder = tmp_path_factory.mktemp("bin")
    scripts = {
        "nproc": "echo 8",
        "id": "echo 1000",
        "scontrol": "echo node1; echo node2",
        **dict.fromkeys(("docker", "podman", "nvidia-smi"), "exit 1"),
        **{name: f'printf "%s\\0" "$OMP_NUM_THREADS" {name} "$@" >"$RECORD"' for name in STARTED},
    }
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def environment(stubs: Path, **variables: str) -> Mapping[str, str]:
    return {"PATH": f"{stubs}:/usr/bin:/bin", "HOME": "/home/user", "LC_ALL": "C.UTF-8", **variables}


def answers(transcript: str, stubs: Path) -> str:
    """The transcript with the answers that its commands give now."""
    lines = []
    for line in transcript.splitlines():
        if line.startswith("$ "):
            result = subprocess.run(
                ["bash", "-c", line[2:]], env=environment(stubs, DRY_RUN="1"), cwd=ROOT, timeout=60,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
            lines += [line, *result.stdout.replace(str(ROOT), "/clone").splitlines()]
            if result.returncode:
                lines.append(f"[exit code {result.returncode}]")
        elif not line or line.startswith("# "):
            lines.append(line)
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
def test_dry_runs_print_what_the_golden_files_hold(golden: Path, stubs: Path) -> None:
    expected = golden.read_text()
    got = answers(expected, stubs)
    if os.environ.get("UPDATE_GOLDEN") == "1":
        golden.write_text(got)
    assert got == expected


def started(command: list[str], stubs: Path, record: Path, **variables: str) -> list[str]:
    """How the command starts one of the programs: the value of OMP_NUM_THREADS, and the program's arguments."""
    record.unlink(missing_ok=True)
    variables = {"RECORD": str(record), "LOG_DIR": str(record.parent), "MASTER_PORT": "12345", **variables}
    subprocess.run(command, env=environment(stubs, **variables), cwd=ROOT, timeout=60, check=True)
    return record.read_text().split("\0")[:-1]


@pytest.mark.parametrize(
    ("launcher", "variables"),
    [
        ("plain.sh", {}),
        ("spawn.sh", {}),
        ("torchrun.sh", {}),
        ("torch_distributed_launch.sh", {}),
        ("horovodrun.sh", {}),
        ("mpirun.sh", {}),
        ("slurm.sbatch", {}),
        ("slurm.sbatch", {**JOB, "SLURM_NTASKS_PER_NODE": "2"}),
        ("slurm_torchrun.sbatch", {}),
        ("slurm_torchrun.sbatch", {**JOB, "SLURM_NTASKS_PER_NODE": "1"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "in-a-job" if value else "",
)
def test_the_line_that_is_printed_starts_the_same_as_the_launcher(
    launcher: str, variables: dict[str, str], stubs: Path, tmp_path: Path
) -> None:
    launch = [f"launchers/{launcher}", "a program.py", *AWKWARD]
    if launcher != "plain.sh" and "SLURM_JOB_ID" not in variables:
        variables = {**variables, "NP": "2"}
    really = started(launch, stubs, tmp_path / "record", **variables)
    dry = environment(stubs, DRY_RUN="1", MASTER_PORT="12345", **variables)
    printed = subprocess.run(
        launch, env=dry, cwd=ROOT, timeout=60, check=True, capture_output=True, text=True
    ).stdout
    line = printed.split("\nRUNTIME=")[
        0
    ]  # outside of a job the batch scripts print the job's command as well
    assert started(["bash", "-c", line], stubs, tmp_path / "record") == really
    at = really.index("a program.py")
    assert really[at : at + 1 + len(AWKWARD)] == ["a program.py", *AWKWARD]


def test_a_path_with_spaces_survives(stubs: Path, tmp_path: Path) -> None:
    clone = tmp_path / "a clone's folder"
    clone.mkdir()
    (clone / "launchers").symlink_to(ROOT / "launchers")
    launch = [str(clone / "launchers" / "torchrun.sh"), str(clone / "program.py")]
    assert started(launch, stubs, tmp_path / "record", NP="2")[-1] == str(clone / "program.py")
    submitted = started([str(clone / "launchers" / "slurm.sbatch"), "x"], stubs, tmp_path / "record")
    assert submitted[1:] == ["sbatch", str(clone / "launchers" / "slurm.sbatch"), "x"]
    assert shlex.split(shlex.join(submitted)) == submitted
