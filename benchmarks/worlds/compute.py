"""Seconds a step of ResNet-18 with one choice on and off, blocks of steps taking turns.

    launchers/plain.sh -m benchmarks.worlds.compute --output=DIR                    the choices of one process
    NP=2 launchers/torchrun.sh -m benchmarks.worlds.compute --output=DIR --ddp      those of DistributedDataParallel

Everything but the choice is as in the trainer: channels last, fused SGD, no mixed precision, no compiler. Both sides have the
same weights and take the same batches; the loss of the first step is written down, to see that they compute the same.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.turns import alternating
from reference.cifar10 import model

SIDES = ("with", "without")
Step = Callable[[], Tensor]


@dataclass(frozen=True, kw_only=True)
class Make:
    """How a step is made; the defaults are the trainer's.

    Args:
        bucket_view, static_graph: of DistributedDataParallel, in a world of ranks.
        evaluate: no training step, but a forward pass in this mode.
        threads: of this process while the step runs.
        read_loss: on the host after every step.
    """

    channels_last: bool = True
    fused: bool = True
    bf16: bool = False
    compiled: bool = False
    set_to_none: bool = True
    read_loss: bool = False
    threads: int = 1
    bucket_view: bool = False
    static_graph: bool = False
    evaluate: str | None = None


@dataclass(frozen=True)
class Choice:
    """What is turned on, and what it is turned on beside."""

    on: Make
    off: Make


PLAIN = Make()
ALONE = {
    "channels_last": Choice(PLAIN, replace(PLAIN, channels_last=False)),
    "fused SGD": Choice(PLAIN, replace(PLAIN, fused=False)),
    "bf16 autocast": Choice(replace(PLAIN, bf16=True), PLAIN),
    "torch.compile": Choice(replace(PLAIN, compiled=True), PLAIN),
    "zero_grad(set_to_none=True)": Choice(PLAIN, replace(PLAIN, set_to_none=False)),
    "reading the loss each step": Choice(replace(PLAIN, read_loss=True), PLAIN),
    "2 threads instead of 1": Choice(replace(PLAIN, threads=2), PLAIN),
    "evaluation: inference_mode instead of no_grad": Choice(
        replace(PLAIN, evaluate="inference_mode"), replace(PLAIN, evaluate="no_grad")
    ),
}
DDP = {
    "gradient_as_bucket_view": Choice(replace(PLAIN, bucket_view=True), PLAIN),
    "static_graph": Choice(replace(PLAIN, static_graph=True), PLAIN),
}


def step_of(make: Make, name: str, batch: int, *, ddp: bool) -> Step:
    """A function that does one step on the next of two random batches, and returns the loss.

    Args:
        name: of the model.
        batch: images of this rank.
        ddp: among other ranks.
    """
    torch.manual_seed(543)
    layout = torch.channels_last if make.channels_last else torch.contiguous_format
    net: nn.Module = model.build(name).to(memory_format=layout)
    rank = dist.get_rank() if ddp else 0
    generator = torch.Generator().manual_seed(rank)
    data = [
        (
            torch.randn(batch, 3, 32, 32, generator=generator).to(memory_format=layout),
            torch.randint(0, 10, (batch,), generator=generator),
        )
        for _ in range(2)
    ]
    criterion = nn.CrossEntropyLoss()
    taken = iter(range(10**9))
    if make.evaluate is not None:
        return _evaluation(net, data, criterion, taken, make.evaluate)
    if ddp:
        net = DistributedDataParallel(
            net, gradient_as_bucket_view=make.bucket_view, static_graph=make.static_graph
        )
    optimizer = torch.optim.SGD(
        net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, nesterov=True, fused=make.fused
    )
    forward = torch.compile(net) if make.compiled else net
    net.train()

    def step() -> Tensor:
        x, y = data[next(taken) % len(data)]
        with torch.autocast("cpu", torch.bfloat16, enabled=make.bf16):
            loss: Tensor = criterion(forward(x), y)
        optimizer.zero_grad(set_to_none=make.set_to_none)
        loss.backward()
        optimizer.step()
        if make.read_loss:
            loss.item()
        return loss.detach()

    return step


def _evaluation(net: nn.Module, data: Any, criterion: nn.Module, taken: Any, mode: str) -> Step:
    context = torch.inference_mode if mode == "inference_mode" else torch.no_grad
    net.eval()

    def step() -> Tensor:
        x, y = data[next(taken) % len(data)]
        with context():
            loss: Tensor = criterion(net(x), y)
        return loss

    return step


def measure(choice: Choice, given: argparse.Namespace) -> dict[str, Any]:
    """Blocks of both sides in turns.

    Returns:
        samples: for each side, for each block, the seconds of its steps. first_loss: of each side. first_s: seconds of the
        first step of each side, which holds the compiler's work.
    """
    steps: dict[str, Step] = {}
    found: dict[str, Any] = {"samples": {side: [] for side in SIDES}, "first_loss": {}, "first_s": {}}
    makes = {"with": choice.on, "without": choice.off}
    for side, make in makes.items():
        torch.set_num_threads(make.threads)
        steps[side] = step_of(make, given.model, given.batch_size, ddp=given.ddp)
        begin = time.perf_counter()
        found["first_loss"][side] = steps[side]().item()
        found["first_s"][side] = time.perf_counter() - begin
        steps[side]()
    for side in alternating(given.blocks, SIDES):
        torch.set_num_threads(makes[side].threads)
        steps[side]()  # what the other side left in the caches
        found["samples"][side].append([_timed(steps[side], given.ddp) for _ in range(given.steps)])
    return found


def _timed(step: Step, ddp: bool) -> float:
    """Seconds of one step; of ranks, of the slowest."""
    begin = time.perf_counter()
    step()
    seconds = time.perf_counter() - begin
    if ddp:
        slowest = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        seconds = slowest.item()
    return seconds


def main() -> None:
    """Measure every choice, and write each as soon as it is there."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--only", help="names, separated by commas")
    given = parser.parse_args()
    if given.ddp:
        dist.init_process_group("gloo")
    choices = DDP if given.ddp else ALONE
    for name, choice in choices.items():
        if given.only is not None and name not in given.only.split(","):
            continue
        found = measure(choice, given)
        if not given.ddp or dist.get_rank() == 0:
            with (given.output / "choices.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"name": name, **found}) + "\n")
            print(f"{name}: {_ratio(found['samples']):.3f}", flush=True)
    if given.ddp:
        dist.destroy_process_group()
        time.sleep(0.5)  # a thread of gloo lets go of its last tensor, before Python ends


def _ratio(samples: dict[str, list[list[float]]]) -> float:
    medians = [sorted(seconds for block in samples[side] for seconds in block) for side in SIDES]
    on, off = (values[len(values) // 2] for values in medians)
    return on / off


if __name__ == "__main__":
    main()
