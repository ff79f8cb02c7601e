"""What a run says while it goes on: lines for people, and scalars for events.jsonl, TensorBoard and ClearML."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import Optimizer

import reference
import reference.idist as idist
from reference.cifar10.config import Config
from reference.cifar10.rundir import RunDirectory
from reference.engine import Engine, EventChoice, Events
from reference.handlers import ClearMLLogger, JsonLinesLogger, TensorboardLogger, global_step_from_engine
from reference.handlers.clearml import clearml_task
from reference.handlers.loggers import ScalarLogger
from reference.idist import progress
from reference.utils import LOG_FORMAT, setup_logger

NAME = "CIFAR10-Training"
_HYPER_PARAMETERS = (
    "model",
    "batch_size",
    "momentum",
    "weight_decay",
    "num_epochs",
    "learning_rate",
    "num_warmup_epochs",
)


def make_logger(run: RunDirectory) -> logging.Logger:
    """The logger of the run: rank 0 on stderr, every rank in its own file."""
    logger = setup_logger(NAME, filepath=str(run.log(idist.get_rank())))
    if sys.stderr.isatty():  # wipe the progress bar away before a line
        logger.handlers[0].setFormatter(logging.Formatter(f"\r\033[2K{LOG_FORMAT}"))
    return logger


def log_basic_info(logger: logging.Logger, config: Config, run: RunDirectory, title: str) -> None:
    """Log versions, device, configuration and distributed setting."""
    logger.info("Train %s on %s", config.model, title)
    logger.info("- PyTorch version: %s", torch.__version__)
    logger.info("- Reference version: %s", reference.__version__)
    if idist.device().type == "cuda":
        logger.info("- GPU device: %s", torch.cuda.get_device_name(idist.device()))
        logger.info(
            "- CUDA version: %s, cuDNN version: %s", torch.version.cuda, torch.backends.cudnn.version()
        )
    logger.info("Configuration:")
    for name, value in config.to_dict().items():
        logger.info("\t%s: %s", name, value)
    logger.info("Distributed setting:")
    logger.info("\tbackend: %s", idist.backend())
    logger.info("\tworld size: %s", idist.get_world_size())
    logger.info("\tdevice: %s, %d threads a process", idist.device(), torch.get_num_threads())
    logger.info("Run directory: %s", run.path)


def log_metrics(
    logger: logging.Logger, epoch: int, seconds: float | None, tag: str, metrics: Mapping[str, float]
) -> None:
    """Log the accuracy and the loss of an evaluation; `seconds` is what it took, None if it took no pass of its own."""
    took = "" if seconds is None else f" ({seconds:.2f} s)"
    logger.info(
        "Epoch %d - %s metrics%s: accuracy %.4f, loss %.4f",
        epoch,
        tag,
        took,
        metrics["Accuracy"],
        metrics["Loss"],
    )


class IterationLog:
    """Handler: every few iterations the loss over the global batch, the learning rate and the speed.

    Only then is the loss read from the device and averaged over the ranks. What it finds is in the trainer's
    `state.metrics`, for the loggers that come after it.
    """

    names = ("batch loss", "lr", "images/s")

    def __init__(self, logger: logging.Logger, optimizer: Optimizer, batch_size: int) -> None:
        self._logger = logger
        self._optimizer = optimizer
        self._batch_size = batch_size
        self._since = (0, 0.0)

    def start(self, trainer: Engine) -> None:
        """At the start of an epoch: evaluation in between does not count as training time."""
        self._since = (trainer.state.iteration, time.perf_counter())

    def __call__(self, trainer: Engine) -> None:
        state = trainer.state
        loss = idist.all_reduce(float(state.output["loss"]), "AVERAGE")
        (first, begin), now = self._since, time.perf_counter()
        self._since = (state.iteration, now)
        values = (
            loss,
            self._optimizer.param_groups[0]["lr"],
            (state.iteration - first) * self._batch_size / (now - begin),
        )
        state.metrics.update(zip(self.names, values, strict=True))
        place = f"Epoch {state.epoch}/{state.max_epochs} [{state.epoch_iteration}/{state.epoch_length}]"
        self._logger.info("%s loss %.4f, lr %.4g, %.0f images/s", place, *values)


class SignsOfLife:
    """Handler: about once a second it tells a supervisor where `trainer` stands, and of its first step."""

    _EVERY = 1.0  # seconds

    def __init__(self, trainer: Engine, total: int) -> None:
        self._trainer = trainer
        self._total = total
        self._next = 0.0
        self._begun = False
        trainer.add_event_handler(Events.ITERATION_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        if not self._begun:
            self._begun = True
            progress.report("first_step", rank=idist.get_rank())
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._EVERY
            state = self._trainer.state
            progress.report(
                "progress",
                rank=idist.get_rank(),
                iteration=state.iteration,
                total=self._total,
                epoch=state.epoch,
            )


def report(
    trainer: Engine,
    config: Config,
    run: RunDirectory,
    logger: logging.Logger,
    optimizer: Optimizer,
    evaluators: Mapping[str, Engine],
    total: int,
) -> Loggers:
    """Make a run say how it goes: log lines, scalars, and signs of life for a supervisor.

    Args:
        evaluators: the engines that evaluate, by the names under which their metrics appear.
        total: iterations of the whole run.

    Returns:
        What must be closed when the run is over.
    """
    iterations = None
    if config.log_every_iters:
        iterations = logged_iterations(config.log_every_iters, total)
        iteration_log = IterationLog(logger, optimizer, config.batch_size)
        trainer.add_event_handler(Events.EPOCH_STARTED, iteration_log.start)
        trainer.add_event_handler(iterations, iteration_log)
    loggers = Loggers(config, run)
    loggers.attach(trainer, iterations, evaluators)
    signs = SignsOfLife(trainer, total)
    for evaluator in evaluators.values():
        evaluator.add_event_handler(Events.ITERATION_COMPLETED, signs)
    return loggers


def logged_iterations(every: int, total: int) -> EventChoice:
    """The first iteration, every `every`th one, and the last one (`total`)."""
    return Events.ITERATION_COMPLETED(lambda _, number: number % every == 0 or number in (1, total))


class Loggers:
    """events.jsonl, and TensorBoard and ClearML where they are wanted: the same scalars to each."""

    def __init__(self, config: Config, run: RunDirectory) -> None:
        self.events = JsonLinesLogger(run.events)
        self._all: list[ScalarLogger] = [self.events]
        if config.with_tensorboard:
            self._all.append(TensorboardLogger(run.tensorboard))
        self._task = _clearml_task(config, run) if config.with_clearml and idist.get_rank() == 0 else None
        if config.with_clearml:
            self._all.append(ClearMLLogger())

    def attach(
        self, trainer: Engine, iterations: EventChoice | None, evaluators: Mapping[str, Engine]
    ) -> None:
        """Log what `IterationLog` found, the epoch's training metrics, and the metrics of every evaluation."""
        for logger in self._all:
            if iterations is not None:
                logger.attach_output_handler(trainer, iterations, "training", IterationLog.names)
            logger.attach_output_handler(
                trainer, Events.EPOCH_COMPLETED, "train", ("Accuracy", "Loss", "throughput")
            )
            for name, evaluator in evaluators.items():
                step = global_step_from_engine(trainer, Events.EPOCH_COMPLETED)
                logger.attach_output_handler(
                    evaluator, Events.COMPLETED, name, "all", global_step_transform=step
                )

    def close(self) -> None:
        """Write out what is pending."""
        for logger in self._all:
            logger.close()
        if self._task is not None:
            self._task.close()


def _clearml_task(config: Config, run: RunDirectory) -> Any:
    # What the run reports is chosen here; ClearML's own hooks into torch and TensorBoard would report it twice.
    task: Any = clearml_task("with_clearml").init(
        NAME, task_name=run.path.name, auto_connect_frameworks=False, auto_connect_arg_parser=False
    )
    task.connect_configuration(config.to_dict())
    task.connect({name: getattr(config, name) for name in _HYPER_PARAMETERS})
    return task
