"""The training: `training(local_rank, config)` runs on every rank and reads from top to bottom.

    python -m reference.cifar10 run --backend=gloo --nproc_per_node=2

How many processes there are, and how they talk, is behind `idist`.
"""

from __future__ import annotations

import math
import os
import time
import traceback
from typing import Any

import torch
from torch import nn, optim
from torch.optim import Optimizer

import reference.idist as idist
from reference.cifar10 import datasets, manifest, model, resuming
from reference.cifar10.config import Config
from reference.cifar10.data import evaluation_batch, get_dataflow, get_evaluation_loader, training_array, training_batch
from reference.cifar10.outcome import FINISHED, STOP_ITERATION, STOPPED_BY, Outcome
from reference.cifar10.reporting import IterationLog, Loggers, log_basic_info, log_metrics, logged_iterations, make_logger
from reference.cifar10.rundir import RunDirectory, write_json
from reference.cifar10.stopping import StopRequest
from reference.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from reference.handlers import Checkpoint, ClearMLSaver, PiecewiseLinear, common, global_step_from_engine
from reference.metrics import Accuracy, Loss, Metric, Throughput
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
    facts = manifest.collect(config, images, None if checkpoint is None else str(checkpoint))
    if idist.get_rank() == 0:
        write_json(run.config, config.to_dict())
        write_json(run.manifest, facts)
    log_basic_info(logger, config, run, images.title)

    manual_seed(config.seed + idist.get_rank())
    train_loader, val_loader = get_dataflow(config, images)
    net = get_model(config)
    optimizer = get_optimizer(config, net)
    criterion = nn.CrossEntropyLoss()
    lr_scheduler = get_lr_scheduler(config, optimizer, len(train_loader))
    trainer, running = create_trainer(config, net, optimizer, criterion, flip=images.flip)
    trainer.logger = logger

    throughput = Throughput(config.batch_size // idist.get_world_size(), warmup=min(10, len(train_loader)))
    throughput.attach(trainer, "throughput")
    trainer.add_event_handler(Events.ITERATION_COMPLETED, outcome.iteration_completed)
    iterations = None
    if config.log_every_iters:
        iterations = logged_iterations(config.log_every_iters, len(train_loader) * config.num_epochs)
        iteration_log = IterationLog(logger, optimizer, config.batch_size)
        trainer.add_event_handler(Events.EPOCH_STARTED, iteration_log.start)
        trainer.add_event_handler(iterations, iteration_log)

    save_handler = ClearMLSaver(dirname=run.checkpoints) if config.with_clearml else run.checkpoints
    to_save = {
        "run": resuming.RunIdentity(config, images.checksum, logger),
        "trainer": trainer,
        "model": net,
        "optimizer": optimizer,
        "lr_scheduler": lr_scheduler,
        "random": resuming.RandomState(),
        **running,
    }
    if trainer.state.scaler is not None:
        to_save["scaler"] = trainer.state.scaler
    save = common.setup_common_training_handlers(
        trainer,
        train_sampler=getattr(train_loader, "sampler", None),
        to_save=to_save,
        save_every_iters=config.checkpoint_every,
        save_handler=save_handler,
        lr_scheduler=lr_scheduler,
        with_pbars=config.log_every_iters > 0,
        log_every_iters=config.log_every_iters or 100,
        clear_cuda_cache=False,
        n_saved=config.n_saved,
        global_step_transform=lambda engine, _: engine.state.iteration,
    )
    assert save is not None

    evaluators = {"val": Evaluator(config, net, criterion, val_loader)}
    if config.train_metrics == "full":
        whole = get_evaluation_loader(config, training_array(config, images))
        evaluators["train_full"] = Evaluator(config, net, criterion, whole)
    evaluators["val"].engine.add_event_handler(
        Events.COMPLETED,
        Checkpoint(
            {"model": net},
            save_handler,
            filename_prefix="best",
            n_saved=2,
            global_step_transform=global_step_from_engine(trainer),
            score_name="val_accuracy",
            score_function=Checkpoint.get_default_score_fn("Accuracy"),
        ),
    )
    loggers = Loggers(config, run)
    loggers.attach(trainer, iterations, {name: evaluator.engine for name, evaluator in evaluators.items()})

    def run_validation() -> None:
        epoch, state = trainer.state.epoch, trainer.state
        if epoch == outcome.evaluated_epoch:
            return
        if "train_full" in evaluators:
            outcome.train_metrics, seconds, _ = evaluators["train_full"].run()
            log_metrics(logger, epoch, seconds, "train", outcome.train_metrics)
        elif "Accuracy" in state.metrics:
            outcome.train_metrics = {name: state.metrics[name] for name in ("Accuracy", "Loss")}
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
        Checkpoint.load_objects(to_save, checkpoint)
        outcome.epoch, outcome.iteration = trainer.state.epoch, trainer.state.iteration
        logger.info("Resumed from %s: going on after iteration %d", checkpoint, outcome.iteration)
        if config.stop_iteration is not None and config.stop_iteration <= outcome.iteration:
            raise ValueError(f"stop_iteration ({config.stop_iteration}) is not after the {outcome.iteration} of the checkpoint")
    try:
        trainer.run(train_loader, max_epochs=config.num_epochs)
    finally:
        loggers.close()


def set_up_process(config: Config) -> None:
    """Threads and determinism of this process, the same in every launcher."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(config.threads or max(1, cores // idist.get_nproc_per_node()))
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with this
    torch.use_deterministic_algorithms(config.deterministic)
    torch.backends.cudnn.benchmark = not config.deterministic


def get_model(config: Config) -> nn.Module:
    """The model on this rank's device, ready to train together with the other ranks."""
    net = model.build(config.model)
    if idist.device().type in ("cpu", "cuda"):
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # batches come like that
    return idist.auto_model(net, sync_bn=config.sync_bn)


def get_optimizer(config: Config, net: nn.Module) -> Optimizer:
    """SGD with Nesterov's momentum."""
    optimizer = optim.SGD(
        net.parameters(),
        lr=config.learning_rate,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.momentum > 0,
        fused=idist.device().type in ("cpu", "cuda"),
    )
    return idist.auto_optim(optimizer)


def get_lr_scheduler(config: Config, optimizer: Optimizer, iterations_per_epoch: int) -> PiecewiseLinear:
    """Linear warm-up from 0 to the learning rate, then linear decay to 0 at the end of the run."""
    warm, end = (iterations_per_epoch * epochs for epochs in (config.num_warmup_epochs, config.num_epochs))
    milestones = [(0, 0.0)] if warm else []
    milestones.append((warm, config.learning_rate))
    if warm < end:
        milestones.append((end, 0.0))
    return PiecewiseLinear(optimizer, param_name="lr", milestones_values=milestones)


def amp_mode(config: Config) -> str | None:
    """`with_amp` as the engine calls it."""
    return "amp" if config.with_amp == "auto" else config.with_amp


def create_trainer(
    config: Config, net: nn.Module, optimizer: Optimizer, criterion: nn.Module, *, flip: bool
) -> tuple[Engine, dict[str, Metric]]:
    """The training engine, and the metrics over the batches of an epoch as they were trained on."""
    trainer = create_supervised_trainer(
        net,
        optimizer,
        criterion,
        device=idist.device(),
        non_blocking=True,
        prepare_batch=training_batch(config.seed, flip, epoch=lambda: trainer.state.epoch),
        output_transform=lambda x, y, y_pred, loss: {"loss": loss.detach(), "y_pred": y_pred.detach(), "y": y},
        amp_mode=amp_mode(config),
    )
    running: dict[str, Metric] = {
        "train_accuracy": Accuracy(output_transform=lambda output: (output["y_pred"], output["y"])),
        "train_loss": Loss(lambda loss, y: loss, output_transform=lambda output: (output["loss"], output["y"])),
    }
    running["train_accuracy"].attach(trainer, "Accuracy")
    running["train_loss"].attach(trainer, "Loss")
    return trainer, running


class Evaluator:
    """An evaluation engine over one loader, which makes sure that every sample was counted once."""

    def __init__(self, config: Config, net: nn.Module, criterion: nn.Module, loader: Any) -> None:
        self._loader = loader
        self._accuracy = Accuracy()
        self.engine = create_supervised_evaluator(
            net,
            metrics={"Accuracy": self._accuracy, "Loss": Loss(criterion)},
            device=idist.device(),
            non_blocking=True,
            prepare_batch=evaluation_batch,
            amp_mode=amp_mode(config),
        )

    def run(self) -> tuple[dict[str, float], float, int]:
        """Metrics over all ranks, seconds that it took, and the number of samples counted.

        Raises:
            RuntimeError: that number is not the size of the data set.
        """
        state = self.engine.run(self._loader)
        counted, expected = self._accuracy.count, len(self._loader.dataset)
        if counted != expected:
            raise RuntimeError(f"the evaluation counted {counted:,} samples of {expected:,}")
        return dict(state.metrics), state.times["COMPLETED"], counted


def check_finite(trainer: Engine, *, ended_early: bool) -> None:
    """Fail, on all ranks, when a loss of any rank was NaN or infinite.

    Args:
        trainer: whose last loss is looked at.
        ended_early: the handler that looks at all losses has ended the run.

    Raises:
        FloatingPointError: it was.
    """
    output = trainer.state.output  # None when a finished run was resumed
    broken = output is not None and not math.isfinite(float(output["loss"]))
    if idist.all_reduce(broken, "OR") or ended_early:
        raise FloatingPointError(
            f"the loss is NaN or infinite at or before iteration {trainer.state.iteration}: try a smaller learning_rate"
        )
