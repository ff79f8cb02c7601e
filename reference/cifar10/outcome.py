"""What a run has reached, and the content of its result.json."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import reference.idist as idist
from reference.cifar10.config import Config
from reference.cifar10.rundir import TRAINING_CHECKPOINTS, RunDirectory
from reference.engine import Engine

FINISHED = "finished"
STOP_ITERATION = "stop_iteration"
STOPPED_BY = "stopped by "  # and the name of a signal


class Outcome:
    """Filled in while the run goes on, so that a run that fails tells how far it came.

    Args:
        config, run: of the run.
        started: when the command was started, in seconds since 1970.
    """

    def __init__(self, config: Config, run: RunDirectory, started: float) -> None:
        self._config = config
        self._run = run
        self._started = started
        self.exit_reason: str | None = None
        self.data: str | None = None
        self.epoch = 0
        self.iteration = 0
        self.train_metrics: dict[str, float] | None = None
        self.val_metrics: dict[str, float] | None = None
        self.n_evaluated: int | None = None
        self.evaluated_epoch: int | None = None
        self.speed: dict[str, float | None] = {}
        self._first_step: float | None = None

    def iteration_completed(self, trainer: Engine) -> None:
        """Take down where the run stands, and when its first step was done."""
        self.epoch, self.iteration = trainer.state.epoch, trainer.state.iteration
        if self._first_step is None:
            self._first_step = time.time() - self._started

    def result(self) -> dict[str, Any]:
        """The content of result.json, plain values; metrics are None where there was no evaluation."""
        return {
            "schema": 1,
            "exit_reason": self.exit_reason,
            "run_directory": str(self._run.path),
            "model": self._config.model,
            "data": self.data,
            "backend": idist.backend(),
            "world_size": idist.get_world_size(),
            "epoch": self.epoch,
            "iteration": self.iteration,
            "train_metrics": self.train_metrics,
            "train_metrics_mode": self._config.train_metrics,
            "val_metrics": self.val_metrics,
            "n_evaluated": self.n_evaluated,
            "evaluated_epoch": self.evaluated_epoch,
            "throughput_images_per_s": self.speed.get("samples_per_second"),
            "step_p50_s": self.speed.get("step_p50"),
            "step_p95_s": self.speed.get("step_p95"),
            "input_share": self.speed.get("input_share"),
            "train_time_s": self.speed.get("total_seconds"),
            "time_to_first_step_s": self._first_step,
            "wall_time_s": time.time() - self._started,
            "checkpoint": next(iter(reversed(self._files(TRAINING_CHECKPOINTS))), None),
            "best_models": self._files("checkpoints/best_model_*.pt"),
        }

    def _files(self, pattern: str) -> list[str]:
        """Files of the run, oldest first, by their place in its folder."""
        found = sorted(self._run.path.glob(pattern), key=lambda file: file.stat().st_mtime_ns)
        return [str(Path(file).relative_to(self._run.path)) for file in found]
