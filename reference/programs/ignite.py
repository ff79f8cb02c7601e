"""The training with pytorch-ignite's distributed module, which `reference.idist` has its names from. Development only.

docker/with.sh gloo peer -- env NP=2 launchers/torchrun.sh -m reference.programs.ignite --backend=gloo
"""

from __future__ import annotations

import ignite.distributed as idist
import torch
from torch.utils.data import DataLoader

from reference.cifar10.data import as_it_is
from reference.programs.common import Options, Task, World, finish, fit, share_of, start


def train(local_rank: int, options: Options) -> None:
    """Runs on every rank."""
    rank, size = idist.get_rank(), idist.get_world_size()
    world = World(
        program="ignite",
        backend=idist.backend() or "none",
        rank=rank,
        size=size,
        device=idist.device(),
        all_reduce=idist.all_reduce,
    )
    task = Task(options, size)
    train_loader = idist.auto_dataloader(
        task.train, batch_size=options.batch_size, shuffle=False, drop_last=True, collate_fn=as_it_is
    )
    test_loader = DataLoader(share_of(task.test, rank, size), batch_size=task.batch_size, collate_fn=as_it_is)
    model = idist.auto_model(task.model)
    optimizer = idist.auto_optim(task.optimizer(model))
    found = fit(task, world, model, optimizer, train_loader)
    for buffer in model.buffers():
        buffer.copy_(torch.as_tensor(idist.broadcast(buffer, src=0)))
    finish(task, world, model, test_loader, found)


def main(options: Options) -> None:
    """Start processes or join those of a launcher."""
    with idist.Parallel(options.backend, **options.layout) as parallel:
        parallel.run(train, options)


if __name__ == "__main__":
    start("ignite", main, backends=(None, "gloo", "nccl", "horovod"), spawns=True)
