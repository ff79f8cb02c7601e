"""The matrix file, which combinations there are, and their commands."""

from __future__ import annotations

import itertools
import os
import subprocess
from pathlib import Path

import pytest

from experiments import matrix, rules
from experiments.matrix import MatrixError
from experiments.plan import folder_of, make
from experiments.rules import ROOT, Machine
from tests.experiments import made

GOOD = """\
presets:
  own:
    about: for a test
    repeats: 3
    time_limit: 60
    settings: {dataset: fake}
    axes:
      program: [idist, native_ddp]
      backend: [gloo, horovod]
      launcher: [torchrun, horovodrun]
      processes: [1, 2]
      batch_size: [64, 128]
    exclude:
      - {program: idist, processes: 1}
      - {batch_size: 128, backend: [horovod]}
    include:
      - {program: idist, backend: none, launcher: plain, processes: 1}
"""


def load(text: str, folder: Path) -> dict[str, matrix.Preset]:
    path = folder / "matrix.yaml"
    path.write_text(text)
    return matrix.load(path)


def test_axes_exclude_and_include(tmp_path: Path) -> None:
    cells = load(GOOD, tmp_path)["own"].cells()
    assert len(set(cells)) == len(cells)
    assert all(cell.settings.dataset == "fake" for cell in cells)
    assert {cell.settings.batch_size for cell in cells} == {64, 128}
    assert [cell for cell in cells if cell.program == "idist" and cell.processes == 1] == [cells[-1]]
    assert not [cell for cell in cells if cell.backend == "horovod" and cell.settings.batch_size == 128]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("repeats: 3", "repeats: 0", "matrix.yaml:4: presets.own.repeats: Input should be greater"),
        (
            "repeats: 3",
            "repeat: 3",
            "matrix.yaml:4: presets.own.repeat: unknown field; did you mean repeats?",
        ),
        (
            "{dataset: fake}",
            "{dateset: fake}",
            "matrix.yaml:6: presets.own.settings.dateset: unknown setting; did you",
        ),
        (
            "{dataset: fake}",
            "{dataset: mnist}",
            "matrix.yaml:6: presets.own.settings.dataset: Input should be",
        ),
        (
            "[gloo, horovod]",
            "[gloo, horovd]",
            "matrix.yaml:9: presets.own.axes.backend.1: 'horovd': Input should be",
        ),
        (
            "batch_size: [64",
            "batchsize: [64",
            "matrix.yaml:12: presets.own.axes.batchsize: unknown axis; did you mean",
        ),
        (
            "processes: [1, 2]",
            "processes: [two]",
            "matrix.yaml:11: presets.own.axes.processes.0: 'two': Input should",
        ),
        (
            "processes: [1, 2]",
            "processes: []",
            "matrix.yaml:7: presets.own.axes: Value error, the axis processes is",
        ),
        (
            "- {program: idist, processes: 1}",
            "- {progam: idist}",
            "matrix.yaml:14: presets.own.exclude.0.progam",
        ),
        (", launcher: plain", "", "matrix.yaml:17: presets.own.include.0: launcher is missing"),
        ("    time_limit: 60\n", "", "matrix.yaml:2: presets.own: Field required"),
        ("axes:", "axes: [", "no YAML"),
        ("presets:", "preset:", "a matrix file holds `presets:` and nothing else"),
    ],
)
def test_errors_name_line_and_field(before: str, after: str, message: str, tmp_path: Path) -> None:
    assert before in GOOD
    with pytest.raises(MatrixError) as error:
        load(GOOD.replace(before, after, 1), tmp_path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_presets_of_the_project() -> None:
    presets = matrix.load()
    assert set(presets) == {"smoke", "cpu", "gpu", "cluster"}
    for name, preset in presets.items():
        plan = make(name, preset, Path("out"), Machine("slurm"), no_data=lambda settings: None)
        names = [one.cell.name for one in plan.starts]
        assert len(set(names)) == len(names), "no two cells share a folder"
        assert len({one.cell for one in plan.starts}) == len(names)
    with pytest.raises(MatrixError, match="unknown preset 'smok': there are smoke, cpu"):
        matrix.choose(presets, "smok")


def test_repeats_are_interleaved(tmp_path: Path) -> None:
    preset = load(GOOD, tmp_path)["own"]
    machine = Machine(home=_all_installed(tmp_path))
    plan = make("own", preset, Path("out"), machine, no_data=lambda settings: None)
    runs = [one for one in plan.starts if one.skipped is None]
    first, second, third = (
        [one.cell.key for one in runs if one.cell.repeat == repeat] for repeat in (1, 2, 3)
    )
    assert [one.cell.repeat for one in runs] == sorted(one.cell.repeat for one in runs)
    assert first == second[::-1] == third and len(first) > 3
    assert [one.order for one in plan.starts] == list(range(1, len(plan.starts) + 1))


def _all_installed(folder: Path) -> Path:
    for name, modules in ((".venv", ("torch", "horovod", "ignite")), (".venv-xla", ("torch", "torch_xla"))):
        for module in modules:
            place = folder / name / "lib" / "python3.11" / "site-packages" / module
            place.mkdir(parents=True)
            (place / "__init__.py").touch()
    return folder


def test_what_is_left_out_and_skipped_and_why(tmp_path: Path) -> None:
    preset = load(GOOD, tmp_path)["own"]
    plan = make("own", preset, Path("out"), Machine(home=tmp_path), no_data=lambda settings: None)
    reasons = set(plan.left_out.values())
    assert any(reason.startswith("horovodrun cannot start gloo") for reason in reasons)
    assert any(reason.startswith("native_ddp is written for gloo, nccl") for reason in reasons)
    skipped = {one.cell.backend: one.skipped for one in plan.starts}
    assert skipped["gloo"] == "torch is not installed: make env BACKEND=gloo"
    assert skipped["horovod"] == "horovod is not installed: make env BACKEND=horovod"
    assert all(one.cell.repeat == 1 for one in plan.starts), "what is skipped is skipped once"

    plan = make(
        "own", preset, Path("out"), Machine(home=_all_installed(tmp_path)), no_data=lambda _: "no data"
    )
    assert {one.skipped for one in plan.starts} == {"no data"}


@pytest.mark.parametrize(
    ("changes", "scheduler", "message"),
    [
        ({"launcher": "slurm"}, "local", "slurm needs a cluster: SCHEDULER=slurm"),
        ({"nodes": 2}, "local", "2 nodes need a cluster"),
        ({}, "slurm", "under SCHEDULER=slurm processes are started by slurm and slurm_torchrun"),
        ({"backend": "nccl", "processes": 64}, "local", "needs 64 NVIDIA GPUs, this machine has"),
    ],
)
def test_what_a_machine_cannot_do(
    changes: dict[str, object], scheduler: str, message: str, tmp_path: Path
) -> None:
    found = Machine(scheduler, home=_all_installed(tmp_path)).cannot(made.cell(**changes))
    assert found is not None and message in found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"launcher": "horovodrun"}, "horovodrun cannot start gloo"),
        ({"program": "xla_native"}, "xla_native is written for xla-tpu, not for gloo"),
        ({"processes": 3}, "batch_size 64 cannot be shared out over 3 processes"),
        ({"backend": "none", "launcher": "plain"}, "2 processes need a backend"),
        ({"program": "native_ddp", "launcher": "mpirun"}, "native_ddp cannot be started by mpirun"),
        ({"settings": {"max_train_samples": 10}}, "max_train_samples 10 is less than one batch"),
        ({}, None),
    ],
)
def test_impossible_cells(changes: dict[str, object], message: str | None) -> None:
    found = rules.impossible(made.cell(**changes))
    assert found is message is None or (message is not None and found is not None and message in found)


