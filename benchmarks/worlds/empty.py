"""As little as a program of several processes has to do before it can train: import torch, meet the others, end.

NP=2 launchers/torchrun.sh -m benchmarks.worlds.empty --backend=gloo
NP=2 launchers/spawn.sh -m benchmarks.worlds.empty --backend=gloo

It tells the supervisor when the ranks have met; nothing of this project is imported before that.
"""

from __future__ import annotations

import argparse
import os
import socket
import time


def main() -> None:
    """Meet the other ranks, or start them where the launcher did not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worlds.empty", allow_abbrev=False)
    parser.add_argument("--backend", choices=("none", "gloo", "nccl", "horovod"), default="none")
    parser.add_argument("--nproc_per_node", type=int, help="start this many (launchers/spawn.sh)")
    given = parser.parse_args()
    if given.nproc_per_node is None:
        meet(given.backend)
        return
    import torch

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(_spawned, (given.backend, given.nproc_per_node, port), given.nproc_per_node)


def _spawned(rank: int, backend: str, world_size: int, port: int) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(world_size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    meet(backend)


def meet(backend: str) -> None:
    """Join the world as the library's own documentation says, tell when that was, and leave it."""
    rank, world_size = 0, 1
    if backend == "horovod":
        import horovod.torch as hvd

        hvd.init()
        rank, world_size, leave = hvd.rank(), hvd.size(), hvd.shutdown
    elif backend == "none":
        import torch

        torch.zeros(1)
        leave = _nothing
    else:
        import torch.distributed as dist

        for ours, theirs in (("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")):
            if theirs in os.environ:
                os.environ.setdefault(ours, os.environ[theirs])
        dist.init_process_group(backend)
        rank, world_size, leave = dist.get_rank(), dist.get_world_size(), dist.destroy_process_group
    met = time.time()
    from reference.idist import progress

    progress.report("rendezvous", time=met, rank=rank, world_size=world_size)
    leave()


def _nothing() -> None:
    pass


if __name__ == "__main__":
    main()
