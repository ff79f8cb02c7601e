"""What every data set gives, and the one error that all of them raise."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class DataError(ValueError):
    """Data is missing, truncated or wrong; the message is one line that names the file and what to do."""


class Sizes(NamedTuple):
    """How many images a data set has."""

    train: int
    test: int


@dataclass(frozen=True, kw_only=True)
class Split:
    """One part of a data set: images [N, 32, 32, 3] uint8 (RGB) and labels [N] int64 in [0, 10)."""

    images: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        assert self.images.shape == (len(self.labels), 32, 32, 3), self.images.shape
        assert self.images.dtype == np.uint8 and self.labels.dtype == np.int64


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """A whole data set. `flip` says whether a mirrored image is still of its class; `checksum` stands for all the bytes."""

    title: str
    train: Split
    test: Split
    flip: bool
    checksum: str

    @property
    def sizes(self) -> Sizes:
        """How many images there are."""
        return Sizes(len(self.train.labels), len(self.test.labels))


def checksum_of(train: Split, test: Split) -> str:
    """SHA-256 over all labels and pixels, in order."""
    digest = hashlib.sha256()
    for array in (train.labels, train.images, test.labels, test.images):
        digest.update(np.ascontiguousarray(array).data)
    return f"sha256:{digest.hexdigest()}"


@contextmanager
def only_one_process(lock_file: Path) -> Iterator[None]:
    """Other processes that lock the same file wait until this block is left, even by a crash."""
    with lock_file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
