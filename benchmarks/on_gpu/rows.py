"""What a part writes, and the arguments that all parts have. No torch here."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Args:
        part: which part it is of.
        what: was measured or checked.
        result: with its unit.
        note: a bound, a ratio, the conditions.
        ok: False for a check that failed and a part that broke; None for a number.
    """

    part: str
    what: str
    result: str
    note: str = ""
    ok: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Given:
    """The arguments of a part.

    Args:
        device: "cuda" or "cpu".
        quick: as little as shows that it works.
        dataset, data_path: as the trainer's options.
        folder: for the part's files; rows go to `rows.jsonl` in it.
    """

    device: str
    quick: bool
    dataset: str
    data_path: str
    folder: Path


def arguments() -> Given:
    """Read a part's command line."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--dataset", default="fake")
    parser.add_argument("--data_path", default="data")
    parser.add_argument("--folder", type=Path, required=True)
    return Given(**vars(parser.parse_args()))


class Rows:
    """Writes each row at once, so that a part that is stopped leaves what it had."""

    def __init__(self, part: str, given: Given) -> None:
        self._part = part
        self._path = given.folder / "rows.jsonl"

    def add(self, what: str, result: str, note: str = "", ok: bool | None = None) -> None:
        """Write a row; the fields are those of `Row`."""
        row = Row(part=self._part, what=what, result=result, note=note, ok=ok)
        print(f"{what}: {result} {note}", flush=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")


def read(folder: Path) -> list[Row]:
    """The rows that a part has written so far."""
    path = folder / "rows.jsonl"
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[
        :-1
    ]  # what follows the last line end is not complete
    return [Row(**json.loads(line)) for line in lines]
