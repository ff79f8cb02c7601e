"""The embedded data set: the 1,797 scans of handwritten digits that come with scikit-learn.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998. Each 8x8 scan with
17 grey levels becomes 32x32x3: every pixel is repeated 4 times in both directions, and level v becomes 255 * v / 16, rounded
to the nearest whole number. Every fifth image (4, 9, 14, ...) is a test image: 1,438 to train on, 359 to test.
"""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np

from reference.cifar10.datasets.base import DataError, ImageSet, Sizes, Split, checksum_of


def _file() -> Path:
    # Importing scikit-learn takes seconds in every process, finding its file takes none.
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise DataError(
            "the digits are part of scikit-learn, which is not installed: pip install scikit-learn"
        )
    file = Path(package.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    if not file.is_file():
        raise DataError(
            f"the digits are missing from scikit-learn: {file} does not exist; install scikit-learn anew"
        )
    return file


def prepare(path: Path, report: Callable[[str], None]) -> Sizes:
    """Nothing to do: the digits are installed with scikit-learn.

    Raises:
        DataError: scikit-learn or its file is missing.
    """
    return load(path).sizes


def load(path: Path) -> ImageSet:
    """The digits as 32x32x3 images; `path` is not used."""
    with gzip.open(_file(), "rt", encoding="ascii") as text:
        rows = np.loadtxt(text, delimiter=",", dtype=np.int64)
    grey = ((rows[:, :64] * 255 + 8) // 16).astype(np.uint8).reshape(-1, 8, 8)
    images = np.repeat(np.repeat(grey, 4, axis=1), 4, axis=2)[..., None].repeat(3, axis=3)
    labels = rows[:, 64]
    in_test = np.arange(len(labels)) % 5 == 4
    train = Split(images=images[~in_test], labels=labels[~in_test])
    test = Split(images=images[in_test], labels=labels[in_test])
    return ImageSet(
        title="the embedded digits", train=train, test=test, flip=False, checksum=checksum_of(train, test)
    )
