"""The arithmetic of a training alone: every process takes steps on batches in its memory, without loader or communication.

    NP=2 launchers/torchrun.sh -m benchmarks.worlds.bare --batch_size=256 --output=DIR

Writes `DIR/bare.json`: images a second over all processes, at the pace of the slowest.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.worlds.compute import PLAIN, step_of
from reference.files import write_json


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worlds.bare", allow_abbrev=False)
    parser.add_argument("--output", type=Path, required=True, help="folder")
    parser.add_argument("--batch_size", type=int, default=256, help="of each process (%(default)s)")
    parser.add_argument("--steps", type=int, default=20, help="after two that do not count (%(default)s)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step = step_of(PLAIN, "resnet18", given.batch_size, ddp=False)
    for _ in range(2):
        step()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(given.steps):
        step()
    seconds = torch.tensor(time.perf_counter() - begin, dtype=torch.float64)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    images = given.steps * given.batch_size * dist.get_world_size()
    if dist.get_rank() == 0:
        write_json(given.output / "bare.json", {"images_per_s": images / seconds.item()})
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
