"""Finding a checkpoint to go on from, and telling whether it belongs to this run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

import reference.idist as idist
from reference.cifar10.config import Config
from reference.cifar10.options import OptionError
from reference.cifar10.rundir import TRAINING_CHECKPOINTS
from reference.handlers import load_checkpoint

# A change of these would make it another experiment, or put samples at other places of the order.
_SAME = ("model", "dataset", "seed", "batch_size", "max_train_samples", "with_amp")
# A change of these is a choice that is worth a line.
_TOLD = (
    "num_epochs",
    "learning_rate",
    "num_warmup_epochs",
    "momentum",
    "weight_decay",
    "label_smoothing",
    "pipeline",
    "compile",
    "sync_bn",
    "deterministic",
)


class RunIdentity:
    """What a checkpoint says about the run that wrote it: its options and the checksum of its data.

    Loading it refuses the state of another experiment, and logs options that have been changed on purpose.
    """

    def __init__(self, config: Config, data_checksum: str, logger: logging.Logger) -> None:
        self._state: dict[str, Any] = {"config": config.to_dict(), "data": data_checksum}
        self._logger = logger

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compare with the run that wrote the checkpoint.

        Raises:
            ValueError: it is another experiment.
        """
        then, now = state["config"], self._state["config"]
        if problem := other_experiment(then, now):
            raise ValueError(f"the checkpoint is of another run: {problem}")
        if state["data"] != self._state["data"]:
            raise ValueError(
                "the checkpoint was trained on other data: the checksums of the data sets differ"
            )
        for name in _TOLD:
            if then[name] != now[name]:
                self._logger.warning(
                    "Resuming with %s=%s; the checkpoint was written with %s.", name, now[name], then[name]
                )


class RandomState:
    """The state of torch's global generators on every rank, for models that draw numbers (dropout)."""

    collective_state = True  # every rank has its own

    def state_dict(self) -> dict[str, Any]:
        """Generator states by rank: [ranks, bytes] uint8."""
        state = {"cpu": idist.all_gather(torch.get_rng_state()[None])}
        if idist.device().type == "cuda":
            state["cuda"] = idist.all_gather(torch.cuda.get_rng_state(idist.device())[None])
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over this rank's states; with another world size there is nothing to take over."""
        if len(state["cpu"]) == idist.get_world_size():
            torch.set_rng_state(state["cpu"][idist.get_rank()].clone())
            if "cuda" in state and idist.device().type == "cuda":
                torch.cuda.set_rng_state(state["cuda"][idist.get_rank()].clone(), idist.device())


def other_experiment(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Why two configurations are different experiments ("model is resnet18 there and resnet34 here"), None if they aren't."""
    differing = [name for name in _SAME if then.get(name) != now[name]]
    return "; ".join(f"{name} is {then.get(name)} there and {now[name]} here" for name in differing) or None


def find_checkpoint(config: Config) -> Path | None:
    """The file that `resume_from` means; None if the run starts anew, also when "auto" finds nothing.

    Raises:
        OptionError: no such file, no checkpoint in the run folder, a truncated file, or one of another experiment; the
            message offers the newest valid checkpoint.
    """
    if config.resume_from is None:
        return None
    if config.resume_from == "auto":
        return next(_valid(config), None)
    if config.resume_from == "restart":
        return next(_valid(config, since=_job_started()), None) if _started_again() else None
    path = Path(config.resume_from).expanduser()
    if path.is_dir():
        candidates = newest_first(path)
        if not candidates:
            raise OptionError(f"resume_from: {path} holds no training checkpoint{_offer(config)}")
        path = candidates[0]
    try:
        problem = _problem(path, config)
    except ValueError as error:
        raise OptionError(f"resume_from: {error}{_offer(config)}") from None
    if problem is not None:
        raise OptionError(f"resume_from: {path} is of another run: {problem}{_offer(config)}")
    return path


def newest_first(folder: Path) -> list[Path]:
    """Training checkpoints in a run folder, or in a folder of run folders."""
    files = {*folder.glob(TRAINING_CHECKPOINTS), *folder.glob(f"*/{TRAINING_CHECKPOINTS}")}
    return sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True)


def _problem(path: Path, config: Config) -> str | None:
    checkpoint = load_checkpoint(path)
    if "run" not in checkpoint:
        raise ValueError(
            f"{str(path)!r} is no training checkpoint: it holds only {[k for k in checkpoint if k != 'schema']}"
        )
    return other_experiment(checkpoint["run"]["config"], config.to_dict())


def _started_again() -> bool:
    """Whether torchrun or the supervisor has started these processes again after a failure."""
    return any(
        int(os.environ.get(name, 0)) > 0 for name in ("TORCHELASTIC_RESTART_COUNT", "IDIST_RESTART_COUNT")
    )


def _job_started() -> float:
    """When the supervisor started the job, in seconds since 1970; 0 without one."""
    return float(os.environ.get("IDIST_STARTED", 0))


def _valid(config: Config, since: float = 0) -> Iterator[Path]:
    for path in newest_first(Path(config.output_path).expanduser()):
        if path.stat().st_mtime < since:
            continue
        try:
            if _problem(path, config) is None:
                yield path
        except ValueError:
            continue  # truncated: an older one will do


def _offer(config: Config) -> str:
    newest = next(_valid(config), None)
    return "" if newest is None else f"; the newest valid checkpoint is {newest}"
