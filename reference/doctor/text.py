"""The report for people: plain lines, coloured on a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from reference.doctor.finding import LEVELS, NOTE, OK, PROBLEM, Finding, size
from reference.doctor.report import Report

_MARKS = {OK: ("ok", "green"), NOTE: ("note", "yellow"), PROBLEM: ("PROBLEM", "bold red")}
_NOT_HERE = "-", "dim"
_TITLES = {"launch": "launcher and settings", "all-reduce": "all-reduce: median time, bus bandwidth"}


def show(report: Report, console: Console) -> None:
    """Print the report. Lines are never broken: terminals do that, and files keep them whole."""
    _print(console, f"[bold]{escape(_headline(report.world))}[/]")
    width = max((len(finding.name) for finding in report.findings), default=0)
    sections = dict.fromkeys([*(finding.section for finding in report.findings), "all-reduce"])
    for section in sections:
        found = [finding for finding in report.findings if finding.section == section]
        if not found and not (section == "all-reduce" and report.tables):
            continue
        _print(console, f"\n[bold]{_TITLES.get(section, section)}[/]")
        if section == "all-reduce":
            for line in table_lines(report.tables):
                _print(console, escape(line))
        for finding in found:
            there = finding.level != OK or finding.value or finding.odd
            mark, style = _MARKS[finding.level] if there else _NOT_HERE
            line = f"{finding.name:<{width}}  {finding.text}"
            _print(console, f"  [{style}]{mark:<7}[/]  {escape(line)}")
    _print(console, f"\n{escape(closing(report.findings))}")


def issue(report: Report) -> Iterator[str]:
    """The lines of a block to paste into an issue."""
    text = io.StringIO()
    show(report, Console(file=text, force_terminal=False))
    yield "```text"
    yield from text.getvalue().splitlines()
    yield "```"


def closing(findings: list[Finding]) -> str:
    """The last line: what is wrong, by name."""
    parts = []
    for level in reversed(LEVELS[1:]):
        names = [finding.name for finding in findings if finding.level == level]
        if names:
            parts.append(f"{len(names)} {level}{'s' if len(names) > 1 else ''} ({', '.join(names)})")
    return "; ".join(parts) or "nothing that will bite"


def table_lines(tables: list[dict[str, Any]]) -> Iterator[str]:
    """One table with two columns for each backend that has been measured."""
    measured = [table for table in tables if table["rows"]]
    if not measured:
        return
    heads = [f"{table['backend']}, {_processes(table)}" for table in measured]
    yield f"  {'':>8}" + "".join(f"  {head:>26}" for head in heads)
    for number, row in enumerate(measured[0]["rows"]):
        cells = (_cell(table["rows"][number]) for table in measured)
        yield f"  {size(row['bytes']):>8}" + "".join(f"  {cell:>26}" for cell in cells)
    for table in measured:
        if table["remark"]:
            yield f"  {table['backend']}: {table['remark']}"


def _processes(table: Mapping[str, Any]) -> str:
    count = table["world_size"]
    return f"{count} process{'es' if count != 1 else ''}"


def _cell(row: Mapping[str, Any]) -> str:
    return f"{duration(row['seconds']):>8}  {rate(row['bus_bandwidth']):>10}"


def duration(seconds: float) -> str:
    """Seconds for people, with three digits."""
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def rate(bytes_per_second: float) -> str:
    """Bytes per second for people, decimal as networks count."""
    for factor, unit in ((1e9, "GB/s"), (1e6, "MB/s")):
        if bytes_per_second >= factor:
            return f"{bytes_per_second / factor:.3g} {unit}"
    return f"{bytes_per_second / 1e3:.3g} kB/s" if bytes_per_second else "-"


def _headline(world: Mapping[str, Any] | None) -> str:
    if world is None:
        return "What one process finds here"
    hosts: dict[str, list[str]] = {}
    for rank in world["ranks"]:
        hosts.setdefault(rank["host"], []).append(str(rank["rank"]))
    places = "; ".join(f"{host}: {' '.join(numbers)}" for host, numbers in hosts.items())
    count = f"{world['world_size']} ranks of {world['launcher']} have met by {world['backend']}"
    return f"{count} ({places}). What follows is true of all, unless it names some"


def _print(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False, emoji=False)
