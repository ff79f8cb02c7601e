"""The training with this project's idist: the same lines on every backend and under every launcher.

NP=2 launchers/torchrun.sh -m reference.programs.idist --backend=gloo
NP=2 launchers/horovodrun.sh -m reference.programs.idist --backend=horovod
NP=2 launchers/spawn.sh -m reference.programs.idist --backend=xla-tpu
"""

from __future__ import annotations

from typing import Any

import reference.idist as idist
from reference.cifar10.config import BACKENDS
from reference.cifar10.data import as_it_is
from reference.programs.common import Options, Task, World, finish, fit, start
from reference.programs.common.options import TIMEOUT


def train(local_rank: int, options: Options) -> None:
    """Runs on every rank."""
    task = Task(options, idist.get_world_size())
    world = World(
        program="idist",
        backend=idist.backend() or "none",
        rank=idist.get_rank(),
        size=idist.get_world_size(),
        device=idist.device(),
        all_reduce=idist.all_reduce,
    )
    train_loader = idist.auto_dataloader(
        task.train, batch_size=options.batch_size, drop_last=True, collate_fn=as_it_is
    )
    test_loader = idist.auto_dataloader(task.test, batch_size=options.batch_size, collate_fn=as_it_is)
    model = idist.auto_model(task.model)
    optimizer = idist.auto_optim(task.optimizer(model))
    found = fit(task, world, model, optimizer, train_loader)
    idist.sync_buffers(model)
    finish(task, world, model, test_loader, found)


def main(options: Options) -> None:
    """Start processes or join those of a launcher."""
    limits: dict[str, Any] = {} if options.backend is None else {"timeout": TIMEOUT}
    with idist.Parallel(options.backend, **options.layout, **limits) as parallel:
        parallel.run(train, options)


if __name__ == "__main__":
    start("idist", main, backends=(None, *BACKENDS), spawns=True)
