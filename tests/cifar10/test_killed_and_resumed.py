"""A run that was killed goes on from its last checkpoint: bit for bit with as many processes, to rounding with others."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
ITERATIONS = 12
OPTIONS = shlex.split(
    "--dataset=digits --model=resnet18 --max_train_samples=96 --max_eval_samples=32 --batch_size=16 --num_epochs=2 "
    "--learning_rate=0.01 --sync_bn --checkpoint_every=2 --log_every_iters=1 --with_tensorboard=false --threads=1"
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def start(output: Path, *options: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "reference.cifar10",
        "run",
        *OPTIONS,
        f"--output_path={output}",
        *options,
    ]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(output: Path, *options: str) -> Path:
    """Train to the end; the run directory."""
    before = set(output.glob("*/"))
    process = start(output, *options)
    printed = process.communicate(timeout=400)[0]
    assert process.returncode == 0, printed[-3000:]
    (made,) = set(output.glob("*/")) - before
    return made


def losses(folder: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return {line["step"]: line["metrics"]["batch loss"] for line in lines if line["event"] == "training"}


def state(folder: Path) -> dict[str, torch.Tensor]:
    path = folder / "checkpoints" / f"training_checkpoint_{ITERATIONS}.pt"
    model: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["model"]
    return model


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of a run that got SIGKILL as soon as it had written a checkpoint."""
    output = tmp_path_factory.mktemp("killed")
    process = start(output)
    for _ in range(40_000):
        if process.poll() is not None or list(output.glob("*/checkpoints/training_checkpoint_*.pt")):
            break
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    return output


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("whole"))


def test_with_as_many_processes_it_is_the_same_run(killed: Path, whole: Path) -> None:
    resumed = run(killed, "--resume_from=auto")
    expected, found = losses(whole), losses(resumed)
    assert 1 < min(found) < ITERATIONS
    assert found == {step: loss for step, loss in expected.items() if step >= min(found)}
    expected_state, found_state = state(whole), state(resumed)
    assert expected_state.keys() == found_state.keys()
    assert all(torch.equal(expected_state[name], found_state[name]) for name in expected_state)


def test_with_two_processes_the_same_batches_follow(whole: Path, tmp_path: Path) -> None:
    stopped = run(tmp_path, "--stop_iteration=5")
    resumed = run(tmp_path, f"--resume_from={stopped}", "--backend=gloo", "--nproc_per_node=2")
    expected, found = losses(whole), losses(resumed)
    assert sorted(found) == list(range(6, ITERATIONS + 1))
    # Another batch or augmentation is off by percents at once; rounding is not, but training amplifies it.
    for step, tolerance in ((6, 1e-4), (7, 1e-3), (8, 1e-2)):
        assert found[step] == pytest.approx(expected[step], rel=tolerance), (found, expected)
