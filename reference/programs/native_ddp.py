"""The training with torch.distributed and DistributedDataParallel, as PyTorch's own documentation writes it.

NP=2 launchers/torchrun.sh -m reference.programs.native_ddp --backend=gloo
NP=2 launchers/torch_distributed_launch.sh -m reference.programs.native_ddp --backend=gloo
NP=2 launchers/spawn.sh -m reference.programs.native_ddp --backend=gloo
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from reference.cifar10.data import Batch, as_it_is
from reference.programs.common import Options, Task, World, finish, fit, share_of, start
from reference.programs.common.options import TIMEOUT


def total(x: Tensor) -> Tensor:
    """The sum over all ranks."""
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    return x


def train(options: Options) -> None:
    """Runs on every rank, with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment."""
    device = torch.device("cpu")
    if options.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group(options.backend, timeout=timedelta(seconds=TIMEOUT))
    rank, size = dist.get_rank(), dist.get_world_size()
    backend = str(options.backend)
    world = World(
        program="native_ddp", backend=backend, rank=rank, size=size, device=device, all_reduce=total
    )
    task = Task(options, size)

    sampler: DistributedSampler[Batch] = DistributedSampler(
        task.train, num_replicas=size, rank=rank, shuffle=False, drop_last=True
    )
    train_loader = DataLoader(
        task.train,
        batch_size=task.batch_size,
        sampler=sampler,
        drop_last=True,
        collate_fn=as_it_is,
        pin_memory=device.type == "cuda",
    )
    test_loader = DataLoader(share_of(task.test, rank, size), batch_size=task.batch_size, collate_fn=as_it_is)
    model = DistributedDataParallel(
        task.model.to(device), device_ids=[device.index] if device.type == "cuda" else None
    )
    optimizer = task.optimizer(model)
    found = fit(task, world, model, optimizer, train_loader)
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    finish(task, world, model, test_loader, found)
    dist.destroy_process_group()


def spawned(local_rank: int, options: Options) -> None:
    """What torchrun does for a process that it starts, for one that `main` starts."""
    nproc, node_rank = options.nproc_per_node or 1, options.node_rank or 0
    os.environ.update(
        RANK=str(node_rank * nproc + local_rank),
        LOCAL_RANK=str(local_rank),
        WORLD_SIZE=str(nproc * (options.nnodes or 1)),
    )
    train(options)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(options: Options) -> None:
    """Start processes, or be one of those that a launcher started."""
    if options.nproc_per_node is None:
        train(options)
        return
    os.environ["MASTER_ADDR"] = options.master_addr or "127.0.0.1"
    os.environ["MASTER_PORT"] = str(options.master_port or free_port())
    mp.spawn(spawned, args=(options,), nprocs=options.nproc_per_node)


if __name__ == "__main__":
    start("native_ddp", main, backends=("gloo", "nccl"), spawns=True)
