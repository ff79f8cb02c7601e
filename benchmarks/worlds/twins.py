"""One training twice in the same processes, built with idist and by hand with torch.distributed; blocks of steps take turns.

    NP=2 launchers/torchrun.sh -m benchmarks.worlds.twins --dataset=digits --model=small --output=DIR

Writes `DIR/twins.json`: for each side, for each block, the seconds of its steps on the slowest rank; and the losses, which are
the same bits on both sides.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import reference.idist as idist
from benchmarks.turns import alternating
from reference.cifar10 import datasets
from reference.cifar10.data import Batch, as_it_is, training_batch
from reference.files import write_json
from reference.programs.common import Options, Task

SIDES = ("idist", "by_hand")


def with_idist(options: Options) -> Iterator[float]:
    """As `reference/programs/idist.py` builds it."""
    task = Task(options, idist.get_world_size())
    loader = idist.auto_dataloader(
        task.train, batch_size=options.batch_size, drop_last=True, collate_fn=as_it_is
    )
    model = idist.auto_model(task.model)
    return steps(task, model, idist.auto_optim(task.optimizer(model)), loader)


def by_hand(options: Options) -> Iterator[float]:
    """As `reference/programs/native_ddp.py` builds it."""
    task = Task(options, dist.get_world_size())
    sampler: DistributedSampler[Batch] = DistributedSampler(task.train, shuffle=False, drop_last=True)
    loader = DataLoader(
        task.train, batch_size=task.batch_size, sampler=sampler, drop_last=True, collate_fn=as_it_is
    )
    model = DistributedDataParallel(task.model)
    return steps(task, model, task.optimizer(model), loader)


def steps(
    task: Task, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[Batch]
) -> Iterator[float]:
    """Train for ever; gives the loss of each step."""
    model.train()
    for epoch in itertools.count(1):
        task.train.set_epoch(epoch)
        prepare = training_batch(task.options.seed, task.images.flip, epoch=lambda now=epoch: now)  # type: ignore[misc]
        for batch in loader:
            x, y = prepare(batch, torch.device("cpu"), non_blocking=True)
            optimizer.zero_grad()
            loss = task.criterion(model(x), y)
            loss.backward()
            optimizer.step()
            yield loss.item()


def main() -> None:
    """Measure, and write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worlds.twins", allow_abbrev=False)
    parser.add_argument("--output", type=Path, required=True, help="folder")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--data_path", default="data")
    parser.add_argument("--model", default="small")
    parser.add_argument("--blocks", type=int, default=20, help="of each side (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="of a block (%(default)s)")
    given = parser.parse_args()
    options = Options(dataset=given.dataset, data_path=given.data_path, model=given.model, threads=1)
    idist.initialize("gloo")
    with idist.one_rank_first(local=True):
        datasets.prepare(options.dataset, options.data_dir)
    sides = dict(zip(SIDES, (with_idist(options), by_hand(options)), strict=True))
    found: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    losses: dict[str, list[float]] = {side: [] for side in SIDES}
    for block, side in enumerate(alternating(given.blocks + 1, SIDES)):
        seconds = []
        for _ in range(given.steps):
            begin = time.perf_counter()
            losses[side].append(next(sides[side]))
            seconds.append(time.perf_counter() - begin)
        slowest = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if block >= len(SIDES):  # the first of each is the warm-up
            found[side].append(slowest.tolist())
    if idist.get_rank() == 0:
        write_json(given.output / "twins.json", {"step_s": found, "losses": losses})
    idist.finalize()


if __name__ == "__main__":
    main()