@pytest.mark.parametrize("backend", rules.LAUNCHERS)
def test_the_rules_are_those_of_make_run(backend: str) -> None:
    """launchers/run.sh refuses the same pairs of backend and launcher."""
    everything = sorted(set(itertools.chain.from_iterable(rules.LAUNCHERS.values())))
    refused = []
    for launcher in everything:
        env = {
            **os.environ,
            "BACKEND": backend,
            "LAUNCHER": launcher,
            "NP": "1",
            "DRY_RUN": "1",
            "DATASET": "fake",
        }
        found = subprocess.run(
            ["launchers/run.sh"], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60
        )
        if found.returncode:
            assert f"LAUNCHER={launcher} cannot start BACKEND={backend}" in found.stderr
            refused.append(launcher)
    assert refused == [launcher for launcher in everything if launcher not in rules.LAUNCHERS[backend]]


def test_commands(tmp_path: Path) -> None:
    preset = load(GOOD, tmp_path)["own"]
    machine = Machine(home=_all_installed(tmp_path))
    plan = make("own", preset, Path("out"), machine, no_data=lambda settings: None)
    one = next(one for one in plan.starts if one.cell.backend == "horovod")
    assert one.line == (
        "docker/with.sh horovod -- env NP=2 launchers/horovodrun.sh -m reference.programs.idist --backend=horovod "
        "--dataset=fake --data_path=data --model=small --batch_size=64 --num_epochs=1 --learning_rate=0.05 --seed=543 "
        f"--output_path={folder_of(Path('out'), one.cell)}"
    )
    assert "--backend" not in plan.starts[-1].line and "launchers/plain.sh" in plan.starts[-1].line
    outputs = [next(word for word in one.command if word.startswith("--output_path")) for one in plan.starts]
    assert len(set(outputs)) == len(outputs)
