"""A program as the CIFAR-10 tutorial teaches to write it: the same calls, with other imports.

`tutorial_program.py run --backend=gloo --nproc_per_node=2` trains on the data set in the folder CIFAR10_FOLDER, which
holds small files in the official form (so their md5 are taken from the files themselves).
"""

from __future__ import annotations

import hashlib
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import fire
import torch
from torch import nn, optim
from torchvision import datasets, models
from torchvision.transforms import Compose, Normalize, Pad, RandomCrop, RandomHorizontalFlip, ToTensor

import reference as ignite
import reference.idist as idist
from reference.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from reference.handlers import Checkpoint, PiecewiseLinear, common, global_step_from_engine
from reference.metrics import Accuracy, Loss
from reference.utils import manual_seed, setup_logger

config: dict[str, Any] = {
    "seed": 543,
    "data_path": os.environ["CIFAR10_FOLDER"],
    "output_path": os.environ["OUTPUT_FOLDER"],
    "model": "resnet18",
    "batch_size": 32,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "num_workers": 0,
    "num_epochs": 3,
    "learning_rate": 0.02,
    "num_warmup_epochs": 1,
    "validate_every": 2,
    "checkpoint_every": 2,
    "backend": None,
    "resume_from": os.environ.get("RESUME_FROM"),
    "log_every_iters": 1,
    "nproc_per_node": None,
    "with_clearml": False,
    "with_amp": False,
}


def accept_small_files(folder: Path) -> None:
    def listed(names: list[str]) -> list[list[str]]:
        return [[name, hashlib.md5((folder / name).read_bytes()).hexdigest()] for name in names]

    cls = datasets.CIFAR10
    cls.train_list = listed([f"data_batch_{number}" for number in range(1, 6)])
    cls.test_list = listed(["test_batch"])
    cls.meta = {**cls.meta, "md5": listed(["batches.meta"])[0][1]}


accept_small_files(Path(config["data_path"]) / "cifar-10-batches-py")


def get_datasets(path: str) -> tuple[Any, Any]:
    normalise = [ToTensor(), Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    augment = [Pad(4), RandomCrop(32, fill=128), RandomHorizontalFlip()]
    train = datasets.CIFAR10(root=path, train=True, download=False, transform=Compose(augment + normalise))
    return train, datasets.CIFAR10(root=path, train=False, download=False, transform=Compose(normalise))


def get_dataflow(config: dict[str, Any]) -> tuple[Any, Any]:
    train, test = get_datasets(config["data_path"])
    batch_size, workers = config["batch_size"], config["num_workers"]
    train_loader = idist.auto_dataloader(
        train, batch_size=batch_size, num_workers=workers, shuffle=True, drop_last=True
    )
    return train_loader, idist.auto_dataloader(
        test, batch_size=2 * batch_size, num_workers=workers, shuffle=False
    )


def get_model(config: dict[str, Any]) -> nn.Module:
    if config["model"] not in models.__dict__:
        raise RuntimeError(f"no model {config['model']}")
    return idist.auto_model(models.__dict__[config["model"]](num_classes=10))


def get_optimizer(config: dict[str, Any], model: nn.Module) -> optim.Optimizer:
    kwargs = {
        "lr": config["learning_rate"],
        "momentum": config["momentum"],
        "weight_decay": config["weight_decay"],
    }
    return idist.auto_optim(optim.SGD(model.parameters(), nesterov=True, **kwargs))


def get_criterion() -> nn.Module:
    return nn.CrossEntropyLoss().to(idist.device())


def get_lr_scheduler(config: dict[str, Any], optimizer: optim.Optimizer) -> PiecewiseLinear:
    iterations = config["num_iters_per_epoch"]
    milestones = [
        (0, 0.0),
        (iterations * config["num_warmup_epochs"], config["learning_rate"]),
        (iterations * config["num_epochs"], 0.0),
    ]
    return PiecewiseLinear(optimizer, param_name="lr", milestones_values=milestones)


def get_save_handler(config: dict[str, Any]) -> Any:
    if config["with_clearml"]:
        from reference.handlers import ClearMLSaver

        return ClearMLSaver(dirname=config["output_path"])
    return config["output_path"]


def load_checkpoint(resume_from: str) -> Any:
    file = Path(resume_from)
    assert file.exists(), f"no checkpoint {file}"
    return torch.load(file.as_posix(), map_location="cpu")


def create_trainer(
    model: nn.Module, optimizer: Any, criterion: nn.Module, lr_scheduler: Any, sampler: Any, config: dict[str, Any],
    logger: Any,
) -> Engine:  # fmt: skip
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
        train_sampler=sampler,
        to_save=to_save,
        save_every_iters=config["checkpoint_every"],
        save_handler=get_save_handler(config),
        lr_scheduler=lr_scheduler,
        output_names=["batch loss"] if config["log_every_iters"] > 0 else None,
        with_pbars=False,
        clear_cuda_cache=False,
    )
    if config["resume_from"] is not None:
        Checkpoint.load_objects(to_load=to_save, checkpoint=load_checkpoint(config["resume_from"]))
    return trainer


