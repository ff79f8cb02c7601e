"""docs/performance.md, and the same tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.results import Result, ResultError, Row
from experiments.report.values import digits
from experiments.statistics import Estimate
from reference.markdown import table

PAGE = Path("docs/performance.md")
_COLUMNS = ("what", "ours", "the other", "ours / other", "target", "n")
_NUMBERS = {"ours", "the other", "ours / other", "n"}


def terminal(result: Result) -> str:
    """One result as a table."""
    shown = Table(title=result.title, title_justify="left", box=box.SIMPLE)
    for column in _COLUMNS:
        shown.add_column(column, justify="right" if column in _NUMBERS else "left", overflow="fold")
    for row in result.rows:
        shown.add_row(*_fields(row))
    console = Console(file=StringIO(), width=140)
    console.print(shown)
    return console.file.getvalue().rstrip()  # type: ignore[attr-defined]


def markdown(found: Sequence[Result]) -> str:
    """The page.

    Raises:
        ResultError: a trial (`--quick`), or results of several machines.
    """
    for result in found:
        if result.quick:
            raise ResultError(
                f"{result.name} is a trial (--quick), which decides nothing: measure it without"
            )
    hosts = {(r.machine["host"]["processor"], r.machine["host"]["cores"]) for r in found}
    if len(hosts) > 1:
        raise ResultError("the results are of several machines: measure all of them on one")
    ((processor, cores),) = hosts
    versions = found[0].machine["versions"]
    dates = sorted({f"{r.date:%Y-%m-%d}" for r in found})
    decided = [row for r in found for row in r.rows if row.verdict]
    met = sum(row.verdict == "met" for row in decided)
    missed = [
        f"{row.name}, {row.what}{' beside ' + row.than if row.than else ''}"
        for row in decided
        if row.verdict == "missed"
    ]
    open_ = sum(row.verdict == "not decided" for row in decided)
    parts = [
        "# Performance",
        "Written by `python -m benchmarks report --write` from what `make bench` measured. Ratios count: both sides took turns on "
        "the same machine in the same run, so that they hold where the numbers beside them do not. Intervals are of 95 %, "
        "bootstrapped over starts and samples, and widened to Welch's or Student's where there are several starts; where blocks of "
        "both sides took turns within a start, it is their quotients that count "
        "(`experiments/statistics.py`); a target is met, or missed, when the whole interval says so.",
        f"Measured on {', '.join(dates)}: {processor}, {cores} cores, no GPU; Python {versions['python']}, torch {versions['torch']}. "
        f"**{met} of {len(decided)} targets are met.**"
        + (f" Missed: {'; '.join(missed)}." if missed else "")
        + (f" Of {open_} the interval holds both sides of the target: not decided." if open_ else ""),
    ]
    for result in found:
        parts += [f"## {result.title}", result.text, _table(result.rows)]
        commands = list(dict.fromkeys(row.command for row in result.rows if row.command))
        code = f"{result.machine['git']['revision'][:9]}{' with changes' if result.machine['git']['dirty'] else ''}"
        again = f"{result.date:%Y-%m-%d %H:%M} UTC, revision {code}; again with `make bench ARGS=--only={result.name}`, or alone:"
        parts.append("\n".join([again, "", *(f"- `{command}`" for command in commands)]))
    return "\n\n".join(parts) + "\n"


def _table(rows: Sequence[Row]) -> str:
    return table(_COLUMNS, [_fields(row) for row in rows], right=_NUMBERS)


def _fields(row: Row) -> list[str]:
    ratio, other = row.ratio, row.other
    n = row.estimate
    return [
        row.name,
        f"{_number(n, row.unit)} ({row.what})",
        "" if other is None else f"{_number(other, row.unit)} ({row.than})",
        "" if ratio is None else f"{digits(ratio.value)} [{digits(ratio.low)}, {digits(ratio.high)}]",
        _target(row),
        f"{n.steps:,} / {n.repeats}",
    ]


def _number(found: Estimate, unit: str) -> str:
    return f"{digits(found.value)} {unit}"


def _target(row: Row) -> str:
    bound = (
        f">= {row.at_least:g}"
        if row.at_least is not None
        else f"<= {row.at_most:g}"
        if row.at_most is not None
        else ""
    )
    return f"{bound}: {row.verdict}" if bound else ""
