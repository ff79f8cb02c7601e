"""The official CIFAR-10 files, every one checked by its md5, read by torchvision.

A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. https://www.cs.toronto.edu/~kriz/cifar.html
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from reference.cifar10.datasets.base import DataError, ImageSet, Sizes, Split

FOLDER = "cifar-10-batches-py"
MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
_RENEW = "python -m reference.cifar10 data --data_path={}"


def wrong_file(folder: Path) -> str | None:
    """What is wrong with the first bad file in `folder` (".../data_batch_1 is missing"), or None when all are right."""
    for name, md5 in MD5.items():
        file = folder / name
        if not file.is_file():
            return f"{file} is missing"
        if hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest() != md5:
            return f"{file} is damaged ({file.stat().st_size:,} bytes, its md5 is not the official one)"
    return None


def prepare(path: Path, report: Callable[[str], None]) -> Sizes:
    """Check that all official files are there and whole.

    Raises:
        DataError: a file is missing or has the wrong md5.
    """
    problem = wrong_file(path / FOLDER)
    if problem is not None:
        raise DataError(f"{problem}; {_RENEW.format(path)} brings the official files")
    return Sizes(50_000, 10_000)


def load(path: Path) -> ImageSet:
    """The 50,000 training images and 10,000 test images.

    Raises:
        DataError: torchvision is not installed, or it finds a file that is missing or wrong.
    """
    try:
        from torchvision.datasets import CIFAR10
    except ImportError as error:
        raise DataError(
            f"reading the official CIFAR-10 files needs torchvision ({error}): pip install torchvision"
        ) from None
    try:
        train, test = (CIFAR10(str(path), train=train) for train in (True, False))
    except RuntimeError as error:
        raise DataError(
            f"{path / FOLDER}: {error}; {_RENEW.format(path)} brings the official files"
        ) from None
    return ImageSet(
        title="CIFAR-10",
        train=Split(images=train.data, labels=np.asarray(train.targets, dtype=np.int64)),
        test=Split(images=test.data, labels=np.asarray(test.targets, dtype=np.int64)),
        flip=True,
        # Every file has been compared with its md5, so the list of them stands for the bytes.
        checksum=f"sha256:{hashlib.sha256(repr(sorted(MD5.items())).encode()).hexdigest()}",
    )
