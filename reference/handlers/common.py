"""The handlers that most trainings need, set up in one call."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from reference.engine import Engine, Events
from reference.handlers.checkpoint import Checkpoint
from reference.handlers.loggers import ScalarLogger, TensorboardLogger, global_step_from_engine
from reference.handlers.progress import ProgressBar
from reference.handlers.stopping import TerminateOnNan
from reference.metrics import RunningAverage

AVERAGES = "running averages"
"""Their name in a checkpoint."""


def setup_common_training_handlers(
    trainer: Engine,
    train_sampler: Any = None,
    to_save: Mapping[str, Any] | None = None,
    save_every_iters: int = 1000,
    output_path: str | os.PathLike[str] | None = None,
    lr_scheduler: Callable[..., Any] | LRScheduler | None = None,
    with_gpu_stats: bool = False,
    output_names: Sequence[str] | None = None,
    with_pbars: bool = True,
    with_pbar_on_iters: bool = True,
    log_every_iters: int = 100,
    stop_on_nan: bool = True,
    clear_cuda_cache: bool = True,
    save_handler: Callable[..., None] | str | os.PathLike[str] | None = None,
    **kwargs: Any,
) -> Checkpoint | None:
    """Set up a trainer. Every rank has to call this with the same arguments.

    Args:
        trainer: the engine.
        train_sampler: if it has `set_epoch`, it gets `state.data_pass` (the epoch, from 0) before each new order.
        to_save: objects to save, see `Checkpoint`.
        save_every_iters: iterations between checkpoints. One that falls inside a group of accumulated gradients is
            saved at the end of the group. Saving comes last, after all handlers that were added before the run.
        output_path, save_handler: where checkpoints go; one of them is needed with `to_save`.
        lr_scheduler: a schedule such as `PiecewiseLinear`, called before each iteration, or one of torch's, stepped
            after each, so that with both the first iteration uses the first value.
        with_gpu_stats: keep the peak of allocated CUDA memory (MiB) in `state.metrics["gpu memory"]`.
        output_names: names of the trainer's outputs: keys of a dictionary, items of a list, or one name for a single
            value. Their running averages over all ranks are in `state.metrics`, brought up to date every
            `log_every_iters` iterations and at the end of an epoch.
        with_pbars, with_pbar_on_iters: show a progress bar, over each epoch or else over the run.
        log_every_iters: see the other arguments.
        stop_on_nan: terminate when an output isn't finite on any rank; decided every `log_every_iters` iterations
            and before each checkpoint, which is then not written.
        clear_cuda_cache: give unused CUDA memory back at the end of each epoch.
        kwargs: further arguments of `Checkpoint`, such as `n_saved`.

    Returns:
        The handler that saves, None without `to_save`. It saves the running averages as well: give its `to_save` to
        `Checkpoint.load_objects` to resume with them.

    Raises:
        ValueError: `to_save` without a place to save to, or with two; arguments that `Checkpoint` refuses.
    """
    interval = max(1, log_every_iters)
    every_interval = Events.ITERATION_COMPLETED(every=interval)
    if hasattr(train_sampler, "set_epoch"):
        trainer.add_event_handler(Events.PASS_STARTED, lambda e: train_sampler.set_epoch(e.state.data_pass))
    if isinstance(lr_scheduler, LRScheduler):
        trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: lr_scheduler.step())
    elif lr_scheduler is not None:
        trainer.add_event_handler(Events.ITERATION_STARTED, lr_scheduler)
    averages = _Averages()
    for index, name in enumerate(output_names or ()):
        averages[name] = RunningAverage(output_transform=_item(index, name), epoch_bound=False)
        averages[name].attach(trainer, name, every_interval | Events.EPOCH_COMPLETED)
    nan_guard = TerminateOnNan(every=interval) if stop_on_nan else None
    if nan_guard is not None:
        trainer.add_event_handler(Events.ITERATION_COMPLETED, nan_guard)
    if with_gpu_stats and torch.cuda.is_available():
        trainer.add_event_handler(every_interval, _gpu_memory)
    if clear_cuda_cache and torch.cuda.is_available():
        trainer.add_event_handler(Events.EPOCH_COMPLETED, torch.cuda.empty_cache)
    if with_pbars:
        ProgressBar(over="epoch" if with_pbar_on_iters else "run").attach(trainer, output_names or ())
    if to_save is None:
        return None
    if (output_path is None) == (save_handler is None):
        raise ValueError("to_save needs one place to save to: give either output_path or save_handler")
    target: Any = save_handler if output_path is None else output_path
    everything = {**to_save, AVERAGES: averages} if averages else to_save
    checkpoint = Checkpoint(everything, target, filename_prefix="training", **kwargs)
    save = _SaveEvery(checkpoint, save_every_iters, nan_guard)
    # added when a run starts, so that it comes after everything that changes or logs state in the same event
    trainer.add_event_handler(Events.STARTED, save.attach)
    return checkpoint


class _Averages(dict[str, RunningAverage]):
    """The running averages by name, saved as one object."""

    collective_state = True

    def state_dict(self) -> dict[str, Any]:
        return {name: average.state_dict() for name, average in self.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        for name, average in self.items():
            average.load_state_dict(state_dict[name])


class _SaveEvery:
    """Calls a checkpoint handler every few iterations, where the state is complete and sound."""

    def __init__(self, checkpoint: Checkpoint, every: int, nan_guard: TerminateOnNan | None) -> None:
        if every < 1:
            raise ValueError(f"save_every_iters must be at least 1, got {every!r}")
        self._checkpoint = checkpoint
        self._every = every
        self._nan_guard = nan_guard
        self._due = False

    def attach(self, engine: Engine) -> None:
        if not engine.has_event_handler(self, Events.ITERATION_COMPLETED):
            engine.add_event_handler(Events.ITERATION_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        self._due = self._due or engine.state.iteration % self._every == 0
        if not self._due or engine.state.accumulating:
            return
        self._due = False
        if self._nan_guard is not None:
            self._nan_guard.decide(engine)
            if self._nan_guard.triggered:
                return
        self._checkpoint(engine)


def setup_tb_logging(
    output_path: str | os.PathLike[str],
    trainer: Engine,
    optimizers: Optimizer | Mapping[str, Optimizer] | None = None,
    evaluators: Engine | Mapping[str, Engine] | None = None,
    log_every_iters: int = 100,
    **kwargs: Any,
) -> TensorboardLogger:
    """`setup_logging` with a new `TensorboardLogger` in `output_path` (and `kwargs`). May be called on rank 0 only."""
    logger = TensorboardLogger(output_path, **kwargs)
    setup_logging(logger, trainer, optimizers, evaluators, log_every_iters)
    return logger


def setup_logging(
    logger: ScalarLogger,
    trainer: Engine,
    optimizers: Optimizer | Mapping[str, Optimizer] | None = None,
    evaluators: Engine | Mapping[str, Engine] | None = None,
    log_every_iters: int = 100,
) -> None:
    """Log the trainer's metrics (`training/...`) and learning rates (`lr/group_0`) every few iterations, and each
    evaluator's metrics (`<its name>/...`, for a single one `validation/...`) when it completes, at the trainer's epoch.
    """
    every = Events.ITERATION_COMPLETED(every=log_every_iters)
    logger.attach_output_handler(trainer, every, tag="training", metric_names="all")
    if isinstance(optimizers, Optimizer):
        optimizers = {"": optimizers}
    for name, optimizer in (optimizers or {}).items():
        logger.attach_opt_params_handler(
            trainer, Events.ITERATION_STARTED(every=log_every_iters), optimizer, tag=name
        )
    if isinstance(evaluators, Engine):
        evaluators = {"validation": evaluators}
    for name, evaluator in (evaluators or {}).items():
        step = global_step_from_engine(trainer)
        logger.attach_output_handler(evaluator, Events.COMPLETED, name, "all", global_step_transform=step)


def _item(index: int, name: str) -> Callable[[Any], Any]:
    def item(output: Any) -> Any:
        if isinstance(output, Mapping):
            return output[name]
        return output[index] if isinstance(output, (list, tuple)) else output

    return item


def _gpu_memory(engine: Engine) -> None:
    engine.state.metrics["gpu memory"] = torch.cuda.max_memory_allocated() / 2**20
