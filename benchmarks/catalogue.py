"""The benchmarks: a module each, in the order of the report. It has `TITLE`, `TEXT` and `measure(bench)`."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Protocol, cast

from benchmarks.results import ResultError, Row
from benchmarks.starting import Bench

NAMES = (
    "training",
    "overhead",
    "engine",
    "input",
    "compute",
    "evaluation",
    "collectives",
    "startup",
    "growth",
)


class Benchmark(Protocol):
    """What such a module has."""

    TITLE: str
    TEXT: str

    def measure(self, bench: Bench) -> list[Row]:
        """Measure, and return what was found."""


def module_of(name: str) -> Benchmark:
    """The module of a benchmark."""
    return cast(Benchmark, importlib.import_module(f"benchmarks.{name}"))


def chosen(text: str | None) -> Sequence[str]:
    """The benchmarks that a list with commas names; None: all.

    Raises:
        ResultError: one of them does not exist.
    """
    names = list(NAMES) if text is None else text.split(",")
    for name in names:
        if name not in NAMES:
            raise ResultError(f"unknown benchmark {name!r}: there are {', '.join(NAMES)}")
    return names
