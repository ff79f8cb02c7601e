"""Starts this trainer without `python -m reference.cifar10`, which needs fire, and without TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.on_gpu.rows import Given

QUICK: dict[str, Any] = {
    "batch_size": 4, "max_train_samples": 16, "max_eval_samples": 8, "num_epochs": 2, "num_warmup_epochs": 1,
    "with_amp": "false",
}  # fmt: skip


def train(given: Given, name: str, **options: Any) -> dict[str, Any]:
    """Train in this process.

    Args:
        name: of the folder of the run.
        options: of the trainer.

    Returns:
        The run's result.json.
    """
    from reference.cifar10.config import make_config
    from reference.cifar10.launch import launch

    out = given.folder / name
    all_options = {
        "dataset": given.dataset,
        "data_path": given.data_path,
        "with_tensorboard": False,
        "output_path": str(out),
        **options,
        **(QUICK if given.quick else {}),
    }
    launch(make_config(all_options))
    (file,) = out.glob("*/result.json")
    return dict(json.loads(Path(file).read_text(encoding="utf-8")))
