"""idist: one distributed API for gloo, nccl, mpi, Horovod and XLA.

    import reference.idist as idist

    def training(local_rank, config):
        model = idist.auto_model(Net())
        ...

    with idist.Parallel(backend="gloo", nproc_per_node=2) as parallel:
        parallel.run(training, config)

Importing this module imports torch, and neither Horovod nor torch_xla.
"""

from __future__ import annotations

import socket
from typing import Any

import torch

from reference.idist.auto import auto_dataloader, auto_model, auto_optim, sync_buffers, unwrap
from reference.idist.backends import MODEL_NAMES, backend_class
from reference.idist.backends.base import CollectiveError
from reference.idist.batchnorm import CrossReplicaBatchNorm
from reference.idist.collectives import (
    all_gather,
    all_gather_tensors_with_shapes,
    all_reduce,
    barrier,
    broadcast,
    new_group,
    one_rank_first,
    one_rank_only,
)
from reference.idist.context import available_backends, current, finalize, initialize, sync
from reference.idist.launcher import Parallel, spawn
from reference.idist.log import info
from reference.idist.processes import ProcessFailed
from reference.idist.samplers import DistributedProxySampler, EpochSampler

__all__ = [
    "CollectiveError",
    "CrossReplicaBatchNorm",
    "DistributedProxySampler",
    "EpochSampler",
    "Parallel",
    "ProcessFailed",
    "all_gather",
    "all_gather_tensors_with_shapes",
    "all_reduce",
    "auto_dataloader",
    "auto_model",
    "auto_optim",
    "available_backends",
    "backend",
    "barrier",
    "broadcast",
    "device",
    "finalize",
    "get_local_rank",
    "get_nnodes",
    "get_node_rank",
    "get_nproc_per_node",
    "get_rank",
    "get_world_size",
    "hostname",
    "initialize",
    "model_name",
    "new_group",
    "one_rank_first",
    "one_rank_only",
    "set_local_rank",
    "show_config",
    "spawn",
    "sync",
    "sync_buffers",
    "unwrap",
]


def backend() -> str | None:
    """Name of the backend in use, None in a single process."""
    active = current()
    return None if active.model_name == "serial" else active.name


def model_name() -> str:
    """ "serial", "native-dist", "horovod-dist" or "xla-dist"."""
    return current().model_name


def device() -> torch.device:
    """The device that this rank trains on."""
    return current().device


def get_rank() -> int:
    """Rank of this process (replica) among all."""
    return current().rank


def get_local_rank() -> int:
    """Rank of this process among those of its node."""
    return current().local_rank


def get_world_size() -> int:
    """Number of processes (replicas) on all nodes."""
    return current().world_size


def get_nproc_per_node() -> int:
    """Number of processes on this node; other nodes may have other numbers."""
    return current().nproc_per_node


def get_nnodes() -> int:
    """Number of nodes."""
    return current().nnodes


def get_node_rank() -> int:
    """Rank of this node among the nodes."""
    return current().node_rank


def hostname() -> str:
    """This machine's own name."""
    return socket.gethostname()


def set_local_rank(index: int) -> None:
    """For a world that the user made without a launcher: which process of its node this is (from 0)."""
    if type(index) is not int or index < 0:
        raise ValueError(f"index={index!r}: give a whole number of 0 or more")
    current().set_local_rank(index)


def show_config() -> None:
    """Log the distributed setting, on rank 0."""
    if get_rank() == 0:
        layout = f"world size {get_world_size()}, {get_nnodes()} nodes, {get_nproc_per_node()} processes on this one"
        info(f"model {model_name()}, backend {backend()}, device {device()}, {layout}, host {hostname()}")


def __getattr__(name: str) -> Any:
    """Flags that are worked out when they are read, so that importing idist probes nothing."""
    flags = {"has_native_dist_support": "gloo", "has_hvd_support": "horovod", "has_xla_support": "xla-tpu"}
    if name in flags:
        return backend_class(flags[name]).missing(flags[name]) is None
    if name == "registered_computation_models":
        return MODEL_NAMES
    raise AttributeError(f"module 'reference.idist' has no attribute {name!r}")
