"""What the tables of the report are made of: fields with a text and what they are sorted by."""

from __future__ import annotations

from dataclasses import dataclass

from experiments.report.groups import Group
from experiments.statistics import Estimate

MIB = 2**20
LAYOUT, COUNT = "nodes x processes", "n steps / starts"
_RIGHT = {"images/s", "accuracy", "overhead", "efficiency", "lines", "calls"}


@dataclass(frozen=True, kw_only=True)
class Value:
    """One field of a table.

    Args:
        text: what is shown.
        detail: smaller, after it.
        sort: what the table is sorted by; None: the text.
        tone: a state, for its colour.
        cells: numbers of groups, shown as links to their commands.
    """

    text: str
    detail: str = ""
    sort: float | None = None
    tone: str = ""
    cells: tuple[int, ...] = ()

    @property
    def plain(self) -> str:
        """In one line of text."""
        return f"{self.text} {self.detail}".strip()


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table; the first field of each row names what its numbers are from."""

    title: str
    columns: list[str]
    rows: list[list[Value]]
    note: str = ""

    @property
    def numeric(self) -> frozenset[int]:
        """Places of the columns that are aligned to the right."""
        return frozenset(
            place for place, name in enumerate(self.columns) if name in _RIGHT or name.endswith((" s", "MiB"))
        )


def cells(*groups: Group) -> Value:
    """Links to where the commands are."""
    numbers = tuple(dict.fromkeys(group.number for group in groups))
    return Value(text=", ".join(f"C{number}" for number in numbers), sort=numbers[0], cells=numbers)


def digits(value: float) -> str:
    """About three significant digits, without an exponent."""
    if value == 0:
        return "0"
    size = abs(value)
    return f"{value:,.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3}f}"


def shown(found: Estimate | None, scale: float = 1.0) -> Value:
    """A number with its interval."""
    if found is None:
        return Value(text="-", sort=float("-inf"))
    value, low, high = (number * scale for number in (found.value, found.low, found.high))
    return Value(text=digits(value), detail=f"[{digits(low)}, {digits(high)}]", sort=value)


def count(found: Estimate | None) -> Value:
    """n of a number that has one value a step: steps and starts."""
    text = "-" if found is None else f"{found.steps:,} / {found.repeats}"
    return Value(text=text, sort=0 if found is None else found.steps)


def repeats(found: Estimate | None) -> Value:
    """n of a number that has one value a start."""
    n = 0 if found is None else found.repeats
    return Value(text=str(n), sort=n)


def text(value: str, detail: str = "", tone: str = "") -> Value:
    """A field without a number."""
    return Value(text=value, detail=detail, tone=tone)


def layout(group: Group) -> Value:
    """Nodes and processes on each."""
    cell = group.cell
    return Value(text=f"{cell.nodes}x{cell.processes}", sort=cell.world_size)
