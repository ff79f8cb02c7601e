"""auto_dataloader and DistributedProxySampler: which rank gets which sample, when."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import reference.idist as idist
from tests.conformance.listen import logged, refusal
from tests.conformance.registry import check
from tests.conformance.world import World


class Numbers(Dataset):
    """Sample i is the number i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(8))


# The orders of 10 samples with seed 7. They are written down, so that they are the same on every backend, at every world
# size and in every version.
_ORDERS = {0: [3, 6, 0, 5, 1, 8, 4, 9, 2, 7], 1: [2, 7, 8, 5, 3, 4, 9, 6, 0, 1]}


def steps(loader: Any) -> list[list[int]]:
    """The samples of each batch of this rank."""
    return [batch.cpu().tolist() for batch in loader]


def global_steps(world: World, loader: Any, label: str) -> list[list[int]]:
    """The samples of each step on all ranks, dealt together again in the global order."""
    ranks = world.exchange(label, steps(loader))
    return [_interleave([each[k] for each in ranks if k < len(each)]) for k in range(max(map(len, ranks)))]


def _interleave(parts: list[list[int]]) -> list[int]:
    longest = max(map(len, parts))
    return [part[i] for i in range(longest) for part in parts if i < len(part)]


@check("auto_dataloader", "auto_dataloader: batch_size is the global one, and the order is the data set's")
def check_global_batch(world: World) -> None:
    loader = idist.auto_dataloader(Numbers(20), batch_size=8)
    assert len(loader) == 3
    for batch in list(loader)[:2]:
        assert batch.shape == (8 // world.size,)
    found = global_steps(world, loader, "steps")
    assert found == [list(range(8)), list(range(8, 16)), list(range(16, 20))]


@check(
    "auto_dataloader",
    "auto_dataloader(shuffle=True): the order depends on seed and epoch, not on the world size",
)
def check_shuffled_order(world: World) -> None:
    loader = idist.auto_dataloader(Numbers(10), batch_size=4, shuffle=True, seed=7, drop_last=True)
    for epoch, order in _ORDERS.items():
        loader.sampler.set_epoch(epoch)
        assert global_steps(world, loader, f"epoch {epoch}") == [order[:4], order[4:8]]


@check(
    "auto_dataloader",
    "auto_dataloader(shuffle=True): all ranks take the same number of steps",
    length=(1, 9, 13, 17),
)
def check_shuffled_steps(world: World, length: int) -> None:
    found = world.exchange("steps", steps(idist.auto_dataloader(Numbers(length), batch_size=8, shuffle=True)))
    assert {len(each) for each in found} == {-(-length // 8)}
    seen = [sample for each in found for batch in each for sample in batch]
    assert set(seen) == set(range(length))
    assert len(seen) - length < world.size  # hardly any twice


@check(
    "auto_dataloader", "auto_dataloader without shuffle: each sample exactly once", length=(0, 1, 3, 13, 16)
)
def check_exact_evaluation(world: World, length: int) -> None:
    found = world.exchange("seen", steps(idist.auto_dataloader(Numbers(length), batch_size=4)))
    assert sorted(sample for each in found for batch in each for sample in batch) == list(range(length))


@check("auto_dataloader", "auto_dataloader(drop_last=True) drops what is less than a global batch")
def check_drop_last(world: World) -> None:
    loader = idist.auto_dataloader(Numbers(23), batch_size=4, drop_last=True)
    assert global_steps(world, loader, "steps") == [list(range(k, k + 4)) for k in range(0, 20, 4)]


@check("auto_dataloader", "auto_dataloader with a batch size that does not divide", outcome="ValueError")
def check_batch_size_divides(world: World) -> None:
    for wrong in (0, -4, 2.0, "8", True):
        text = refusal(ValueError, lambda size=wrong: idist.auto_dataloader(Numbers(9), batch_size=size))
        assert text == f"batch_size={wrong!r}: give a whole number of 1 or more"
    if world.size > 1:
        for size in (1, world.size + 1, 3 * world.size - 1):
            below = size // world.size * world.size
            nearest = f"{below} or {below + world.size}" if below else f"{world.size}"
            text = refusal(ValueError, lambda size=size: idist.auto_dataloader(Numbers(9), batch_size=size))
            assert text == (
                f"batch_size={size} is the global one and does not divide by {world.size} ranks: use {nearest}"
            )


@check(
    "auto_dataloader", "auto_dataloader: the node's num_workers are divided, pin_memory follows the device"
)
def check_loader_options(world: World) -> None:
    for workers in (0, 1, 4, 7):
        loader = inner(idist.auto_dataloader(Numbers(8), batch_size=4, num_workers=workers))
        assert loader.num_workers == -(-workers // world.size)
        assert loader.pin_memory == (idist.device().type == "cuda")
    assert inner(idist.auto_dataloader(Numbers(8), batch_size=4, pin_memory=False)).pin_memory is False


@check(
    "auto_dataloader",
    "auto_dataloader(sampler=...): dealt out once, {kind}",
    kind=("plain", "proxy", "DistributedSampler"),
)
def check_sampler_is_wrapped_once(world: World, kind: str) -> None:
    data = Numbers(8)
    sampler: Any = SequentialSampler(data)
    if kind == "proxy":
        sampler = idist.DistributedProxySampler(sampler)
    if kind == "DistributedSampler":
        sampler = DistributedSampler(data, world.size, world.rank, shuffle=False)
    loader = idist.auto_dataloader(data, batch_size=4, sampler=sampler)
    assert global_steps(world, loader, "steps") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    if kind == "plain":
        assert inner(loader).sampler.sampler is sampler
    else:
        assert inner(loader).sampler is sampler


@check("auto_dataloader", "auto_dataloader(shuffle=True, sampler=...)", outcome="ValueError")
def check_sampler_or_shuffle(world: World) -> None:
    data = Numbers(8)
    call = lambda: idist.auto_dataloader(data, batch_size=4, shuffle=True, sampler=SequentialSampler(data))  # noqa: E731
    assert refusal(ValueError, call) == "shuffle=True and sampler both decide the order: give one of them"


@check(
    "auto_dataloader",
    "auto_dataloader: {kind} is left alone, with one log line",
    kind=("batch_sampler", "IterableDataset"),
)
def check_left_alone(world: World, kind: str) -> None:
    if kind == "batch_sampler":
        batches = BatchSampler(SequentialSampler(Numbers(8)), 3, drop_last=False)
        lines, loader = logged(lambda: idist.auto_dataloader(Numbers(8), batch_sampler=batches))
        assert inner(loader).batch_sampler is batches
        assert steps(loader) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    else:
        lines, loader = logged(lambda: idist.auto_dataloader(Stream(), batch_size=4))
        assert [sample for batch in steps(loader) for sample in batch] == list(range(8))
        assert len(steps(loader)[0]) == 4 // world.size
    assert len(lines) == (1 if world.size > 1 else 0), lines
    assert all(kind in line for line in lines)


@check(
    "auto_dataloader", "auto_dataloader gives batches on the device, where the backend has a device loader"
)
def check_batches_on_device(world: World) -> None:
    devices = {batch.device.type for batch in idist.auto_dataloader(Numbers(8), batch_size=4)}
    assert devices == ({"xla"} if world.backend == "xla-tpu" else {"cpu"})


_SAMPLERS: dict[str, Any] = {
    "RandomSampler": lambda data: RandomSampler(data),
    "RandomSampler with a generator": lambda data: RandomSampler(
        data, generator=torch.Generator().manual_seed(3)
    ),
    "SubsetRandomSampler": lambda data: SubsetRandomSampler(range(0, 12, 2)),
    "WeightedRandomSampler": lambda data: WeightedRandomSampler(torch.arange(1.0, 13.0), 7),
    "own": lambda data: _Shuffled(12),
}


class _Shuffled(Sampler):
    """A sampler of the user's that draws from the global generator."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self.length).tolist())


@check(
    "DistributedProxySampler", "DistributedProxySampler({kind}): the same order on every rank", kind=_SAMPLERS
)
def check_proxy_sampler(world: World, kind: str) -> None:
    """Each rank has a global generator in another state, and gets its share of one order."""
    torch.rand(world.rank)
    sampler = _SAMPLERS[kind](Numbers(12))
    proxy = idist.DistributedProxySampler(sampler)
    found = {}
    for epoch in (0, 1):
        proxy.set_epoch(epoch)
        alone = idist.DistributedProxySampler(_SAMPLERS[kind](Numbers(12)), num_replicas=1, rank=0)
        alone.set_epoch(epoch)
        order = list(alone)
        assert len(order) == len(sampler)
        shares = world.exchange(f"epoch {epoch}", [list(proxy), order])
        assert all(whole == order for _, whole in shares), "ranks differ in the order"
        total = -(-len(order) // world.size) * world.size
        assert _interleave([share for share, _ in shares]) == (order + order)[:total]
        assert len(proxy) == total // world.size
        found[epoch] = order
    assert found[0] != found[1], "every epoch has the same order"


@check("DistributedProxySampler", "DistributedProxySampler never touches the global generators")
def check_proxy_sampler_is_quiet(world: World) -> None:
    seen = []

    class Spy(RandomSampler):
        def __iter__(self) -> Iterator[int]:
            seen.append(torch.get_rng_state())
            return super().__iter__()

    world.exchange("start")  # replicas may share the generator: nobody is still drawing
    before = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    list(idist.DistributedProxySampler(Spy(Numbers(12))))
    after = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    world.exchange("end")
    assert torch.equal(seen[0], before[0]), "reseeded while the sampler draws"
    assert torch.equal(after[0], before[0]) and after[1:] == before[1:]


@check(
    "DistributedProxySampler",
    "DistributedProxySampler of what it can't deal out",
    outcome="TypeError or ValueError",
)
def check_proxy_sampler_refuses(world: World) -> None:
    text = refusal(TypeError, lambda: idist.DistributedProxySampler([1, 2]))  # type: ignore[arg-type]
    assert text == "DistributedProxySampler wraps a torch Sampler, not list"
    proxy = idist.DistributedProxySampler(SequentialSampler(Numbers(4)))
    for inner_sampler in (proxy, DistributedSampler(Numbers(4), 1, 0)):
        text = refusal(TypeError, lambda sampler=inner_sampler: idist.DistributedProxySampler(sampler))
        assert text == f"{type(inner_sampler).__name__} deals out samples to ranks already: don't wrap it"
    for rank in (-1, 2):
        call = lambda rank=rank: idist.DistributedProxySampler(SequentialSampler(Numbers(4)), 2, rank)  # noqa: E731
        assert (
            refusal(ValueError, call) == f"rank={rank} of num_replicas=2: ranks go from 0 to num_replicas - 1"
        )


@check("EpochSampler", "EpochSampler: start_index resumes within an epoch, once")
def check_start_index(world: World) -> None:
    sampler = idist.EpochSampler(24, shuffle=True, seed=3)
    whole = list(sampler)
    sampler.start_index = 2
    assert list(sampler) == whole[2:]
    assert list(sampler) == whole
    assert len(sampler) == len(whole)


def inner(loader: Any) -> DataLoader:
    """The DataLoader inside a device loader."""
    while not isinstance(loader, DataLoader):
        loader = loader._loader
    return loader
