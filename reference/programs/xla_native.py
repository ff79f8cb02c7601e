"""The training with torch_xla, as its own documentation writes it.

    NP=2 launchers/spawn.sh -m reference.programs.xla_native

Without a TPU the CPU simulates the devices (`simulate`); nothing else here knows of that.
"""

from __future__ import annotations

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from reference.cifar10.data import Batch, as_it_is
from reference.programs.common import Options, Task, World, finish, fit, share_of, start
from reference.programs.common.options import TIMEOUT


def train(index: int, options: Options) -> None:
    """Runs on every replica."""
    device = torch_xla.device()
    rank, size = xr.global_ordinal(), xr.world_size()
    world = World(
        program="xla_native",
        backend="xla-tpu",
        rank=rank,
        size=size,
        device=device,
        all_reduce=lambda x: xm.all_reduce(xm.REDUCE_SUM, x),
    )
    task = Task(options, size)

    sampler: DistributedSampler[Batch] = DistributedSampler(
        task.train, num_replicas=size, rank=rank, shuffle=False, drop_last=True
    )
    train_loader = DataLoader(
        task.train, batch_size=task.batch_size, sampler=sampler, drop_last=True, collate_fn=as_it_is
    )
    test_loader = DataLoader(share_of(task.test, rank, size), batch_size=task.batch_size, collate_fn=as_it_is)
    model = task.model.to(device)
    xm.broadcast_master_param(model)
    optimizer = task.optimizer(model)
    found = fit(
        task,
        world,
        model,
        optimizer,
        pl.MpDeviceLoader(train_loader, device),
        step=lambda: xm.optimizer_step(optimizer, barrier=True),
    )
    xm.broadcast_master_param(model)
    finish(task, world, model, pl.MpDeviceLoader(test_loader, device), found)


def simulate(replicas: int) -> str:
    """Without a TPU: replicas as threads of one process on the CPU. The start method that `torch_xla.launch` needs then."""
    from reference.idist.backends import xla_cpu

    xla_cpu.install(replicas, TIMEOUT)
    return "fork"  # the new process has to inherit the simulation


def main(options: Options) -> None:
    """Start the replicas."""
    single = options.nproc_per_node in (None, 1)
    start_method = "spawn"
    if not single and xr.device_type() == "CPU":
        start_method = simulate(options.nproc_per_node or 1)
    torch_xla.launch(train, args=(options,), start_method=start_method, debug_single_process=single)


if __name__ == "__main__":
    start("xla_native", main, backends=("xla-tpu",), spawns=True)
