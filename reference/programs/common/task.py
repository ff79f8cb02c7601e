"""What is trained on what: data, model, loss, optimizer, schedule. The same on every rank of every program."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property

import torch
from torch import nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Subset

from reference.cifar10 import datasets, model
from reference.cifar10.config import check_divisible
from reference.cifar10.data import Batch, ImageArray, evenly_spread
from reference.idist.samplers import epoch_generator
from reference.programs.common.options import Options, threads_of
from reference.programs.equivalence.training import build_model

_BUILDING = threading.Lock()  # replicas may be threads, and torch's generator belongs to the process


class ShuffledImages(ImageArray):
    """Position k is the k-th image of the epoch's order, which depends on seed and epoch alone.

    So the samplers of the libraries only have to deal positions out. Shuffling is theirs usually, but no two shuffle alike.
    """

    def __init__(self, images: datasets.ImageSet, options: Options) -> None:
        chosen = evenly_spread(len(images.train.labels), options.max_train_samples)
        super().__init__(images.train, chosen)
        self._seed = options.seed
        self.set_epoch(1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch (from 1); before its loader starts to read."""
        self._order = torch.randperm(len(self), generator=epoch_generator(self._seed, epoch)).numpy()

    def __getitems__(self, positions: Sequence[int]) -> Batch:
        return super().__getitems__(self._order[list(positions)].tolist())


class Task:
    """The training that the options describe.

    Args:
        options: of the program.
        world_size: number of ranks, by which the batch is shared out.

    Raises:
        OptionError: the batch size does not divide by the number of ranks.
    """

    def __init__(self, options: Options, world_size: int) -> None:
        check_divisible(options.batch_size, world_size)
        torch.set_num_threads(threads_of(options))
        self.options = options
        self.images = datasets.load(options.dataset, options.data_dir)
        self.train = ShuffledImages(self.images, options)
        self.test = ImageArray(
            self.images.test, evenly_spread(len(self.images.test.labels), options.max_eval_samples)
        )
        self.batch_size = options.batch_size // world_size
        self.steps_per_epoch = len(self.train) // options.batch_size
        self.steps = self.steps_per_epoch * options.num_epochs
        self.criterion = nn.CrossEntropyLoss()

    @cached_property
    def model(self) -> nn.Module:
        """Fresh weights, the same on every rank, on the CPU."""
        name, seed = self.options.model, self.options.seed
        if name == "small":
            return build_model(seed)
        with _BUILDING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return model.build(name)

    def optimizer(self, net: nn.Module) -> Optimizer:
        """SGD with Nesterov's momentum."""
        rate = self.options.learning_rate
        return SGD(net.parameters(), lr=rate, momentum=0.9, weight_decay=1e-4, nesterov=True)

    def schedule(self, optimizer: Optimizer) -> LambdaLR:
        """Linear warm-up in the first tenth of the steps, then linear decay to 0."""
        warm = max(1, self.steps // 10)

        def factor(step: int) -> float:
            return (step + 1) / warm if step < warm else (self.steps - step) / (self.steps - warm + 1)

        return LambdaLR(optimizer, factor)


def share_of(images: ImageArray, rank: int, world_size: int) -> Subset[Batch]:
    """A rank's part of the test images, each of them once over all ranks. (DistributedSampler would repeat some.)"""
    return Subset(images, range(rank, len(images), world_size))
