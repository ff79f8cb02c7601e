"""Seeded random images in the size of CIFAR-10, for measuring speed: there is nothing to learn in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from reference.cifar10.datasets.base import ImageSet, Sizes, Split

SIZES = Sizes(50_000, 10_000)


def prepare(path: Path, report: Callable[[str], None]) -> Sizes:
    """Nothing to do: the images are made when they are loaded."""
    return SIZES


def _split(seed: int, size: int) -> Split:
    random = np.random.Generator(np.random.PCG64(seed))
    images = np.frombuffer(random.bytes(size * 32 * 32 * 3), dtype=np.uint8).reshape(size, 32, 32, 3)
    return Split(images=images, labels=random.integers(0, 10, size, dtype=np.int64))


def load(path: Path) -> ImageSet:
    """50,000 random training images and 10,000 random test images, the same ones every time; `path` is not used."""
    return ImageSet(
        title="random images",
        train=_split(0, SIZES.train),
        test=_split(1, SIZES.test),
        flip=True,
        checksum=f"PCG64 seeds 0 and 1, {SIZES.train} and {SIZES.test} images",
    )
