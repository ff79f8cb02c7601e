"""Files that are complete or not there. Needs no package."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_atomically(path: Path, text: str) -> None:
    """Write a file that is either complete or as it was before, also after a crash."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """`write_atomically` for a JSON object."""
    write_atomically(path, json.dumps(content, indent=2) + "\n")
