"""auto_model, auto_optim, auto_dataloader: the same three calls on every backend."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, IterableDataset

from reference.idist.batchnorm import convert_batchnorm
from reference.idist.collectives import broadcast
from reference.idist.context import current
from reference.idist.log import info
from reference.idist.samplers import DistributedProxySampler, EpochSampler, deals_out


def auto_model(model: nn.Module, sync_bn: bool = False, **kwargs: Any) -> nn.Module:
    """Move a model to this rank's device and make replicas of it that train together.

    gloo, nccl, mpi: DistributedDataParallel, to which ``kwargs`` go. Horovod and XLA: parameters and buffers of rank 0 on
    all ranks (gradients are `auto_optim`'s part). One process: just the device.

    Args:
        sync_bn: batch normalisation over the global batch, on every backend and device.

    Raises:
        ValueError: a keyword that the backend has no use for.
    """
    backend = current()
    model.to(backend.device)
    if sync_bn:  # with one rank too, so that the layer is the same one in every world
        model = convert_batchnorm(model, backend)
    return backend.wrap_model(model, **kwargs)


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside what `auto_model` returned."""
    return model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model


def sync_buffers(model: nn.Module) -> None:
    """Give every rank the buffers of rank 0 (running statistics of batch normalisation), before they evaluate together."""
    if current().world_size > 1:
        buffers = [b for b in unwrap(model).buffers() if b.numel()]
        for dtype in dict.fromkeys(b.dtype for b in buffers):  # one message a dtype
            same = [b for b in buffers if b.dtype == dtype]
            flat = broadcast(torch.cat([b.detach().reshape(-1) for b in same]))
            for buffer, value in zip(same, flat.split([b.numel() for b in same]), strict=True):
                buffer.copy_(value.view_as(buffer))


def auto_optim(optimizer: Optimizer, **kwargs: Any) -> Optimizer:
    """Make an optimizer average gradients over all ranks, where the backend leaves that to the optimizer.

    gloo, nccl, mpi and one process: the same object. Horovod: its DistributedOptimizer, to which ``kwargs`` go. XLA: a thin
    wrapper.
    """
    return current().wrap_optimizer(optimizer, **kwargs)


def auto_dataloader(dataset: Dataset, *, seed: int = 0, **kwargs: Any) -> DataLoader:
    """A DataLoader that gives every rank its share of each global batch.

    Args:
        dataset: map-style: dealt out by rank. Iterable: left alone, it has to deal itself out.
        seed: of the order of samples, which depends on seed and epoch (``loader.sampler.set_epoch``) only.
        kwargs: of DataLoader. ``batch_size`` is the global one and must divide by the world size; ``num_workers`` is
            that of a node, divided over its processes; ``pin_memory`` follows the device; ``shuffle`` is False if not
            given. Without shuffle each sample comes exactly once, so ranks may differ by a sample or a batch; with
            shuffle every rank takes the same number of steps. A ``sampler`` is wrapped so that it is dealt out, a
            ``batch_sampler`` is left alone.

    Raises:
        ValueError: the batch size does not divide; names the nearest that do.
    """
    backend = current()
    world_size = backend.world_size
    kwargs["num_workers"] = -(-kwargs.get("num_workers", 0) // backend.nproc_per_node)
    kwargs.setdefault("pin_memory", backend.device.type == "cuda")
    if kwargs.get("batch_sampler") is not None:
        if world_size > 1:
            info("auto_dataloader: batch_sampler is left alone; it has to give each rank its own batches")
        return backend.wrap_loader(DataLoader(dataset, **kwargs))
    batch_size = kwargs.get("batch_size", 1)
    if batch_size is not None:
        kwargs["batch_size"] = local_batch_size(batch_size, world_size)
    if isinstance(dataset, IterableDataset):
        if world_size > 1:
            info(
                "auto_dataloader: an IterableDataset is left alone; it has to give each rank its own samples"
            )
        return backend.wrap_loader(DataLoader(dataset, **kwargs))
    shuffle, drop_last = bool(kwargs.pop("shuffle", False)), kwargs.get("drop_last", False)
    multiple_of = batch_size if drop_last and batch_size else 1
    sampler = kwargs.pop("sampler", None)
    if sampler is None:
        sampler = EpochSampler(
            len(dataset),  # type: ignore[arg-type]
            shuffle=shuffle,
            seed=seed,
            multiple_of=multiple_of,
            padding="last_step" if shuffle else "none",
            batch_size=batch_size or 1,
        )
    elif shuffle:
        raise ValueError("shuffle=True and sampler both decide the order: give one of them")
    elif not deals_out(sampler):
        sampler = DistributedProxySampler(sampler, seed=seed, multiple_of=multiple_of)
    return backend.wrap_loader(DataLoader(dataset, sampler=sampler, **kwargs))


def local_batch_size(batch_size: int, world_size: int) -> int:
    """Each rank's part of a global batch. ValueError, with the nearest sizes that divide, if it does not."""
    if type(batch_size) is not int or batch_size < 1:
        raise ValueError(f"batch_size={batch_size!r}: give a whole number of 1 or more")
    if batch_size % world_size:
        below, above = batch_size // world_size * world_size, -(-batch_size // world_size) * world_size
        nearest = f"{below} or {above}" if below else f"{above}"
        raise ValueError(
            f"batch_size={batch_size} is the global one and does not divide by {world_size} ranks: use {nearest}"
        )
    return batch_size // world_size
