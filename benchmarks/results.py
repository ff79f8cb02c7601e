"""What a benchmark leaves: one JSON file for each, with every sample, so that all numbers can be worked out again.

A sample is a number in the row's unit; samples stand in lists, one for each start (of a process, or of a block of steps that
took turns with the other side's), as the differences between starts are part of the uncertainty.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from experiments.records import Part
from experiments.statistics import Estimate, estimate, ratio, ratio_of_turns
from reference.files import write_atomically

SCHEMA: Literal[1] = 1
Samples = list[list[float]]


class ResultError(ValueError):
    """A file is no result of a benchmark, or a benchmark cannot be run; the message is one line."""


class Row(Part):
    """One comparison; or, without `theirs`, one number."""

    name: str = Field(
        description="what is measured, and under which conditions: 'all_gather of strings, 64 KiB'"
    )
    unit: str = Field(description="of the samples: s, ms, us, images/s, MiB, %")
    ours: Samples = Field(min_length=1)
    theirs: Samples | None = None
    what: str = Field(default="ours", description="what `ours` is: 'idist', 'this trainer'")
    than: str = Field(default="", description="what `theirs` is: 'torch.distributed', 'pytorch-ignite'")
    at_least: float | None = Field(default=None, description="target of ours / theirs")
    at_most: float | None = Field(
        default=None, description="target of ours / theirs, or of ours where there is no other"
    )
    turns: bool = Field(
        default=False,
        description="sample i of a start was measured right beside sample i of the other side: their quotients count",
    )
    command: str = Field(default="", description="makes the number alone, from the root of the clone")

    @property
    def estimate(self) -> Estimate:
        """Median and interval of ours."""
        return estimate(self.ours)

    @property
    def other(self) -> Estimate | None:
        """Median and interval of theirs."""
        return None if self.theirs is None else estimate(self.theirs)

    @property
    def ratio(self) -> Estimate | None:
        """Ours by theirs, with an interval."""
        if self.theirs is None:
            return None
        return (ratio_of_turns if self.turns else ratio)(self.ours, self.theirs)

    @property
    def verdict(self) -> Literal["met", "missed", "not decided", ""]:
        """Whether the target is met: by the whole interval, by no part of it, or by a part only."""
        found = self.ratio or self.estimate
        low = self.at_least if self.at_least is not None else -float("inf")
        high = self.at_most if self.at_most is not None else float("inf")
        if self.at_least is None and self.at_most is None:
            return ""
        if low <= found.low and found.high <= high:
            return "met"
        return "missed" if found.high < low or found.low > high else "not decided"


class Result(Part):
    """What one benchmark measured, and on what."""

    schema_version: Literal[1] = SCHEMA
    name: str
    title: str
    text: str = Field(description="how it was measured, for readers of the report; Markdown")
    rows: list[Row]
    date: datetime
    quick: bool = Field(
        default=False, description="a trial with few samples: shows that it works, decides nothing"
    )
    machine: dict[str, Any] = Field(
        description="versions, git, host: reference.cifar10.manifest.of_this_machine"
    )


def now() -> datetime:
    """The time for `Result.date`, to the second."""
    return datetime.now(timezone.utc).replace(microsecond=0)


def write(result: Result, folder: Path) -> Path:
    """Write `<folder>/<name>.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.name}.json"
    write_atomically(path, result.model_dump_json(indent=1) + "\n")
    return path


def read(path: Path) -> Result:
    """Read one file.

    Raises:
        ResultError: it cannot be read, or is no result.
    """
    try:
        return Result.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ResultError(f"{path} is no result of a benchmark: {place}: {first['msg']}") from None


def read_all(folder: Path, order: Sequence[str]) -> list[Result]:
    """Every result of a folder, in the order of the catalogue.

    Raises:
        ResultError: there is none, or one is broken.
    """
    found = [read(folder / f"{name}.json") for name in order if (folder / f"{name}.json").is_file()]
    if not found:
        raise ResultError(f"{folder} has no results: python -m benchmarks run --output={folder}")
    return found
