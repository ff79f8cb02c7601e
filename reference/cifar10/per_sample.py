"""The pipeline of tutorials: each sample a picture that goes through torchvision's transforms. Here to be compared with.

The pixels follow the same rules as those of `augment`, but the random decisions are drawn from torch's global generator of
whichever process loads a sample: they depend on the number of processes and workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.utils.data import Dataset

from reference.cifar10.augment import FILL, MEAN, PAD, STD

if TYPE_CHECKING:
    from reference.cifar10.data import ImageArray

Transform = Callable[[Any], Tensor]


class Images(Dataset[tuple[Tensor, int]]):
    """Items `(image [3, 32, 32] float32, label)` of an `ImageArray`."""

    def __init__(self, array: ImageArray, transform: Transform) -> None:
        self._array = array
        self._transform = transform

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        from PIL import Image

        index = self._array.chosen[position]
        image = Image.fromarray(self._array.split.images[index])
        return self._transform(image), int(self._array.split.labels[index])


def training_transform(*, flip: bool) -> Transform:
    """A random crop of the image padded by 4 pixels, a random flip where allowed, and normalisation."""
    from torchvision import transforms

    crop = transforms.RandomCrop(32, padding=PAD, fill=FILL)
    mirror = [transforms.RandomHorizontalFlip()] if flip else []
    return transforms.Compose([crop, *mirror, *_to_normalised()])


def evaluation_transform() -> Transform:
    """Normalisation alone."""
    from torchvision import transforms

    return transforms.Compose(_to_normalised())


def _to_normalised() -> list[Transform]:
    from torchvision import transforms

    return [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
