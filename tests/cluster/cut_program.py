"""Reduces without end: `cut_program.py FOLDER`. Every rank leaves a file when it has begun, and one with its error."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import reference.idist as idist

TIMEOUT = 8.0  # seconds


def reduce_for_ever(local_rank: int, folder: str) -> None:
    name = f"{idist.hostname()}-{local_rank}"
    try:
        while True:
            idist.all_reduce(torch.ones(1000))
            Path(folder, f"began-{name}").touch()
    except RuntimeError as error:
        Path(folder, f"error-{name}").write_text(f"{type(error).__name__}: {error}")
        raise


if __name__ == "__main__":
    with idist.Parallel("gloo", timeout=TIMEOUT) as parallel:
        parallel.run(reduce_for_ever, sys.argv[1])
