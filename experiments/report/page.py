"""Writes the report: one HTML file that needs nothing else, and a summary in Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from experiments.report.content import Content, content
from experiments.report.groups import Group, read
from experiments.report.values import Table
from reference.files import write_atomically
from reference.markdown import table as table_in_markdown

HTML, MARKDOWN = "report.html", "report.md"
_TEMPLATES = Path(__file__).with_name("templates")


def write(run: Path, output: Path | None = None) -> tuple[Path, Path]:
    """Make the report of a matrix run.

    Args:
        run: its folder.
        output: folder for the report; default: `report` in the run's.

    Returns:
        The HTML file and the Markdown file.

    Raises:
        RecordError: the run has no records, or a broken one.
        RunError: its plan was written by other code.
    """
    found = content(read(run))
    folder = output or run / "report"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / HTML, html(found))
    write_atomically(folder / MARKDOWN, markdown(found))
    return folder / HTML, folder / MARKDOWN


def html(found: Content) -> str:
    """The page."""
    return _render("report.html.j2", autoescape=True, content=found)


def markdown(found: Content) -> str:
    """The summary."""
    return _render("report.md.j2", autoescape=False, content=found)


def markdown_table(table: Table) -> str:
    """A table in Markdown."""
    return table_in_markdown(table.columns, [[value.plain for value in row] for row in table.rows])


def linked(text: str) -> Markup:
    """The text with a link to its commands on every cell that it names."""
    return Markup(re.sub(r"\bC(\d+)\b", r'<a href="#c\1">C\1</a>', str(escape(text))))


def unnamed(groups: Sequence[Group], text: str) -> list[int]:
    """Numbers of the groups that the text does not name."""
    named = set(re.findall(r"\bC(\d+)\b", text))
    return sorted({group.number for group in groups if str(group.number) not in named})


def _render(name: str, *, autoescape: bool, **values: Any) -> str:
    jinja = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    jinja.filters.update(markdown=markdown_table, linked=linked, unnamed=unnamed)
    return jinja.get_template(name).render(values)