def create_evaluator(model: nn.Module, metrics: dict[str, Any], config: dict[str, Any]) -> Engine:
    amp_mode = "amp" if config["with_amp"] else None
    return create_supervised_evaluator(
        model, metrics=metrics, device=idist.device(), non_blocking=True, amp_mode=amp_mode
    )


def setup_rank_zero(logger: Any, config: dict[str, Any]) -> None:
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{config['model']}_backend-{idist.backend()}-{idist.get_world_size()}_{now}"
    folder = Path(config["output_path"]) / name
    if not folder.exists():
        folder.mkdir(parents=True)
    config["output_path"] = folder.as_posix()
    logger.info(f"Output path: {config['output_path']}")


def log_basic_info(logger: Any, config: dict[str, Any]) -> None:
    logger.info("Train on CIFAR10")
    logger.info(f"- PyTorch version: {torch.__version__}")
    logger.info(f"- version of the library: {ignite.__version__}")
    for key, value in config.items():
        logger.info(f"\t{key}: {value}")
    if idist.get_world_size() > 1:
        logger.info(f"\tbackend: {idist.backend()}, world size: {idist.get_world_size()}")


def log_metrics(logger: Any, epoch: int, elapsed: float, tag: str, metrics: dict[str, float]) -> None:
    values = "\n".join(f"\t{key}: {value}" for key, value in metrics.items())
    logger.info(f"\nEpoch {epoch} - Evaluation time (seconds): {elapsed:.2f} - {tag} metrics:\n {values}")


def training(local_rank: int, config: dict[str, Any]) -> None:
    rank = idist.get_rank()
    manual_seed(config["seed"] + rank)
    logger = setup_logger(name="CIFAR10-Training")
    log_basic_info(logger, config)
    if rank == 0:
        setup_rank_zero(logger, config)

    train_loader, val_loader = get_dataflow(config)
    model = get_model(config)
    optimizer = get_optimizer(config, model)
    criterion = get_criterion()
    config["num_iters_per_epoch"] = len(train_loader)
    lr_scheduler = get_lr_scheduler(config, optimizer)
    trainer = create_trainer(model, optimizer, criterion, lr_scheduler, train_loader.sampler, config, logger)

    metrics = {"Accuracy": Accuracy(), "Loss": Loss(criterion)}
    train_evaluator = create_evaluator(model, metrics, config)
    val_evaluator = create_evaluator(model, metrics, config)

    def run_validation(engine: Engine) -> None:
        epoch = trainer.state.epoch
        for tag, evaluator, loader in (
            ("train", train_evaluator, train_loader),
            ("val", val_evaluator, val_loader),
        ):
            state = evaluator.run(loader)
            log_metrics(logger, epoch, state.times["COMPLETED"], tag, state.metrics)

    trainer.add_event_handler(
        Events.EPOCH_COMPLETED(every=config["validate_every"]) | Events.COMPLETED, run_validation
    )

    if rank == 0:
        evaluators = {"train": train_evaluator, "val": val_evaluator}
        tb_logger = common.setup_tb_logging(config["output_path"], trainer, optimizer, evaluators=evaluators)

    best_model_handler = Checkpoint(
        {"model": model},
        get_save_handler(config),
        filename_prefix="best",
        n_saved=2,
        global_step_transform=global_step_from_engine(trainer),
        score_name="val_accuracy",
        score_function=Checkpoint.get_default_score_fn("Accuracy"),
    )
    val_evaluator.add_event_handler(Events.COMPLETED, best_model_handler)

    try:
        trainer.run(train_loader, max_epochs=config["num_epochs"])
    except Exception as error:
        logger.exception("")
        raise error
    if rank == 0:
        tb_logger.close()


def run(backend: str | None = None, **spawn_kwargs: Any) -> None:
    config["backend"] = backend
    with idist.Parallel(backend=config["backend"], **spawn_kwargs) as parallel:
        parallel.run(training, config)


if __name__ == "__main__":
    fire.Fire({"run": run})
