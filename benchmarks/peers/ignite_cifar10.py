"""CIFAR-10 with pytorch-ignite, in the way of its documented distributed example: what its users have to write.

NP=2 launchers/torchrun.sh -m benchmarks.peers.ignite_cifar10 --backend=gloo --dataset=images --data_path=data

Re-stated, not copied: a data loader with torchvision's transforms, the `auto_*` methods, an engine that puts out the loss of
every step, a schedule that rises for an epoch and then falls to 0, common handlers with checkpoints and TensorBoard, and
metrics on the test set and, with --evaluate_train, on the training set too.
"""

from __future__ import annotations

from typing import Any

import ignite.distributed as idist
import torch
from ignite.contrib.engines import common
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, PiecewiseLinear, global_step_from_engine
from ignite.metrics import Accuracy, Loss
from ignite.utils import manual_seed, setup_logger
from torch import nn

from benchmarks.peers.shared import Settings, meter, pictures, settings, settle, write
from reference.cifar10 import model


def loaders(given: Settings) -> tuple[Any, Any]:
    """Training and test images, dealt out over the ranks. (ignite pads the test images to a multiple of the ranks.)"""
    train, test = pictures(given)
    return (
        idist.auto_dataloader(
            train, batch_size=given.batch_size, num_workers=given.num_workers, shuffle=True, drop_last=True
        ),
        idist.auto_dataloader(
            test, batch_size=2 * given.batch_size, num_workers=given.num_workers, shuffle=False
        ),
    )


def optimizer_of(given: Settings, net: nn.Module) -> torch.optim.Optimizer:
    """SGD with Nesterov's momentum."""
    optimizer = torch.optim.SGD(
        net.parameters(),
        lr=given.learning_rate,
        momentum=given.momentum,
        weight_decay=given.weight_decay,
        nesterov=True,
    )
    return idist.auto_optim(optimizer)


def schedule_of(given: Settings, optimizer: torch.optim.Optimizer, steps: int) -> PiecewiseLinear:
    """From 0 to the learning rate in the warm-up, then to 0; `steps` is those of an epoch."""
    return PiecewiseLinear(
        optimizer,
        param_name="lr",
        milestones_values=[
            (0, 0.0),
            (steps * given.num_warmup_epochs, given.learning_rate),
            (steps * given.num_epochs, 0.0),
        ],
    )


def trainer_of(
    given: Settings, net: nn.Module, optimizer: Any, schedule: Any, criterion: nn.Module, sampler: Any
) -> Engine:
    """The training engine with the handlers that most trainings have."""
    trainer = create_supervised_trainer(
        net,
        optimizer,
        criterion,
        device=idist.device(),
        non_blocking=True,
        output_transform=lambda x, y, y_pred, loss: {"batch loss": loss.item()},
    )
    to_save = {"trainer": trainer, "model": net, "optimizer": optimizer, "lr_scheduler": schedule}
    common.setup_common_training_handlers(
        trainer=trainer,
        train_sampler=sampler,
        to_save=to_save,
        save_every_iters=200,
        output_path=given.output_path,
        lr_scheduler=schedule,
        output_names=["batch loss"],
        with_pbars=False,
        clear_cuda_cache=False,
    )
    return trainer


def training(local_rank: int, given: Settings) -> None:
    """Runs on every rank."""
    rank = idist.get_rank()
    manual_seed(given.seed + rank)
    logger = setup_logger("CIFAR10-Training")
    train_loader, test_loader = loaders(given)
    net = idist.auto_model(model.build(given.model))
    optimizer = optimizer_of(given, net)
    criterion = nn.CrossEntropyLoss().to(idist.device())
    schedule = schedule_of(given, optimizer, len(train_loader))
    trainer = trainer_of(given, net, optimizer, schedule, criterion, train_loader.sampler)

    clock = meter(given, idist.get_world_size(), len(train_loader))
    share = given.batch_size // idist.get_world_size()
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda: clock.start())
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: clock.update(share))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: clock.stop())

    evaluators = {
        name: create_supervised_evaluator(
            net,
            metrics={"Accuracy": Accuracy(), "Loss": Loss(criterion)},
            device=idist.device(),
            non_blocking=True,
        )
        for name in ("train", "test")
    }
    seconds: dict[str, float | None] = {}

    def evaluate() -> None:
        for name, loader in (("train", train_loader), ("test", test_loader)):
            if name == "test" or given.evaluate_train:
                state = evaluators[name].run(loader)
                seconds[name] = state.times["COMPLETED"]
                logger.info("%s: %s", name, state.metrics)

    trainer.add_event_handler(Events.EPOCH_COMPLETED(every=3) | Events.COMPLETED, evaluate)
    best = Checkpoint(
        {"model": net},
        given.output_path,
        filename_prefix="best",
        n_saved=2,
        global_step_transform=global_step_from_engine(trainer),
        score_name="test_accuracy",
        score_function=Checkpoint.get_default_score_fn("Accuracy"),
    )
    evaluators["test"].add_event_handler(Events.COMPLETED, best)
    board = None
    if rank == 0:
        board = common.setup_tb_logging(given.output_path, trainer, optimizer, evaluators=evaluators)

    trainer.run(train_loader, max_epochs=given.num_epochs)
    if board is not None:
        board.close()
    metrics = evaluators["test"].state.metrics
    write(
        given,
        clock.summary(),
        rank,
        accuracy=metrics["Accuracy"],
        loss=metrics["Loss"],
        n_evaluated=len(test_loader.dataset),
        evaluation_s=seconds["test"],
        evaluation_train_s=seconds.get("train"),
    )


def main() -> None:
    """Join the processes that a launcher started, or train in this one alone."""
    given = settings()
    with idist.Parallel(backend=given.backend) as parallel:
        parallel.run(training, given)
    settle()


if __name__ == "__main__":
    main()
