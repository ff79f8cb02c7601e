"""One cell: train one or more recipes in the world that a launcher made, and write down what came out.

NP=2 launchers/torchrun.sh -m reference.programs.equivalence.cell --backend=gloo --recipes=float32,float64 --out=cell.json
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import reference.idist as idist
from reference.programs.equivalence.training import RECIPES, train

TIMEOUT = 120.0  # seconds for each collective


def run_cell(local_rank: int, recipes: Sequence[str], out: Path) -> None:
    """Train on every rank; rank 0 writes the facts and curves."""
    curves = {name: train(RECIPES[name]) for name in recipes}
    if idist.get_rank() == 0:
        facts = {
            "model": idist.model_name(),
            "backend": idist.backend(),
            "world_size": idist.get_world_size(),
            "device": str(idist.device()),
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        out.write_text(json.dumps({**facts, "curves": curves}))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m reference.programs.equivalence.cell", allow_abbrev=False)
    parser.add_argument("--backend", help="gloo, nccl, horovod or xla-tpu; default: a single process")
    parser.add_argument("--nproc_per_node", type=int, help="processes to start; default: a launcher did")
    parser.add_argument(
        "--recipes", type=lambda text: text.split(","), default=list(RECIPES), help="names, with commas"
    )
    parser.add_argument("--out", type=Path, required=True, help="the file to write (JSON)")
    parser.add_argument("--local-rank", "--local_rank", help=argparse.SUPPRESS)  # of torch.distributed.launch
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.recipes) - set(RECIPES))
    if unknown:
        parser.error(f"--recipes: {', '.join(unknown)}: there are {', '.join(RECIPES)}")
    limits: dict[str, Any] = {} if given.backend is None else {"timeout": TIMEOUT}
    with idist.Parallel(given.backend, nproc_per_node=given.nproc_per_node, **limits) as parallel:
        parallel.run(run_cell, given.recipes, given.out)


if __name__ == "__main__":
    main()
