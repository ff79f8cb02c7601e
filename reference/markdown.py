"""Tables in Markdown. Needs no package."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> str:
    """Lines of a table, without an end of line after the last.

    Args:
        columns: their names.
        rows: a field for each column.
        right: names of the columns that are aligned to the right.
    """
    marks = ["---:" if name in right else "---" for name in columns]
    lines = [columns, marks, *rows]
    return "\n".join(
        f"| {' | '.join(field.replace('|', chr(92) + '|') for field in line)} |" for line in lines
    )
