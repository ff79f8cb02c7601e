"""Merges matrix runs of several machines into one, and refuses what cannot be compared."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from experiments.plan import CELLS
from experiments.records import RECORD, Record, RecordError, read_record, write_record


class CollectError(ValueError):
    """Records cannot be put together; the message is one line that names both."""


# What has to be the same, within which group of records, and what it is called.
_SAME: tuple[tuple[str, Callable[[Record], Any], Callable[[Record], Any]], ...] = (
    ("revision of the code", lambda record: "", lambda record: record.git.revision),
    (
        "data of the same name",
        lambda record: record.cell.settings.dataset,
        lambda record: record.measured and record.measured.data.checksum,
    ),
    (
        "torch on the same backend",
        lambda record: record.cell.backend,
        lambda record: record.measured and record.measured.versions.get("torch"),
    ),
)


def comparable(records: Sequence[tuple[Path, Record]]) -> None:
    """Check that all records can be compared.

    Raises:
        CollectError: two cannot, with the names of both.
    """
    for what, group_of, value_of in _SAME:
        first: dict[Any, tuple[Path, Any]] = {}
        for path, record in records:
            value = value_of(record)
            if value is None:
                continue
            other, wanted = first.setdefault(group_of(record), (path, value))
            if value != wanted:
                raise CollectError(f"{other} and {path} cannot be compared: other {what} ({wanted}, {value})")
    for path, record in records:
        if record.git.dirty:
            raise CollectError(f"{path} cannot be compared: its code had changes that are in no revision")


def collect(runs: Sequence[Path], target: Path) -> list[Record]:
    """Copy the cells of several matrix runs into one folder, each under its name and that of its machine.

    Returns:
        The records, as they are in the target.

    Raises:
        CollectError: records cannot be compared, two runs of a machine hold the same cell, or the target is there.
        RecordError: a record is broken.
    """
    if target.exists():
        raise CollectError(f"{target} is there already: name a new folder")
    found: list[tuple[Path, Record]] = []
    for run in runs:
        here = [(path.parent, read_record(path)) for path in sorted(run.glob(f"{CELLS}/*/{RECORD}"))]
        if not here:
            raise RecordError(
                f"{run} holds no records ({CELLS}/*/{RECORD}): is it the folder of a matrix run?"
            )
        found += here
    comparable(found)
    places: dict[str, Path] = {}
    for path, record in found:
        name = f"{record.host.name}-{record.cell.name}"
        if name in places:
            raise CollectError(
                f"{places[name]} and {path} are the same cell of the same machine: leave one out"
            )
        places[name] = path
    for order, (name, path) in enumerate(places.items(), start=1):
        shutil.copytree(path, target / CELLS / name)
        record = read_record(path / RECORD)
        write_record(target / CELLS / name, record.model_copy(update={"order": order}))
    return [read_record(target / CELLS / name / RECORD) for name in places]
