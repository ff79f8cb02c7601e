"""Code written for the tutorial's API runs on two gloo processes, with torchvision's data set and transforms."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PROGRAM = Path(__file__).with_name("tutorial_program.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 training and 20 test images in the form of the official files."""
    root = tmp_path_factory.mktemp("data")
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    random = np.random.default_rng(0)
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        pixels = random.integers(0, 256, (20, 3072), dtype=np.uint8)
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "labels": [k % 10 for k in range(20)]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [str(k) for k in range(10)]}))
    return root


def run(data: Path, output: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "run", "--backend=gloo", "--nproc_per_node=2"]
    env = {**os.environ, "CIFAR10_FOLDER": str(data), "OUTPUT_FOLDER": str(output), "PYTHONPATH": str(ROOT),
           "OMP_NUM_THREADS": "1", **environment}  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=500, env=env)


def test_tutorial_code_runs_after_changing_its_imports(data: Path, tmp_path: Path) -> None:
    done = run(data, tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.iterdir()
    assert re.fullmatch(r"resnet18_backend-gloo-2_\d{8}-\d{6}", folder.name)
    names = sorted(file.name for file in folder.iterdir())
    # 100 images in batches of 32, the last one dropped: 3 iterations an epoch, 9 in all; the newest checkpoint is kept.
    assert [name for name in names if name.startswith("training_")] == ["training_checkpoint_8.pt"]
    assert 1 <= sum(name.startswith("best_model_") for name in names) <= 2
    assert any(name.startswith("events.out.tfevents") for name in names)

    checkpoint = torch.load(folder / "training_checkpoint_8.pt", weights_only=True)
    assert {"trainer", "model", "optimizer", "lr_scheduler"} <= set(checkpoint)
    assert not any(name.startswith("module.") for name in checkpoint["model"])
    assert done.stderr.count("Train on CIFAR10") == 1, "only rank 0 logs"
    for epoch, count in ((1, 0), (2, 2), (3, 2)):
        assert (
            len(re.findall(rf"Epoch {epoch} - Evaluation time .* (?:train|val) metrics", done.stderr))
            == count
        )
    accuracy = float(re.findall(r"Accuracy: ([0-9.]+)", done.stderr)[-1])
    assert accuracy * 20 == pytest.approx(round(accuracy * 20)), "a share of the 20 test images"

    again = run(data, tmp_path / "resumed", RESUME_FROM=str(folder / "training_checkpoint_8.pt"))
    assert again.returncode == 0, again.stderr
    assert "Epoch[3] Complete" in again.stderr and "Epoch[2] Complete" not in again.stderr
