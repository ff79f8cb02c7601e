"""A training in the form of the CIFAR-10 tutorial: written for its API, with other imports, on a small problem."""

from __future__ import annotations

import logging
import math
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn, optim
from torch.utils.data import TensorDataset

import reference.idist as idist
from reference.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from reference.handlers import Checkpoint, PiecewiseLinear, common, global_step_from_engine
from reference.metrics import Accuracy, Loss
from reference.utils import manual_seed, setup_logger

CONFIG: dict[str, Any] = {
    "seed": 543,
    "model": "small",
    "batch_size": 32,
    "num_epochs": 5,
    "learning_rate": 0.4,
    "num_warmup_epochs": 1,
    "validate_every": 3,
    "checkpoint_every": 20,
    "log_every_iters": 15,
    "resume_from": None,
    "with_clearml": False,
    "with_amp": False,
    "crash_at": None,
}
TRAIN, TEST = 520, 101  # not multiples of anything


def get_datasets() -> tuple[TensorDataset, TensorDataset]:
    """Three clouds in 8 dimensions."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(TRAIN + TEST) % 3
    x = torch.randn(len(y), 8, generator=generator) + 2 * nn.functional.one_hot(y, 8)
    return TensorDataset(x[:TRAIN], y[:TRAIN]), TensorDataset(x[TRAIN:], y[TRAIN:])


def get_model() -> nn.Module:
    return idist.auto_model(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)))


def get_lr_scheduler(config: dict[str, Any], optimizer: optim.Optimizer) -> PiecewiseLinear:
    per_epoch = config["num_iters_per_epoch"]
    milestones_values = [
        (0, 0.0),
        (per_epoch * config["num_warmup_epochs"], config["learning_rate"]),
        (per_epoch * config["num_epochs"], 0.0),
    ]
    return PiecewiseLinear(optimizer, param_name="lr", milestones_values=milestones_values)


def create_trainer(
    model: nn.Module,
    optimizer: optim.Optimizer,
    criterion: nn.Module,
    lr_scheduler: PiecewiseLinear,
    train_sampler: Any,
    config: dict[str, Any],
    logger: logging.Logger,
) -> Engine:
    trainer = create_supervised_trainer(
        model,
        optimizer,
        criterion,
        device=idist.device(),
        non_blocking=True,
        output_transform=lambda x, y, y_pred, loss: {"batch loss": loss.item()},
        amp_mode="amp" if config["with_amp"] else None,
        scaler=config["with_amp"],
    )
    trainer.logger = logger
    to_save = {"trainer": trainer, "model": model, "optimizer": optimizer, "lr_scheduler": lr_scheduler}
    common.setup_common_training_handlers(
        trainer=trainer,
        train_sampler=train_sampler,
        to_save=to_save,
        save_every_iters=config["checkpoint_every"],
        save_handler=config["output_path"],
        lr_scheduler=lr_scheduler,
        output_names=["batch loss"] if config["log_every_iters"] > 0 else None,
        with_pbars=False,
        clear_cuda_cache=False,
    )
    if config["resume_from"] is not None:
        checkpoint_fp = Path(config["resume_from"])
        assert checkpoint_fp.exists()
        checkpoint = torch.load(checkpoint_fp.as_posix(), map_location="cpu")
        Checkpoint.load_objects(to_load=to_save, checkpoint=checkpoint)
    return trainer


def setup_rank_zero(logger: logging.Logger, config: dict[str, Any]) -> None:
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder_name = f"{config['model']}_backend-{idist.backend()}-{idist.get_world_size()}_{now}"
    output_path = Path(config["output_path"]) / folder_name
    if not output_path.exists():
        output_path.mkdir(parents=True)
    config["output_path"] = output_path.as_posix()
    logger.info(f"Output path: {config['output_path']}")


def log_metrics(
    logger: logging.Logger, epoch: int, elapsed: float, tag: str, metrics: dict[str, float]
) -> None:
    metrics_output = "\n".join(f"\t{k}: {v}" for k, v in metrics.items())
    logger.info(
        f"\nEpoch {epoch} - Evaluation time (seconds): {elapsed:.2f} - {tag} metrics:\n {metrics_output}"
    )


def training(local_rank: int, config: dict[str, Any]) -> dict[str, Any]:
    rank = idist.get_rank()
    manual_seed(config["seed"] + rank)
    logger = setup_logger(name="CIFAR10-Training")
    logger.info(f"Train with PyTorch {torch.__version__} on {idist.device()}")
    if rank == 0:
        setup_rank_zero(logger, config)

    train_dataset, test_dataset = get_datasets()
    train_loader = idist.auto_dataloader(
        train_dataset, batch_size=config["batch_size"], num_workers=0, shuffle=True, drop_last=True
    )
    val_loader = idist.auto_dataloader(
        test_dataset, batch_size=2 * config["batch_size"], num_workers=0, shuffle=False
    )
    model = get_model()
    optimizer = idist.auto_optim(
        optim.SGD(
            model.parameters(), lr=config["learning_rate"], momentum=0.9, weight_decay=1e-4, nesterov=True
        )
    )
    criterion = nn.CrossEntropyLoss().to(idist.device())
    config["num_iters_per_epoch"] = len(train_loader)
    lr_scheduler = get_lr_scheduler(config, optimizer)
    trainer = create_trainer(model, optimizer, criterion, lr_scheduler, train_loader.sampler, config, logger)

    metrics = {"Accuracy": Accuracy(), "Loss": Loss(criterion)}
    amp_mode = "amp" if config["with_amp"] else None
    train_evaluator, val_evaluator = (
        create_supervised_evaluator(
            model, metrics=metrics, device=idist.device(), non_blocking=True, amp_mode=amp_mode
        )
        for _ in range(2)
    )

    def run_validation(engine: Engine) -> None:
        epoch = trainer.state.epoch
        state = train_evaluator.run(train_loader)
        log_metrics(logger, epoch, state.times["COMPLETED"], "train", state.metrics)
        state = val_evaluator.run(val_loader)
        log_metrics(logger, epoch, state.times["COMPLETED"], "val", state.metrics)

    trainer.add_event_handler(
        Events.EPOCH_COMPLETED(every=config["validate_every"]) | Events.COMPLETED, run_validation
    )

    if rank == 0:
        evaluators = {"train": train_evaluator, "val": val_evaluator}
        tb_logger = common.setup_tb_logging(config["output_path"], trainer, optimizer, evaluators=evaluators)

    best_model_handler = Checkpoint(
        {"model": model},
        config["output_path"],
        filename_prefix="best",
        n_saved=2,
        global_step_transform=global_step_from_engine(trainer),
        score_name="val_accuracy",
        score_function=Checkpoint.get_default_score_fn("Accuracy"),
    )
    val_evaluator.add_event_handler(Events.COMPLETED, best_model_handler)

    # not in the tutorial: what the test looks at
    seen: list[Any] = []
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda e: seen.append((e.state.iteration, e.state.output["batch loss"]))
    )
    if config["crash_at"]:
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=config["crash_at"]), crash)

    try:
        trainer.run(train_loader, max_epochs=config["num_epochs"])
    except Exception as e:
        logger.exception("")
        if not config["crash_at"]:
            raise e
    if rank == 0:
        tb_logger.close()
    return {
        "folder": config["output_path"],
        "losses": seen,
        "parameters": [p.detach().flatten().tolist() for p in model.parameters()],
        "val": dict(val_evaluator.state.metrics),
    }


def crash() -> None:
    raise RuntimeError("the machine is gone")


def both(local_rank: int, output_path: str) -> list[dict[str, Any]]:
    """The whole training, one that crashes after its second checkpoint, and one that goes on from there."""
    whole = training(local_rank, {**CONFIG, "output_path": output_path + "/whole"})
    broken = training(local_rank, {**CONFIG, "output_path": output_path + "/broken", "crash_at": 53})
    checkpoint = idist.broadcast(str(Path(broken["folder"]) / "training_checkpoint_40.pt"))
    resumed = training(
        local_rank, {**CONFIG, "output_path": output_path + "/resumed", "resume_from": checkpoint}
    )
    return [whole, broken, resumed]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", [None, "gloo"])
def test_the_tutorial(backend: str | None, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spawn = {} if backend is None else {"nproc_per_node": 2}
    with idist.Parallel(backend=backend, **spawn) as parallel:
        whole, broken, resumed = parallel.run(both, tmp_path.as_posix())

    # going on from the checkpoint is the whole training, bit for bit
    assert [n for n, _ in resumed["losses"]] == list(range(41, 81))
    assert broken["losses"][:40] + resumed["losses"] == whole["losses"]
    assert resumed["parameters"] == whole["parameters"]
    assert resumed["val"] == whole["val"]

    # it learned, and the validation saw each sample once
    assert whole["val"]["Accuracy"] > 0.8
    assert (whole["val"]["Accuracy"] * TEST) == pytest.approx(
        round(whole["val"]["Accuracy"] * TEST), abs=1e-9
    )

    folder = Path(whole["folder"])
    size = 1 if backend is None else 2
    assert folder.name.startswith(f"small_backend-{backend}-{size}_")
    files = sorted(path.name for path in folder.glob("*.pt"))
    best = [name for name in files if name.startswith("best")]
    assert "training_checkpoint_80.pt" in files and len(files) == 1 + len(best)
    assert f"best_model_5_val_accuracy={whole['val']['Accuracy']:.4f}.pt" in best or len(best) == 2

    # the best model is what the validation saw: the same accuracy again, in one process
    state = torch.load(folder / best[-1], weights_only=True)["model"]
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3)).eval()
    net.load_state_dict(state)
    x, y = get_datasets()[1].tensors
    assert f"={(net(x).argmax(1) == y).double().mean():.4f}.pt" in best[-1]

    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    tags = set(accumulator.Tags()["scalars"])
    # 80 iterations: fewer than the 100 after which the trainer's own values are logged
    assert tags == {"train/Accuracy", "train/Loss", "val/Accuracy", "val/Loss"}
    values = accumulator.Scalars("val/Accuracy")
    assert [event.step for event in values] == [3, 5]
    assert math.isclose(values[-1].value, whole["val"]["Accuracy"], rel_tol=1e-6)

    shown = capfd.readouterr().err
    assert shown.count("Engine run starting with max_epochs=5.") == 3
    assert "Epoch[5] Complete. Time taken: 00:00:" in shown
    assert "Epoch 5 - Evaluation time (seconds)" in shown and "val metrics" in shown
    assert "the machine is gone" in shown
