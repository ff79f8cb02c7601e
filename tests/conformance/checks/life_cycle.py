"""initialize, finalize, sync, Parallel: joining and leaving. The last checks of a world: they leave it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

import torch
import torch.distributed as dist

import reference.idist as idist
from tests.conformance.listen import refusal
from tests.conformance.registry import check
from tests.conformance.world import World


@check("initialize", "initialize(backend) again is no error; another backend is", outcome="ValueError")
def check_initialize_twice(world: World) -> None:
    if world.backend is None:
        text = refusal(ValueError, lambda: idist.initialize("smoke"))
        assert text == "backend='smoke' is unknown: use one of gloo, nccl, mpi, horovod, xla-tpu or None"
        return
    idist.initialize(world.backend)
    assert idist.get_world_size() == world.size
    other = "horovod" if world.backend == "gloo" else "gloo"
    text = refusal(ValueError, lambda: idist.initialize(other))
    assert text == f"initialize({other!r}): {world.backend} is in use already: call finalize() first"


@check("initialize", "initialize with an unknown argument or a wrong timeout", outcome="ValueError")
def check_initialize_refuses(world: World) -> None:
    name = world.backend or "gloo"
    text = refusal(ValueError, lambda: idist.initialize(name, colour="red"))
    assert text.startswith(f"colour='red' is not an argument of backend {name!r}: use device, "), text
    for wrong in (-1, "5", True):
        text = refusal(ValueError, lambda timeout=wrong: idist.initialize(name, timeout=timeout))
        assert text == f"timeout={wrong!r}: give seconds above 0"


@check("finalize", "finalize() leaves a single process", last=True)
def check_finalize(world: World) -> None:
    idist.finalize()
    _assert_alone()
    idist.finalize()  # again: nothing to do
    _assert_alone()


@check("initialize", "initialize after finalize", last=True)
def check_reinitialize(world: World) -> None:
    idist.finalize()
    _join(world)
    assert (idist.backend(), idist.get_rank(), idist.get_world_size()) == (
        world.backend,
        world.rank,
        world.size,
    )
    assert idist.get_nproc_per_node() == world.size and idist.get_nnodes() == 1
    assert idist.all_reduce(world.rank + 1) == sum(rank + 1 for rank in world.ranks)
    idist.finalize()
    _assert_alone()


@check("initialize", "a world made with the library's own calls is adopted", last=True)
def check_adopt(world: World) -> None:
    """Horovod without a launcher makes each process a world of its own."""
    idist.finalize()
    leave = _join_without_idist(world)
    rank, size = (0, 1) if world.backend == "horovod" else (world.rank, world.size)
    assert (idist.backend(), idist.get_rank(), idist.get_world_size()) == (world.backend, rank, size)
    gathered = idist.all_gather(torch.tensor([rank]))
    assert gathered.tolist() == list(range(size))
    idist.sync()
    assert idist.all_reduce(1) == size
    leave()
    _assert_alone()


def _assert_alone() -> None:
    assert (idist.backend(), idist.model_name()) == (None, "serial")
    assert (idist.get_rank(), idist.get_local_rank(), idist.get_world_size()) == (0, 0, 1)
    assert idist.all_reduce(3) == 3
    assert idist.all_gather("x") == ["x"]
    idist.barrier()


def _join(world: World) -> None:
    assert world.backend is not None
    if world.backend in ("gloo", "nccl"):
        where = f"file://{world.scratch.resolve()}/meeting"
        idist.initialize(world.backend, init_method=where, rank=world.rank, world_size=world.size)
        return
    launched = {"RANK": world.rank, "LOCAL_RANK": world.rank, "WORLD_SIZE": world.size}
    launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": world.exchange("port", free_port())[0]}
    launched |= {"LOCAL_WORLD_SIZE": world.size, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    os.environ.update({name: str(value) for name, value in launched.items()})
    try:
        idist.initialize(world.backend)
    finally:
        for name in launched:
            del os.environ[name]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _join_without_idist(world: World) -> Callable[[], None]:
    """Make the world as a user without idist does; returns the call that ends it."""
    if world.backend == "horovod":
        import horovod.torch as hvd

        hvd.init()
        return hvd.shutdown
    where = f"file://{world.scratch.resolve()}/meeting"
    dist.init_process_group(world.backend, init_method=where, rank=world.rank, world_size=world.size)
    return dist.destroy_process_group
