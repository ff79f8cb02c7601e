"""The parts of a training: process settings, model, optimizer, schedule, engines."""

from __future__ import annotations

import math
import os
from typing import Any

import torch
from torch import nn, optim
from torch.optim import Optimizer

import reference.idist as idist
from reference.cifar10 import model
from reference.cifar10.config import Config
from reference.cifar10.data import evaluation_batch, training_batch
from reference.engine import Engine, create_supervised_evaluator, create_supervised_trainer, supervised
from reference.handlers import PiecewiseLinear
from reference.idist import environment
from reference.metrics import Accuracy, Loss, Metric, Throughput


def set_up_process(config: Config) -> None:
    """Threads and determinism of this process, the same in every launcher."""
    torch.set_num_threads(config.threads or fair_threads())
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with this
    torch.use_deterministic_algorithms(config.deterministic)
    torch.backends.cudnn.benchmark = not config.deterministic


def fair_threads() -> int:
    """This process's share of the cores: of the node, or of what Slurm gave to its task."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    given = int(os.environ.get("SLURM_CPUS_PER_TASK") or cores)
    layout = environment.detect(os.environ)
    if layout is not None and layout.source == "slurm" and "SLURM_CPUS_PER_TASK" in os.environ:
        return given  # each task is one process
    return max(1, min(cores, given) // idist.get_nproc_per_node())


def get_model(config: Config) -> nn.Module:
    """The model on this rank's device, ready to train together with the other ranks."""
    net = model.build(config.model)
    if idist.device().type in ("cpu", "cuda"):
        net = net.to(memory_format=torch.channels_last)  # batches come like that
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


def get_criterion(config: Config) -> nn.Module:
    """The loss to train with."""
    return nn.CrossEntropyLoss(label_smoothing=config.label_smoothing)


def settle_gradient_buckets(net: nn.Module, optimizer: Optimizer) -> None:
    """Before a checkpoint is loaded: let DistributedDataParallel arrange its gradients as it will for good.

    It puts them into other buckets after its first backward pass, and more than two ranks add numbers in an order that
    depends on their place in a bucket. So the first iteration of a resumed run would round differently than the same
    iteration of a run that was never interrupted. What this pass leaves in buffers and generators, the checkpoint overwrites.
    """
    if isinstance(net, nn.parallel.DistributedDataParallel):
        net(torch.zeros(2, 3, 32, 32, device=idist.device())).sum().backward()
        optimizer.zero_grad()


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
    config: Config,
    net: nn.Module,
    optimizer: Optimizer,
    criterion: nn.Module,
    *,
    flip: bool,
    clock: Throughput,
) -> tuple[Engine, dict[str, Metric]]:
    """The training engine, and the metrics over the batches of an epoch as they were trained on; `clock` measures the input."""
    prepare = supervised.prepare_batch
    if config.pipeline == "batched":
        prepare = training_batch(config.seed, flip, epoch=lambda: trainer.state.epoch)
    stepped: Any = torch.compile(net, dynamic=False) if config.compile else net
    trainer = create_supervised_trainer(
        stepped,
        optimizer,
        criterion,
        device=idist.device(),
        non_blocking=True,
        prepare_batch=clock.timed(prepare),
        output_transform=lambda x, y, y_pred, loss: {
            "loss": loss.detach(),
            "y_pred": y_pred.detach(),
            "y": y,
        },
        amp_mode=amp_mode(config),
    )
    running: dict[str, Metric] = {
        "train_accuracy": Accuracy(output_transform=lambda output: (output["y_pred"], output["y"])),
        "train_loss": Loss(
            lambda loss, y: loss, output_transform=lambda output: (output["loss"], output["y"])
        ),
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
            prepare_batch=supervised.prepare_batch if config.pipeline == "torchvision" else evaluation_batch,
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
