"""Recipes: other defaults of the trainer's options, by name. What a command or a file sets, wins over them. Pure: no torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Warm-up, peak, batch size and weight decay are those of D. Page, How to Train Your ResNet (2018), who chose them for 94 % with a
# smaller network. No epoch is validated but the last one, so that time goes into training.
FAST94: Mapping[str, Any] = {
    "model": "resnet18_cifar",
    "batch_size": 512,
    "num_epochs": 24,
    "num_warmup_epochs": 5,
    "learning_rate": 0.4,
    "weight_decay": 5e-4,
    "label_smoothing": 0.1,
    "with_amp": "bf16",
    "validate_every": 24,
}

PRESETS: Mapping[str, Mapping[str, Any]] = {"fast94": FAST94}

DESCRIPTION = (
    "fast94, made for 94 % on CIFAR-10 in little time on a GPU: "
    + ", ".join(f"{name} {value}" for name, value in FAST94.items())
    + "."
)
"""For `--help`: what the presets set."""
