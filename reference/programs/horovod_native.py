"""The training with Horovod, as Horovod's own documentation writes it.

NP=2 launchers/horovodrun.sh -m reference.programs.horovod_native
"""

from __future__ import annotations

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from reference.cifar10.data import Batch, as_it_is
from reference.programs.common import Options, Task, World, finish, fit, share_of, start


def main(options: Options) -> None:
    """Runs on every rank."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    device = torch.device("cpu")
    if hvd.nccl_built() and torch.cuda.is_available():
        device = torch.device("cuda", hvd.local_rank())
        torch.cuda.set_device(device)
    world = World(
        program="horovod_native",
        backend="horovod",
        rank=rank,
        size=size,
        device=device,
        all_reduce=lambda x: hvd.allreduce(x, op=hvd.Sum),
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
    model = task.model.to(device)
    optimizer = hvd.DistributedOptimizer(
        task.optimizer(model), named_parameters=model.named_parameters(), op=hvd.Average
    )
    # no broadcast_optimizer_state: a new optimizer has none, and Horovod 0.28 would take a step that decays the weights
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    found = fit(task, world, model, optimizer, train_loader)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    finish(task, world, model, test_loader, found)
    hvd.shutdown()


if __name__ == "__main__":
    start("horovod_native", main, backends=("horovod",), spawns=False)
