"""What a check knows of the world that it runs in, and how its ranks meet without idist."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_POLL = 0.002  # seconds


@dataclass(frozen=True, kw_only=True)
class World:
    """One rank's view. Nothing here comes from idist."""

    backend: str | None
    size: int
    rank: int
    scratch: Path  # a folder of this check, the same for all ranks
    limit: float  # seconds to wait for other ranks

    @property
    def ranks(self) -> range:
        return range(self.size)

    def exchange(self, label: str, value: Any = None) -> list[Any]:
        """Every rank's JSON value, in rank order: all ranks call it, and it returns when all have come."""
        own = self.scratch / f"{label}-{self.rank}.json"
        part = own.with_suffix(".part")
        part.write_text(json.dumps(value))
        os.replace(part, own)
        files = [self.scratch / f"{label}-{rank}.json" for rank in self.ranks]
        wait_for(lambda: all(file.exists() for file in files), self.limit, f"not all ranks came to {label!r}")
        return [json.loads(file.read_text()) for file in files]

    def note(self, text: str) -> None:
        """Append a line to the check's shared diary."""
        with open(self.scratch / "diary", "a") as file:
            file.write(f"{text}\n")

    def diary(self) -> list[str]:
        """The lines that all ranks have written so far, oldest first."""
        return (self.scratch / "diary").read_text().splitlines()


def wait_for(condition: Any, limit: float, otherwise: str) -> None:
    """Poll until the condition holds. TimeoutError after ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise} within {limit:g} s")
        time.sleep(_POLL)
