"""The folder of a run: the one place that knows its paths."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import reference.idist as idist

TRAINING_CHECKPOINTS = "checkpoints/training_checkpoint_*.pt"
"""Pattern of the files, in a run directory, that a run can go on from."""


@dataclass(frozen=True, kw_only=True)
class RunDirectory:
    """Where each part of a run's record stands."""

    path: Path

    @classmethod
    def create(cls, output_path: str | Path, model: str) -> RunDirectory:
        """A new folder `<model>_backend-<backend>-<world size>_<timestamp>` under `output_path`, the same on all ranks.

        Rank 0 makes it; a run that starts in the same second gets a number behind its timestamp.

        Raises:
            OSError: rank 0 cannot make the folder; RuntimeError on the other ranks.
        """
        root = Path(output_path).expanduser().absolute()
        name = f"{model}_backend-{idist.backend()}-{idist.get_world_size()}_{datetime.now():%Y%m%d-%H%M%S}"
        made: Path | None = idist.one_rank_only(with_barrier=True)(_make_new)(root, name)
        run = cls(path=Path(idist.broadcast(str(made), safe_mode=True)))
        # On a node that does not share rank 0's file system only its logs are written.
        run.logs.mkdir(parents=True, exist_ok=True)
        return run

    @property
    def config(self) -> Path:
        """Every option with its value."""
        return self.path / "config.json"

    @property
    def manifest(self) -> Path:
        """What is needed to repeat the run: code, versions, machine, processes, data, command."""
        return self.path / "manifest.json"

    @property
    def events(self) -> Path:
        """One JSON line for every logged step, epoch and evaluation."""
        return self.path / "events.jsonl"

    @property
    def result(self) -> Path:
        """How the run ended."""
        return self.path / "result.json"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files."""
        return self.path / "tb"

    @property
    def checkpoints(self) -> Path:
        """Training checkpoints and the best models."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """One log file for each rank."""
        return self.path / "logs"

    def log(self, rank: int) -> Path:
        """The log file of one rank."""
        return self.logs / f"rank-{rank}.log"


def _make_new(root: Path, name: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = root / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path
