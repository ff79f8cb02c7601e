"""The data sets: one module each, found by name and imported when asked for.

A module has `prepare(path, report) -> Sizes`, which checks the data, does what has to be done once on a node, and imports
no torch, and `load(path) -> ImageSet`, which reads what `prepare` left.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from reference.cifar10.datasets.base import DataError, ImageSet, Sizes

__all__ = ["DataError", "ImageSet", "Sizes", "load", "prepare", "resolve"]


class _DataSet(Protocol):
    def prepare(self, path: Path, report: Callable[[str], None]) -> Sizes: ...

    def load(self, path: Path) -> ImageSet: ...


def _module(name: str) -> _DataSet:
    return cast(_DataSet, importlib.import_module(f"reference.cifar10.datasets.{name}"))


def resolve(name: str, path: Path) -> str:
    """The data set that `name` means: for "auto" what `path` holds, official files before an image folder before digits."""
    if name != "auto":
        return name
    if (path / "cifar-10-batches-py").is_dir():
        return "cifar10"
    return "images" if (path / "train").is_dir() and (path / "test").is_dir() else "digits"


def prepare(name: str, path: Path, report: Callable[[str], None] = print) -> Sizes:
    """Check the data set `name` under `path` and do once what it needs; how many images it has.

    Args:
        name: "cifar10", "images", "digits" or "fake".
        path: the data folder; digits and fake need none.
        report: receives a line when something takes long.

    Raises:
        DataError: missing, truncated or wrong data, in one line.
    """
    return _module(name).prepare(path, report)


def load(name: str, path: Path) -> ImageSet:
    """Read the data set `name`, which `prepare` has seen on this node.

    Raises:
        DataError: as `prepare`.
    """
    return _module(name).load(path)
