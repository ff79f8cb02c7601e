"""`python -m reference.cifar10.reproduce`: a recorded run comes out the same, and planted differences are found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from reference.cifar10 import reproduce
from reference.cifar10.options import OptionError

ROOT = Path(__file__).parents[2]


def events(losses: list[float]) -> str:
    lines = [
        {
            "time": 1.0 * i,
            "event": "training",
            "step": i + 1,
            "metrics": {"batch loss": loss, "images/s": 10.0 + i},
        }
        for i, loss in enumerate(losses)
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


def run_directory(folder: Path, losses: list[float], weight: float = 1.0) -> Path:
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "events.jsonl").write_text(events(losses))
    state = {"schema": 1, "model": {"weight": torch.full((3,), weight), "count": torch.tensor(4)}}
    torch.save(state, folder / "checkpoints" / "training_checkpoint_3.pt")
    return folder


LOSSES = [2.5, 2.25, 2.0]


@pytest.mark.parametrize(
    ("losses", "weight", "same", "verdict"),
    [
        (LOSSES, 1.0, True, "bit-identical: 3 logged values"),
        ([2.5, 2.25 * (1 + 1e-6), 2.0], 1.0, True, "within tolerance: .* from training step 2 on"),
        (LOSSES, 1.0 + 1e-6, True, "within tolerance: .* from the last checkpoint on"),
        ([2.5, 2.25, 2.1], 1.0, False, "different from training step 3 on: batch loss differs by 0.048"),
        ([2.5, 2.25], 1.0, False, "different: only one run has 'batch loss' of training at step 3"),
    ],
)
def test_verdicts(losses: list[float], weight: float, same: bool, verdict: str, tmp_path: Path) -> None:
    first = run_directory(tmp_path / "first", LOSSES)
    second = run_directory(tmp_path / "second", losses, weight)
    text, found = reproduce.compare(first, second)
    assert found is same
    assert re.match(verdict, text), text


def test_what_differs_now_is_said() -> None:
    then = {"torch version": "1", "git revision": "a", "uncommitted changes": True}
    lines = list(reproduce.differences(then, {**then, "torch version": "2", "uncommitted changes": False}))
    assert "differs: torch version: 1 then, 2 now" in lines
    assert any("uncommitted changes, which no revision can bring back" in line for line in lines)
    clean = {"git revision": "a", "uncommitted changes": False}
    assert list(reproduce.differences(clean, clean)) == ["code, versions, data and machine are the same"]


def recorded(**changes: Any) -> dict[str, Any]:
    manifest = {
        "command": "python -m reference.cifar10 run",
        "launcher": {"name": "torchrun", "command": "python torchrun --nproc-per-node=2"},
        "distributed": {"backend": "gloo", "world_size": 2, "nnodes": 1, "ranks": [{"threads": 3}]},
    }
    return {"manifest": {**manifest, **changes}, "config": {"backend": "gloo", "batch_size": 64}}


def test_the_command_repeats_launcher_processes_and_threads(tmp_path: Path) -> None:
    command, variables = reproduce.command_of(recorded(), tmp_path)
    assert command[0].endswith("launchers/torchrun.sh")
    assert variables == {"NP": "2"}
    assert {"--batch_size=64", "--backend=gloo", "--threads=3", f"--output_path={tmp_path}"} <= set(command)
    launch = {"name": "torchrun", "command": "python -m torch.distributed.launch --nproc_per_node=2"}
    assert reproduce.command_of(recorded(launcher=launch), tmp_path)[0][0].endswith(
        "torch_distributed_launch.sh"
    )
    command, _ = reproduce.command_of(recorded(launcher={"name": "spawn", "command": None}), tmp_path)
    assert command[0] == sys.executable
    assert "--nproc_per_node=2" in command


def test_several_nodes_are_refused_with_the_way_out(tmp_path: Path) -> None:
    nodes = {"backend": "gloo", "world_size": 4, "nnodes": 2, "ranks": [{"threads": 1}]}
    with pytest.raises(OptionError, match="the run had 2 nodes: start it there again"):
        reproduce.run_again(tmp_path, recorded(distributed=nodes))


@pytest.mark.parametrize("arguments", [[], ["--help"], ["no-such-folder"]])
def test_wrong_arguments_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        reproduce.main(arguments)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_is_reproduced_bit_for_bit(tmp_path: Path) -> None:
    options = "--dataset=digits --max_train_samples=96 --max_eval_samples=64 --batch_size=32 --num_epochs=1"
    options += (
        f" --model=mobilenet_v3_small --log_every_iters=1 --with_tensorboard=false --output_path={tmp_path}"
    )
    run = [sys.executable, "-m", "reference.cifar10", "run", *options.split()]
    subprocess.run(run, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (made,) = tmp_path.glob("mobilenet*")
    again = [sys.executable, "-m", "reference.cifar10.reproduce", str(made)]
    done = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "code, versions, data and machine are the same" in done.stdout or "uncommitted" in done.stdout
    assert "bit-identical: " in done.stdout.splitlines()[-1]
