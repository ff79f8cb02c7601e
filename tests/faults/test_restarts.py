"""A job that is started again after a failure goes on from its newest valid checkpoint, to the result of an unbroken one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.faults.running import SUPERVISED, Training, until

pytestmark = pytest.mark.timeout(900)
ITERATIONS = 80
SHORT = ("--num_epochs=20", "--validate_every=20", "--checkpoint_every=4", "--resume_from=restart")


def model(output: Path) -> dict[str, torch.Tensor]:
    (path,) = output.glob(f"*/checkpoints/training_checkpoint_{ITERATIONS}.pt")
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["model"]
    return state


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    training = Training(tmp_path_factory.mktemp("unbroken"), "torchrun", *SHORT)
    assert training.end() == 0, training.printed
    return model(training.output)


@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_killed_rank_and_a_restart(
    launcher: str, tmp_path: Path, unbroken: dict[str, torch.Tensor]
) -> None:
    """torchrun starts its processes again itself, the supervisor any other launcher."""
    older = tmp_path / "out" / "another-job" / "checkpoints" / "training_checkpoint_999.pt"
    older.parent.mkdir(parents=True)
    older.write_bytes(b"of another job, and no checkpoint at all")
    supervised = SUPERVISED if launcher == "torchrun" else (*SUPERVISED, "--restarts=2")
    restarts = {"RESTARTS": "2"} if launcher == "torchrun" else {}
    training = Training(tmp_path, launcher, *SHORT, supervised=supervised, **restarts)
    ranks = training.wait_for_steps()
    until(
        "there is a checkpoint",
        lambda: len(training.checkpoints()) > 1,
        lambda: training.process.poll() is None,
    )
    ranks[1].kill()
    assert training.end() == 0, training.printed
    assert "Resumed from" in training.printed
    results = [json.loads(file.read_text()) for file in training.output.glob("*/result.json")]
    assert [result["iteration"] for result in results if result["exit_reason"] == "finished"] == [ITERATIONS]
    resumed = model(training.output)
    assert resumed.keys() == unbroken.keys()
    for name, tensor in unbroken.items():
        assert torch.equal(resumed[name], tensor), name
