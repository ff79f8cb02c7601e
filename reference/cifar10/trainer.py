"""The training: `training(local_rank, config)` runs on every rank and reads from top to bottom.

    python -m reference.cifar10 run --backend=gloo --nproc_per_node=2

How many processes there are, and how they talk, is behind `idist`.
"""

from __future__ import annotations

import time
import traceback
from pathlib import Path
from typing import Any

from torch import nn

import reference.idist as idist
from reference.cifar10 import datasets, manifest, resuming
from reference.cifar10.config import Config
from reference.cifar10.data import get_dataflow, get_evaluation_loader, training_array
from reference.cifar10.outcome import FINISHED, STOP_ITERATION, STOPPED_BY, Outcome
from reference.cifar10.parts import (
    Evaluator,
    check_finite,
    create_trainer,
    get_criterion,
    get_lr_scheduler,
    get_model,
    get_optimizer,
    set_up_process,
    settle_gradient_buckets,
)
from reference.cifar10.reporting import log_basic_info, log_metrics, make_logger, report
from reference.cifar10.rundir import RunDirectory
from reference.cifar10.stopping import StopRequest
from reference.engine import Engine, Events
from reference.files import write_json
from reference.handlers import Checkpoint, ClearMLSaver, common, global_step_from_engine
from reference.idist import progress
from reference.metrics import Throughput
from reference.utils import manual_seed


def training(local_rank: int, config: Config, started: float | None = None) -> dict[str, Any]:
    """Train, evaluate and record one run; `idist.Parallel` calls it on every rank.

    Args:
        local_rank: given by `idist.Parallel`; `idist.device()` is what depends on it.
        config: the same on every rank.
        started: when the command was started, in seconds since 1970; default: now.

    Returns:
        The content of result.json.

    Raises:
        Exception: whatever failed, after result.json and the log of this rank say so.
    """
    set_up_process(config)
    run = RunDirectory.create(config.output_path, config.model)
    progress.report("run_directory", path=str(run.path))
    outcome = Outcome(config, run, time.time() if started is None else started)
    try:
        with StopRequest() as stop:
            train(config, run, outcome, stop)
    except BaseException as error:
        outcome.exit_reason = f"error: {type(error).__name__}: {error}"
        with run.log(idist.get_rank()).open("a", encoding="utf-8") as log:
            log.write(traceback.format_exc())
        raise
    finally:
        result = outcome.result()
        if idist.get_rank() == 0:
            write_json(run.result, result)
    return result


