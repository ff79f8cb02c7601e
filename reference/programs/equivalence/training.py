"""The training that is the same everywhere: `train(recipe)` runs on every rank and reads from top to bottom.

Real images (scikit-learn's digits), shuffled and augmented, so that the order and the augmentation are compared as well. The
last of every epoch's global batches is uneven: 2 ranks have 2 and 1 samples of it, 4 ranks have 1, 1, 1 and none.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import reference.idist as idist
from reference.cifar10 import datasets
from reference.cifar10.data import ImageArray, as_it_is, evenly_spread, training_batch
from reference.engine import Engine, Events, create_supervised_trainer

SEED = 543
BATCH_SIZE = 64  # the global one
SAMPLES = 3 * BATCH_SIZE + 3
EPOCHS = 3
STEPS = -(-SAMPLES // BATCH_SIZE) * EPOCHS
LEARNING_RATE = (
    0.05  # at 0.1 the training itself makes rounding errors grow twentyfold, which would hide others
)
CHANNELS = (3, 8, 16)

_BUILDING = threading.Lock()  # replicas may be threads, and torch's generator belongs to the process


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One training. The faults are for the controls: mistakes that the comparison has to find."""

    dtype: torch.dtype
    seed: int = SEED  # of order and augmentation
    lost_sample: bool = False  # rank 0 leaves out one sample of the second step
    sync_bn: bool = True
    weighted: bool = True  # every sample of an uneven global batch counts the same


RECIPES = {
    "float32": Recipe(dtype=torch.float32),
    "float64": Recipe(dtype=torch.float64),
    "another-seed": Recipe(dtype=torch.float64, seed=SEED + 1),
    "lost-sample": Recipe(dtype=torch.float64, lost_sample=True),
    "local-batch-norm": Recipe(dtype=torch.float64, sync_bn=False),
    "equal-weights": Recipe(dtype=torch.float64, weighted=False),
}


def train(recipe: Recipe) -> dict[str, Any]:
    """Train the network once.

    Returns:
        losses: [STEPS] mean loss of each global batch.
        state: parameters and batch norm statistics after the last step, flat, by name.
        digest: SHA-256 over the bits of all of them.
        replicas_equal: whether all ranks ended with the same bits.
    """
    torch.set_num_threads(1)
    images = datasets.load("digits", Path())
    array = ImageArray(images.train, evenly_spread(len(images.train.labels), SAMPLES))
    loader: Any = idist.auto_dataloader(
        array, batch_size=BATCH_SIZE, shuffle=True, seed=recipe.seed, collate_fn=as_it_is
    )
    sync_bn = recipe.sync_bn and idist.backend() is not None  # the reference keeps torch's own batch norm
    model = idist.auto_model(build_model(SEED + idist.get_rank()).to(recipe.dtype), sync_bn=sync_bn)
    optimizer = idist.auto_optim(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=1e-4, nesterov=True)
    )
    trainer = create_supervised_trainer(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        device=idist.device(),
        prepare_batch=prepare_batch(recipe, images.flip, engine=lambda: trainer),
        loader=loader if recipe.weighted else None,
    )
    losses: list[float] = []

    @trainer.on(Events.EPOCH_STARTED)
    def choose_order() -> None:
        loader.sampler.set_epoch(trainer.state.epoch - 1)

    @trainer.on(Events.ITERATION_COMPLETED)
    def record_loss() -> None:
        losses.append(idist.all_reduce(float(trainer.state.output), "AVERAGE"))

    trainer.run(loader, max_epochs=EPOCHS)
    state = {name: value.detach().cpu() for name, value in idist.unwrap(model).state_dict().items()}
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values())).hexdigest()
    return {
        "losses": losses,
        "state": {name: value.double().flatten().tolist() for name, value in state.items()},
        "digest": digest,
        "replicas_equal": len(set(idist.all_gather(digest))) == 1,
    }


def build_model(seed: int) -> nn.Module:
    """[B, 3, 32, 32] to logits [B, 10], with fresh weights. Only rank 0's count: `auto_model` gives them to all ranks.

    It is smooth (SiLU, no ReLU, no max-pooling): at a kink, a difference in the last bit may become a large one. No bias
    before a batch norm either: its gradient is zero but for rounding, so it would show nothing else.
    """
    with _BUILDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for channels_in, channels_out in pairwise(CHANNELS):
            convolution = nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(channels_out), nn.SiLU()]
        return nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4 * 4 * CHANNELS[-1], 10))


def prepare_batch(
    recipe: Recipe, flip: bool, engine: Callable[[], Engine]
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Augmentation as in the CIFAR-10 trainer, in the precision of the recipe."""
    augment = training_batch(recipe.seed, flip, epoch=lambda: engine().state.epoch)

    def prepare(batch: Any, device: torch.device, non_blocking: bool) -> tuple[Tensor, Tensor]:
        x, y = augment(batch, device, non_blocking)
        if recipe.lost_sample and idist.get_rank() == 0 and engine().state.iteration == 2:
            x, y = x[1:], y[1:]
        return x.to(recipe.dtype), y

    return prepare
