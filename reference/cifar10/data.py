"""From a data set to the two loaders: every batch is cut out of one uint8 array, augmentation follows on the device."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

import reference.idist as idist
from reference.cifar10 import datasets, per_sample
from reference.cifar10.augment import crop_and_flip, draws, normalise
from reference.cifar10.config import Config
from reference.cifar10.datasets.base import Split
from reference.cifar10.stopping import SIGNALS

T = TypeVar("T")
Batch = tuple[Tensor, Tensor, Tensor]


class ImageArray(Dataset[Batch]):
    """Items `(image [32, 32, 3] uint8, label, index)`; many at once through `__getitems__`, which the loader uses.

    Args:
        split: images and labels.
        chosen: [n] the samples of the split to take, all if None. `index` in an item is that of the whole split, so a
            sample is augmented in the same way in a smaller training set.
        device: keep a copy of those samples there (150 MB for all of CIFAR-10), so that batches are cut out of it on the device
            and only their positions go there. Default: they stay in the split's memory, which processes may share.
    """

    def __init__(
        self, split: Split, chosen: npt.NDArray[np.int64] | None = None, device: torch.device | None = None
    ) -> None:
        self.split = split
        self.chosen = np.arange(len(split.labels)) if chosen is None else chosen
        self._copy: Batch | None = None
        if device is not None:
            images, labels, indices = self._from_memory(range(len(self)))
            self._copy = images.to(device), labels.to(device), indices.to(device)

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, position: int) -> Batch:
        images, labels, indices = self.__getitems__([position])
        return images[0], labels[0], indices[0]

    def __getitems__(self, positions: Sequence[int]) -> Batch:
        """A whole batch: images [B, 32, 32, 3] uint8, labels [B] int64, indices [B] int64."""
        if self._copy is not None:
            images, labels, indices = self._copy
            places = torch.tensor(positions).to(images.device, non_blocking=True)
            return images[places], labels[places], indices[places]
        return self._from_memory(positions)

    def _from_memory(self, positions: Sequence[int]) -> Batch:
        indices = self.chosen[np.asarray(positions)]
        images = torch.from_numpy(self.split.images[indices])
        return images, torch.from_numpy(self.split.labels[indices]), torch.from_numpy(indices)


def as_it_is(batch: T) -> T:
    """A collate function for batches that come complete."""
    return batch


def evenly_spread(size: int, wanted: int | None) -> npt.NDArray[np.int64]:
    """`wanted` of `size` positions at equal distances, so that data sorted by class keeps all its classes.

    Raises:
        DataError: more wanted than there are.
    """
    wanted = size if wanted is None else wanted
    if wanted > size:
        raise datasets.DataError(f"{wanted:,} images asked for, but there are only {size:,}")
    return np.arange(wanted, dtype=np.int64) * size // wanted


def get_dataflow(config: Config, images: datasets.ImageSet) -> tuple[Any, Any]:
    """The training loader (shuffled, whole batches only) and the loader of the test set.

    Raises:
        DataError: a batch or a subset is larger than the data.
    """
    array = training_array(config, images)
    if len(array) < config.batch_size:
        raise datasets.DataError(
            f"batch_size ({config.batch_size}) is more than the {len(array):,} training images"
        )
    train: Dataset[Any] = array
    if config.pipeline == "torchvision":
        train = per_sample.Images(array, per_sample.training_transform(flip=images.flip))
    train_loader = idist.auto_dataloader(
        train,
        batch_size=config.batch_size,
        shuffle=True,
        drop_last=True,
        seed=config.seed,
        **_loader_options(config),
    )
    chosen = evenly_spread(len(images.test.labels), config.max_eval_samples)
    return train_loader, get_evaluation_loader(config, ImageArray(images.test, chosen, _residence(config)))


def training_array(config: Config, images: datasets.ImageSet) -> ImageArray:
    """The images to train on."""
    chosen = evenly_spread(len(images.train.labels), config.max_train_samples)
    return ImageArray(images.train, chosen, _residence(config))


def get_evaluation_loader(config: Config, array: ImageArray) -> Any:
    """Every image once over all ranks, without padding: ranks may differ by an image or a batch, or have none."""
    data: Dataset[Any] = array
    if config.pipeline == "torchvision":
        data = per_sample.Images(array, per_sample.evaluation_transform())
    return idist.auto_dataloader(data, batch_size=2 * config.batch_size, **_loader_options(config))


def _residence(config: Config) -> torch.device | None:
    """The GPU that keeps the data set, if there is one; loader processes and torchvision's transforms need it in memory."""
    resident = config.pipeline == "batched" and config.num_workers == 0 and idist.device().type == "cuda"
    return idist.device() if resident else None


def _loader_options(config: Config) -> dict[str, Any]:
    # A loader draws a number at the start of every pass. From the global generator, an evaluation or a resume in
    # mid-epoch would change the dropout of all later steps.
    generator = torch.Generator().manual_seed(config.seed)
    options = {
        "num_workers": config.num_workers,
        "generator": generator,
        "worker_init_fn": leave_signals_alone,
    }
    if config.pipeline == "batched":
        options["collate_fn"] = as_it_is
    if _residence(config) is not None:
        options["pin_memory"] = False  # is on the device already
    return options


def leave_signals_alone(worker: int) -> None:
    """Slurm sends a signal to all processes of a task: the training answers it, and its loader workers must live on."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def evaluation_batch(batch: Batch, device: torch.device, non_blocking: bool) -> tuple[Tensor, Tensor]:
    """Normalised images [B, 3, 32, 32] float32 and labels [B] int64 on the device."""
    images, labels, _ = batch
    return normalise(images.to(device, non_blocking=non_blocking)), labels.to(
        device, non_blocking=non_blocking
    )


def training_batch(seed: int, flip: bool, epoch: Callable[[], int]) -> Callable[..., tuple[Tensor, Tensor]]:
    """A `prepare_batch` that augments on the device; `epoch` tells the current epoch, from 1."""

    def prepare(batch: Batch, device: torch.device, non_blocking: bool) -> tuple[Tensor, Tensor]:
        images, labels, indices = (part.to(device, non_blocking=non_blocking) for part in batch)
        drawn = draws(indices, seed=seed, epoch=epoch())
        return normalise(crop_and_flip(images, drawn, flip=flip)), labels

    return prepare