def train(config: Config, run: RunDirectory, outcome: Outcome, stop: StopRequest) -> None:
    """The run itself; `outcome` tells afterwards what it reached."""
    logger = make_logger(run)
    with idist.one_rank_first(local=True):
        datasets.prepare(config.dataset, config.data_dir, logger.info)
    images = datasets.load(config.dataset, config.data_dir)
    outcome.data = images.title
    checkpoint = resuming.find_checkpoint(config)
    write_description(config, run, images, checkpoint)
    log_basic_info(logger, config, run, images.title)

    manual_seed(config.seed + idist.get_rank())
    train_loader, val_loader = get_dataflow(config, images)
    model = get_model(config)
    optimizer = get_optimizer(config, model)
    criterion = nn.CrossEntropyLoss()
    lr_scheduler = get_lr_scheduler(config, optimizer, len(train_loader))
    throughput = Throughput(config.batch_size // idist.get_world_size(), warmup=min(10, len(train_loader)))
    trainer, running = create_trainer(
        config, model, optimizer, get_criterion(config), flip=images.flip, clock=throughput
    )
    trainer.logger = logger
    evaluators = {"val": Evaluator(config, model, criterion, val_loader)}
    if config.train_metrics == "full":
        whole = get_evaluation_loader(config, training_array(config, images))
        evaluators["train_full"] = Evaluator(config, model, criterion, whole)

    throughput.attach(trainer, "throughput")
    trainer.add_event_handler(Events.ITERATION_COMPLETED, outcome.iteration_completed)
    engines = {name: evaluator.engine for name, evaluator in evaluators.items()}
    total = len(train_loader) * config.num_epochs
    loggers = report(trainer, config, run, logger, optimizer, engines, total)
    to_save = {
        "run": resuming.RunIdentity(config, images.checksum, logger),
        "trainer": trainer,
        "model": model,
        "optimizer": optimizer,
        "lr_scheduler": lr_scheduler,
        "random": resuming.RandomState(),
        **running,
    }
    if trainer.state.scaler is not None:
        to_save["scaler"] = trainer.state.scaler
    save = save_checkpoints(config, run, to_save, train_loader, engines["val"])

    def run_validation() -> None:
        epoch, metrics = trainer.state.epoch, trainer.state.metrics
        if epoch == outcome.evaluated_epoch:
            return
        if "train_full" in evaluators:
            outcome.train_metrics, seconds, _ = evaluators["train_full"].run()
            log_metrics(logger, epoch, seconds, "train", outcome.train_metrics)
        elif "Accuracy" in metrics:  # not there when a finished run was resumed
            outcome.train_metrics = {name: metrics[name] for name in ("Accuracy", "Loss")}
            log_metrics(logger, epoch, None, "train", outcome.train_metrics)
        outcome.val_metrics, seconds, outcome.n_evaluated = evaluators["val"].run()
        outcome.evaluated_epoch = epoch
        log_metrics(logger, epoch, seconds, "val", outcome.val_metrics)

    def stop_if_asked() -> None:
        asked = stop.agreed(trainer.state.iteration)
        if trainer.state.iteration == config.stop_iteration:
            outcome.exit_reason = STOP_ITERATION
        elif asked is not None:
            outcome.exit_reason = f"{STOPPED_BY}{asked.name}"
        if outcome.exit_reason is not None:
            trainer.terminate()

    def finish() -> None:
        outcome.speed = throughput.summary()
        check_finite(trainer, ended_early=trainer.should_terminate and outcome.exit_reason is None)
        if outcome.exit_reason is None:
            run_validation()
        save(trainer)
        outcome.exit_reason = outcome.exit_reason or FINISHED

    trainer.add_event_handler(Events.ITERATION_COMPLETED, stop_if_asked)
    trainer.add_event_handler(Events.EPOCH_COMPLETED(every=config.validate_every), run_validation)
    trainer.add_event_handler(Events.COMPLETED, finish)
    if checkpoint is not None:
        settle_gradient_buckets(model, optimizer)
        Checkpoint.load_objects(to_save, checkpoint)
        outcome.epoch, outcome.iteration = trainer.state.epoch, trainer.state.iteration
        logger.info("Resumed from %s: going on after iteration %d", checkpoint, outcome.iteration)
        if config.stop_iteration is not None and config.stop_iteration <= outcome.iteration:
            raise ValueError(
                f"stop_iteration ({config.stop_iteration}) is not after the {outcome.iteration} of the checkpoint"
            )
    try:
        trainer.run(train_loader, max_epochs=config.num_epochs)
    finally:
        loggers.close()


def write_description(
    config: Config, run: RunDirectory, images: datasets.ImageSet, checkpoint: Path | None
) -> None:
    """config.json and manifest.json; collective."""
    facts = manifest.collect(config, images, None if checkpoint is None else str(checkpoint))
    if idist.get_rank() == 0:
        write_json(run.config, config.to_dict())
        write_json(run.manifest, facts)


def save_checkpoints(
    config: Config, run: RunDirectory, to_save: dict[str, Any], train_loader: Any, val_evaluator: Engine
) -> Checkpoint:
    """Set up the trainer's usual handlers, among them the one that saves, and keep the best two models.

    Returns:
        The handler that saves a training checkpoint.
    """
    trainer: Engine = to_save["trainer"]
    save_handler = ClearMLSaver(dirname=run.checkpoints) if config.with_clearml else run.checkpoints
    best = Checkpoint(
        {"model": to_save["model"]},
        save_handler,
        filename_prefix="best",
        n_saved=2,
        global_step_transform=global_step_from_engine(trainer),
        score_name="val_accuracy",
        score_function=Checkpoint.get_default_score_fn("Accuracy"),
    )
    val_evaluator.add_event_handler(Events.COMPLETED, best)
    save = common.setup_common_training_handlers(
        trainer,
        train_sampler=getattr(train_loader, "sampler", None),
        to_save=to_save,
        save_every_iters=config.checkpoint_every,
        save_handler=save_handler,
        lr_scheduler=to_save["lr_scheduler"],
        with_pbars=config.log_every_iters > 0,
        log_every_iters=config.log_every_iters or 100,
        clear_cuda_cache=False,
        n_saved=config.n_saved,
        global_step_transform=lambda engine, _: engine.state.iteration,
    )
    assert save is not None, "to_save was given"
    return save
