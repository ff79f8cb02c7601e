"""A small distributed program: rank 0 writes down where every rank stands, and what an all-reduce over them gave.

    place_program.py --backend=gloo --out=FILE [WORD...]

The launch options of `idist.Parallel` (--nproc_per_node and so on) make it start its processes itself. --path replaces
PATH, to be without the programs that a container has not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

import reference.idist as idist

TIMEOUT = 60.0  # seconds


def place(local_rank: int, out: str, words: list[str]) -> None:
    rank, size = idist.get_rank(), idist.get_world_size()
    facts: dict[str, Any] = {
        "rank": rank,
        "local_rank": local_rank,
        "node_rank": idist.get_node_rank(),
        "nproc_per_node": idist.get_nproc_per_node(),
        "nnodes": idist.get_nnodes(),
        "world_size": size,
        "host": idist.hostname(),
        "backend": idist.backend(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "scontrol": shutil.which("scontrol"),
        "words": words,
        "sum": idist.all_reduce(torch.tensor([2.0**rank])).tolist(),
    }
    ranks = idist.all_gather(facts)
    if rank == 0:
        Path(out).write_text(json.dumps(ranks))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend")
    parser.add_argument("--out")
    for name in ("nproc_per_node", "nnodes", "node_rank", "master_port"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--master_addr")
    parser.add_argument("--path")
    parser.add_argument("words", nargs="*")
    options = vars(parser.parse_args())
    out, words, path = options.pop("out"), options.pop("words"), options.pop("path")
    if path is not None:
        os.environ["PATH"] = path
    with idist.Parallel(timeout=TIMEOUT, **options) as parallel:
        parallel.run(place, out, words)
