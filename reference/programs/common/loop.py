"""The training loop, the evaluation, and what is measured of both.

The loss of each step is read on the host, which waits for the device: a step's time is all of its work, in every program
alike. Ranks are only asked for what they measured once everything is over, so measuring sends nothing in between.
"""

from __future__ import annotations

import hashlib
import json
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from reference.cifar10.data import Batch, evaluation_batch, training_batch
from reference.idist import progress
from reference.programs.common.result import write_result
from reference.programs.common.task import Task
from reference.programs.common.world import World

_EVERY = 1.0  # seconds between two progress reports


@dataclass(kw_only=True)
class Measurement:
    """What one rank measured of its training."""

    step_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of this rank's part of each batch
    train_s: float = 0.0  # in the loop, without what is between epochs
    cpu_s: float = 0.0  # of this process, in the same time


def fit(
    task: Task,
    world: World,
    model: nn.Module,
    optimizer: Optimizer,
    loader: Iterable[Batch],
    step: Callable[[], Any] | None = None,
) -> Measurement:
    """Train for all epochs.

    Args:
        model, optimizer: as the distribution library wrapped them.
        loader: this rank's batches, on any device.
        step: averages the gradients, as far as ``backward`` did not, and updates; default: ``optimizer.step``.
    """
    schedule = task.schedule(optimizer)
    step = step or optimizer.step  # the schedule has replaced it by one that counts
    epoch = 1
    prepare = training_batch(task.options.seed, task.images.flip, epoch=lambda: epoch)
    found = Measurement()
    log = _Log(task, world)
    model.train()
    for epoch in range(1, task.options.num_epochs + 1):
        task.train.set_epoch(epoch)
        begin, cpu = time.perf_counter(), time.process_time()
        mark = begin
        for batch in loader:
            x, y = prepare(batch, world.device, non_blocking=True)
            optimizer.zero_grad()
            loss = task.criterion(model(x), y)
            loss.backward()
            step()
            schedule.step()
            found.losses.append(loss.item())
            now = time.perf_counter()
            found.step_s.append(now - mark)
            mark = now
            log.step(epoch, found)
        found.train_s += mark - begin
        found.cpu_s += time.process_time() - cpu
    if len(found.losses) != task.steps:
        raise RuntimeError(f"rank {world.rank} took {len(found.losses)} steps instead of {task.steps}")
    return found


def finish(task: Task, world: World, model: nn.Module, loader: Iterable[Batch], found: Measurement) -> None:
    """Evaluate, collect what all ranks measured, write result.json on rank 0. The ranks' buffers have to be the same.

    Args:
        model: wrapped or not.
        loader: this rank's test images.
        found: what `fit` returned.

    Raises:
        RuntimeError: an image was counted twice or not at all.
    """
    net = getattr(
        model, "module", model
    )  # DistributedDataParallel would wait for ranks that have no batch left
    begin = time.perf_counter()
    correct, counted = _evaluate(net, loader, world.device)
    evaluation_s = time.perf_counter() - begin
    peak, device_peak = peak_memory(world.device)
    facts = [correct, counted, evaluation_s, found.train_s, found.cpu_s, torch.get_num_threads()]
    row = [*facts, peak / 1024, device_peak / 1024, *_digest(net)]
    rows = world.table([*row, *found.step_s, *found.losses])
    n_evaluated = round(sum(row[1] for row in rows))
    if n_evaluated != len(task.test):
        raise RuntimeError(f"the evaluation counted {n_evaluated:,} images of {len(task.test):,}")
    if world.rank == 0:
        write_result(task, world, net, rows, head=len(row))


def _evaluate(net: nn.Module, loader: Iterable[Batch], device: torch.device) -> tuple[float, float]:
    """Images told right, and images seen, of this rank."""
    net.eval()
    correct = counted = 0
    with torch.no_grad():
        for batch in loader:
            x, y = evaluation_batch(batch, device, non_blocking=True)
            correct += int((net(x).argmax(dim=1) == y).sum())
            counted += len(y)
    return float(correct), float(counted)


def _digest(net: nn.Module) -> tuple[float, float]:
    """48 bits that stand for the parameters, in two numbers that float32 holds exactly."""
    parameters: list[Tensor] = [p.detach().cpu().contiguous() for p in net.parameters()]
    digest = hashlib.sha256(b"".join(p.numpy().tobytes() for p in parameters)).digest()
    return float(int.from_bytes(digest[:3], "big")), float(int.from_bytes(digest[3:6], "big"))


def peak_memory(device: torch.device) -> tuple[int, int]:
    """Bytes: the largest resident size of this process, and what torch held at most on its GPU (0 elsewhere)."""
    on_gpu = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    try:
        # not getrusage: its number goes on from the process that started this one
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, on_gpu
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), on_gpu


class _Log:
    """events.jsonl, and reports to the supervisor: the first step, and then about one line a second, of rank 0."""

    def __init__(self, task: Task, world: World) -> None:
        self._task = task
        self._rank = world.rank
        self._last = time.perf_counter()
        self._file = Path(task.options.output_path) / "events.jsonl"
        if self._rank == 0:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.unlink(missing_ok=True)

    def step(self, epoch: int, found: Measurement) -> None:
        """A step has ended."""
        number = len(found.losses)
        if number == 1:
            progress.report("first_step", rank=self._rank)
        now = time.perf_counter()
        if self._rank == 0 and (number in (1, self._task.steps) or now - self._last >= _EVERY):
            self._last = now
            speed = self._task.options.batch_size / found.step_s[-1]
            place = {"iteration": number, "epoch": epoch, "total": self._task.steps}
            progress.report("progress", rank=self._rank, **place, images_per_s=speed)
            line = {**place, "loss": found.losses[-1], "step_s": found.step_s[-1]}
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            print(
                f"epoch {epoch}, step {number} of {self._task.steps}: loss {found.losses[-1]:.4f}, {speed:.0f} images/s",
                flush=True,
            )
