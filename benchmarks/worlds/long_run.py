"""A long run of the CIFAR-10 trainer's engine with all of its handlers: does a step, or the memory, grow with the steps?

    launchers/plain.sh -m benchmarks.worlds.long_run --output=DIR --steps=20000

Writes `DIR/long_run.json`: for each block of steps, milliseconds a step and MiB of resident memory at its end.
"""

from __future__ import annotations

import argparse
import time
from itertools import repeat
from pathlib import Path

import psutil
import torch

from benchmarks.worlds import training_handlers
from reference.engine import Events
from reference.files import write_json

EPOCHS = 20


def main() -> None:
    """Train, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worlds.long_run", allow_abbrev=False)
    parser.add_argument("--output", type=Path, required=True, help="folder")
    parser.add_argument("--steps", type=int, default=20_000, help="a multiple of 100 (%(default)s)")
    given = parser.parse_args()
    torch.set_num_threads(1)
    write_json(given.output / "long_run.json", long_run(given.output / "run", given.steps))


def long_run(folder: Path, steps: int) -> dict[str, list[float]]:
    """Train for 20 epochs of `steps / 20` steps, in 100 blocks.

    Returns:
        `step_ms` and `resident_mib`, one number a block.
    """
    if steps % 100:
        raise ValueError(f"steps={steps} is no multiple of 100")
    process = psutil.Process()
    block = steps // 100
    found: dict[str, list[float]] = {"step_ms": [], "resident_mib": []}
    with training_handlers.trainer(folder, steps) as engine:
        begin = time.perf_counter()

        def end_of_block() -> None:
            nonlocal begin
            found["step_ms"].append((time.perf_counter() - begin) / block * 1e3)
            found["resident_mib"].append(process.memory_info().rss / 2**20)
            begin = time.perf_counter()

        engine.add_event_handler(Events.ITERATION_COMPLETED(every=block), end_of_block)
        engine.run(repeat(training_handlers.images()), max_epochs=EPOCHS, epoch_length=steps // EPOCHS)
    return found


if __name__ == "__main__":
    main()
