"""The order in which two sides take turns. Imports nothing but Python: GPU machines have few packages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def alternating(blocks: int, sides: Sequence[str]) -> Iterator[str]:
    """The order of blocks within one process: a b, b a, a b, ..."""
    for block in range(blocks):
        yield from sides if block % 2 == 0 else reversed(sides)
