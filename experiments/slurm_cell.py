"""One process of a job array: becomes the program of its cell.

    python -m experiments.slurm_cell ARRAY.json INDEX

The file holds, for each index, the program of a cell and its options, as they would follow `python`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn


def main(arguments: Sequence[str]) -> NoReturn:
    """Never comes back."""
    file, index = arguments
    words: list[str] = json.loads(Path(file).read_text(encoding="utf-8"))[int(index)]
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    main(sys.argv[1:])
