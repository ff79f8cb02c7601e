"""What the peers share, and what one would not have to write: options, the images, the meter, result.json."""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from reference.cifar10 import datasets, per_sample
from reference.cifar10.data import ImageArray, evenly_spread
from reference.metrics import Throughput

_SETTLE = 0.5  # seconds
WARMUP = 10  # steps that the speed leaves out, and no more than an epoch: as the trainer does


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One training, in the names of the trainer's options.

    Args:
        backend: gloo or nccl under a launcher; None: one process, on the GPU if there is one.
        dataset, data_path: as the trainer's.
        batch_size: global.
        num_workers: loader processes on this machine, shared out over the ranks.
        threads: of each rank.
        max_train_samples, max_eval_samples: images; None: all.
        evaluate_train: evaluate the training set as well, as pytorch-ignite's example does.
        output_path: folder for result.json and what else the peer writes.
    """

    backend: str | None
    dataset: str
    data_path: str
    model: str
    batch_size: int
    num_epochs: int
    num_warmup_epochs: int
    learning_rate: float
    momentum: float
    weight_decay: float
    num_workers: int
    threads: int
    max_train_samples: int | None
    max_eval_samples: int | None
    seed: int
    evaluate_train: bool
    output_path: str


def settings(argv: list[str] | None = None) -> Settings:
    """Read the command line, and prepare the images once.

    Args:
        argv: default: the program's own.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--backend", choices=("gloo", "nccl"))
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data_path", default="data")
    parser.add_argument("--model", default="resnet18")
    for name, value in (
        ("batch_size", 512), ("num_epochs", 5), ("num_warmup_epochs", 1), ("num_workers", 2), ("threads", 1), ("seed", 543),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, rate in (("learning_rate", 0.4), ("momentum", 0.9), ("weight_decay", 1e-4)):
        parser.add_argument(f"--{name}", type=float, default=rate)
    for name in ("max_train_samples", "max_eval_samples"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--evaluate_train", action="store_true")
    parser.add_argument("--output_path", default="output-peers")
    found = Settings(**vars(parser.parse_args(argv)))
    torch.set_num_threads(found.threads)
    datasets.prepare(found.dataset, Path(found.data_path))
    return found


def pictures(given: Settings) -> tuple[per_sample.Images, per_sample.Images]:
    """The training images, augmented, and the test images: one at a time through torchvision's transforms, as its CIFAR10 does it.

    The steps are the example's. Its `fill=128` belongs to a crop that never pads; here it is the padding's, as in the trainer.
    """
    images = datasets.load(given.dataset, Path(given.data_path))
    train, test = (
        ImageArray(split, evenly_spread(len(split.labels), wanted))
        for split, wanted in ((images.train, given.max_train_samples), (images.test, given.max_eval_samples))
    )
    return (
        per_sample.Images(train, per_sample.training_transform(flip=images.flip)),
        per_sample.Images(test, per_sample.evaluation_transform()),
    )


def meter(given: Settings, world_size: int, steps_per_epoch: int) -> Throughput:
    """The trainer's own meter: `start()` before an epoch, `update(n)` after a step of n images, `stop()` after the epoch."""
    return Throughput(given.batch_size // world_size, warmup=min(WARMUP, steps_per_epoch))


def write(given: Settings, speed: dict[str, float | None], rank: int, **facts: Any) -> None:
    """Write result.json; rank 0 only.

    Args:
        speed: `Throughput.summary()`, which all ranks have to call.
        rank: of this process.
        facts: what else was found: `accuracy`, `loss`, `n_evaluated`, `evaluation_s`, ...
    """
    if rank:
        return
    result = {
        "settings": asdict(given),
        "throughput_images_per_s": speed["samples_per_second"],
        "step_p50_s": speed["step_p50"],
        "measured_images": speed["samples"],
        **facts,
    }
    folder = Path(given.output_path)
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"result.json.{os.getpid()}"
    part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    part.replace(folder / "result.json")
    print(
        f"accuracy {facts['accuracy']:.4f} on {facts['n_evaluated']:,} test images, "
        f"{speed['samples_per_second'] or 0:.0f} images/s",
        flush=True,
    )


def settle() -> None:
    """The end of a program with DistributedDataParallel: a thread of gloo lets go of its last tensor, before Python ends.

    Without it a process aborts now and then (torch 2.14).
    """
    time.sleep(_SETTLE)
