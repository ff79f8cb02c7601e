"""CIFAR-10 with PyTorch, DistributedDataParallel and torchvision alone: what one writes without any framework.

NP=2 launchers/torchrun.sh -m benchmarks.peers.plain_torch --backend=gloo --dataset=images --data_path=data
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

from benchmarks.peers.shared import Settings, meter, pictures, settings, settle, write
from reference.cifar10 import model


def factor(step: int, warm: int, end: int) -> float:
    """What the learning rate is multiplied by in step `step` (from 0): up to 1 in `warm` steps, down to 0 at `end`."""
    return step / warm if step < warm else (end - step) / max(1, end - warm)


def train(given: Settings, rank: int, size: int, device: torch.device) -> None:
    """Runs on every rank."""
    random.seed(given.seed + rank)
    np.random.seed(given.seed + rank)
    torch.manual_seed(given.seed + rank)
    images, test = pictures(given)
    sampler: DistributedSampler[Any] = DistributedSampler(images, size, rank, shuffle=True, seed=given.seed)
    options: dict[str, Any] = {"num_workers": given.num_workers // size, "pin_memory": device.type == "cuda"}
    loader = DataLoader(
        images, batch_size=given.batch_size // size, sampler=sampler, drop_last=True, **options
    )
    test_loader = DataLoader(
        Subset(test, range(rank, len(test), size)), batch_size=2 * given.batch_size // size, **options
    )
    net: nn.Module = model.build(given.model).to(device)
    wrapped = (
        DistributedDataParallel(net, [device.index] if device.type == "cuda" else None) if size > 1 else net
    )
    optimizer = torch.optim.SGD(
        net.parameters(),
        lr=given.learning_rate,
        momentum=given.momentum,
        weight_decay=given.weight_decay,
        nesterov=True,
    )
    warm, end = (len(loader) * epochs for epochs in (given.num_warmup_epochs, given.num_epochs))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step, warm, end))
    criterion = nn.CrossEntropyLoss()

    clock = meter(given, size, len(loader))
    for epoch in range(given.num_epochs):
        sampler.set_epoch(epoch)
        wrapped.train()
        clock.start()
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = criterion(wrapped(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            clock.update(len(y))
        clock.stop()
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}", flush=True)

    if size > 1:
        for buffer in net.buffers():
            dist.broadcast(buffer, src=0)
    begin = time.perf_counter()
    correct, total_loss, counted = evaluate(net, test_loader, criterion, device, size).tolist()
    seconds = time.perf_counter() - begin
    if rank == 0:
        os.makedirs(given.output_path, exist_ok=True)
        torch.save(
            {"model": net.state_dict(), "optimizer": optimizer.state_dict()}, f"{given.output_path}/last.pt"
        )
    write(
        given,
        clock.summary(),
        rank,
        accuracy=correct / counted,
        loss=total_loss / counted,
        n_evaluated=round(counted),
        evaluation_s=seconds,
        evaluation_train_s=None,
    )


def evaluate(
    net: nn.Module, loader: DataLoader[Any], criterion: nn.Module, device: torch.device, size: int
) -> Tensor:
    """[3]: images told right, summed loss, images; over all ranks."""
    net.eval()
    found = torch.zeros(3, dtype=torch.float64, device=device)
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            output = net(x)
            found[0] += (output.argmax(dim=1) == y).sum()
            found[1] += criterion(output, y) * len(y)
            found[2] += len(y)
    if size > 1:
        dist.all_reduce(found)
    return found


def main() -> None:
    """Join the processes that a launcher started, or train in this one alone."""
    given = settings()
    if given.backend is None:
        train(given, 0, 1, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        return
    device = torch.device("cpu")
    if given.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(given.backend)
    train(given, dist.get_rank(), dist.get_world_size(), device)
    dist.destroy_process_group()
    settle()


if __name__ == "__main__":
    main()
