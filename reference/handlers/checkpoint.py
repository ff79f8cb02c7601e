"""`Checkpoint`: saves the state of objects now and then and keeps the newest or the best files."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

import reference.idist as idist
from reference.engine import Engine, Events
from reference.handlers.storage import SCHEMA, DiskSaver, load_checkpoint, plain
from reference.utils import unwrap_model

__all__ = ["Checkpoint", "DiskSaver", "load_checkpoint"]


class Saved(NamedTuple):
    """A file that this handler wrote and has not removed."""

    priority: float
    filename: str


class Checkpoint:
    """Handler that saves `{"schema": 1, name: state_dict, ...}`; the files hold plain types and CPU tensors only.

    All ranks call it, rank 0 writes. Files are called `{filename_prefix}_{name}_{global_step}_{score_name}={score}.pt`,
    without the parts that don't apply: `training_checkpoint_400.pt`, `best_model_3_val_accuracy=0.5699.pt`. `name` is
    the object's key if there is only one, else `checkpoint`.

    Args:
        to_save: objects with `state_dict` and `load_state_dict`, by name. Models are saved without the wrappers of
            DistributedDataParallel and torch.compile. An object with `collective_state = True` is asked on every rank.
        save_handler: a directory, or an object `save_handler(checkpoint, filename, metadata)` with `remove(filename)`.
        filename_prefix: first part of the file name.
        score_function: `score_function(engine)` returns a number; the files with the largest ones are kept. Without
            it the newest are.
        score_name: put into the file name, with the score.
        n_saved: how many files to keep, None for all. One is only removed once the new one is safe, and only if this
            handler wrote it.
        global_step_transform: `global_step_transform(engine, event)` returns the step in the name; default: the
            engine's iteration at iteration events, else its epoch.
        filename_pattern: another pattern, of the fields filename_prefix, name, global_step, score_name, score, ext.
        include_self: save the list of kept files as well, as "checkpointer", so that a resumed run goes on with it.
        greater_or_equal: a score equal to the worst kept one replaces it.

    Raises:
        ValueError: nothing to save, objects without state, the reserved names "schema" and "checkpointer", a bad
            `save_handler`, `n_saved` or pattern.
    """

    def __init__(
        self,
        to_save: Mapping[str, Any],
        save_handler: str | os.PathLike[str] | Callable[..., None],
        filename_prefix: str = "",
        score_function: Callable[[Engine], float] | None = None,
        score_name: str | None = None,
        n_saved: int | None = 1,
        global_step_transform: Callable[[Engine, Events], int] | None = None,
        filename_pattern: str | None = None,
        include_self: bool = False,
        greater_or_equal: bool = False,
    ) -> None:
        _check_objects(to_save, "state_dict")
        if not to_save:
            raise ValueError("to_save is empty: give at least one object")
        if reserved := {"schema", "checkpointer"} & set(to_save):
            raise ValueError(f"to_save: the names {sorted(reserved)} are reserved")
        if n_saved is not None and n_saved < 1:
            raise ValueError(f"n_saved must be at least 1, or None to keep all files, got {n_saved!r}")
        if score_name is not None and score_function is None:
            raise ValueError(f"score_name={score_name!r} needs a score_function")
        if isinstance(save_handler, (str, os.PathLike)):
            save_handler = DiskSaver(save_handler, require_empty=False)
        if not callable(save_handler):
            raise ValueError(f"save_handler must be a directory or callable, got {save_handler!r}")
        self._to_save = dict(to_save)
        self.save_handler = save_handler
        self._prefix = filename_prefix
        self._score_function = score_function
        self._score_name = score_name
        self._n_saved = n_saved
        self._step_transform = global_step_transform
        self._pattern = filename_pattern
        self._include_self = include_self
        self._greater_or_equal = greater_or_equal
        self._saved: list[Saved] = []  # from worst or oldest to best or newest
        self._filename(0, 0.0)  # a wrong pattern is found now

    @property
    def to_save(self) -> dict[str, Any]:
        """All that this handler saves, for `load_objects`: also itself with `include_self`."""
        return self._to_save | ({"checkpointer": self} if self._include_self else {})

    @property
    def last_checkpoint(self) -> str | None:
        """Name of the newest file (with `score_function`, of the best), None if there is none."""
        return self._saved[-1].filename if self._saved else None

    def __call__(self, engine: Engine) -> None:
        """Save if this state is worth keeping; OSError (on rank 0) if it can't be written."""
        event = engine.last_event or Events.COMPLETED
        step = self._step_transform(engine, event) if self._step_transform else engine.state.count(event)
        score = None if self._score_function is None else self._score_function(engine)
        priority = float(step if score is None else score)
        if math.isnan(priority):
            priority = -math.inf  # so that anything else is better
        if not self._worth_keeping(priority):
            return
        filename = self._filename(step, score)
        kept = [saved for saved in self._saved if saved.filename != filename] + [Saved(priority, filename)]
        if self._score_function is not None:
            kept.sort(key=lambda saved: saved.priority)
        surplus = kept[: -self._n_saved] if self._n_saved else []
        before, self._saved = self._saved, kept[len(surplus) :]
        try:
            checkpoint = self._collect()
            if idist.get_rank() == 0:
                self.save_handler(
                    checkpoint, filename, {"global_step": step, "score": score, "name": self._score_name}
                )
        except BaseException:
            self._saved = before
            raise
        if idist.get_rank() == 0 and hasattr(self.save_handler, "remove"):
            for saved in surplus:
                self.save_handler.remove(saved.filename)

    def _worth_keeping(self, priority: float) -> bool:
        if self._score_function is None or self._n_saved is None or len(self._saved) < self._n_saved:
            return True
        worst = self._saved[0].priority
        return priority >= worst if self._greater_or_equal else priority > worst

    def _filename(self, step: int, score: float | None) -> str:
        name = next(iter(self._to_save)) if len(self._to_save) == 1 else "checkpoint"
        number = str(score) if isinstance(score, int) else f"{0.0 if score is None else score:.4f}"
        if self._pattern is None:
            parts = [self._prefix, name, str(step)]
            if self._score_function is not None:
                parts.append(f"{self._score_name}={number}" if self._score_name else number)
            return "_".join(part for part in parts if part) + ".pt"
        fields = {"filename_prefix": self._prefix, "name": name, "global_step": step, "ext": "pt"}
        if self._score_function is not None:
            fields |= {"score_name": self._score_name or "", "score": number}
        try:
            return self._pattern.format(**fields)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(
                f"filename_pattern={self._pattern!r}: has only the fields {sorted(fields)}"
            ) from error

    def _collect(self) -> dict[str, Any]:
        """The checkpoint on rank 0. On other ranks the parts that need them all."""
        # on XLA, moving a tensor to the CPU runs the pending computation, which has to be the same on all replicas
        everything = idist.get_rank() == 0 or idist.backend() == "xla-tpu"
        checkpoint: dict[str, Any] = {"schema": SCHEMA}
        for name, obj in self.to_save.items():
            if everything or getattr(obj, "collective_state", False):
                state = (unwrap_model(obj) if isinstance(obj, nn.Module) else obj).state_dict()
                checkpoint[name] = plain(state, name)
        return checkpoint

    def state_dict(self) -> dict[str, Any]:
        """The files that are kept."""
        return {"saved": [list(saved) for saved in self._saved]}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Count the files of an earlier run among those to keep and, in time, to remove."""
        self._saved = [Saved(float(priority), str(filename)) for priority, filename in state_dict["saved"]]

    @staticmethod
    def get_default_score_fn(metric_name: str, score_sign: float = 1.0) -> Callable[[Engine], float]:
        """A score function: `state.metrics[metric_name]`; with `score_sign=-1.0` smaller is better."""
        if score_sign not in (1.0, -1.0):
            raise ValueError(f"score_sign must be 1.0 or -1.0, got {score_sign!r}")
        return lambda engine: score_sign * float(engine.state.metrics[metric_name])

    @staticmethod
    def load_objects(
        to_load: Mapping[str, Any], checkpoint: Mapping[str, Any] | str | Path, strict: bool = True
    ) -> None:
        """Give objects the states of a checkpoint. Nothing is loaded if one of them is missing.

        Args:
            to_load: objects with `load_state_dict`, by name; models with or without wrappers.
            checkpoint: a loaded checkpoint or the path of one.
            strict: for models, see `torch.nn.Module.load_state_dict`.

        Raises:
            ValueError: an object that isn't in the checkpoint, a bad file, a state that doesn't fit its object.
        """
        _check_objects(to_load, "load_state_dict")
        where = "the checkpoint"
        if isinstance(checkpoint, (str, os.PathLike)):
            where = repr(str(checkpoint))
            checkpoint = load_checkpoint(checkpoint)
        if missing := [name for name in to_load if name not in checkpoint]:
            raise ValueError(
                f"{where} has no {missing}; it has {[name for name in checkpoint if name != 'schema']}"
            )
        for name, obj in to_load.items():
            try:
                if isinstance(obj, nn.Module):
                    unwrap_model(obj).load_state_dict(checkpoint[name], strict=strict)
                else:
                    obj.load_state_dict(checkpoint[name])
            except (RuntimeError, KeyError, TypeError) as error:
                raise ValueError(f"{name!r} of {where} does not fit: {error}") from error


def _check_objects(objects: Mapping[str, Any], method: str) -> None:
    if not isinstance(objects, Mapping):
        raise ValueError(f"expected a dictionary of objects by name, got {type(objects).__name__}")
    for name, obj in objects.items():
        if not hasattr(obj, method):
            raise ValueError(f"{name!r} has no {method}: {type(obj).__name__}")
