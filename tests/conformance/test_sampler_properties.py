"""The order of samples is a function of seed and epoch: the same global batches for every world size."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils.data import RandomSampler, WeightedRandomSampler

from reference.idist import DistributedProxySampler, EpochSampler

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

WORLDS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
settings = hypothesis.settings(max_examples=150, deadline=None)


def batches(share: list[int], size: int, drop_last: bool) -> list[list[int]]:
    """What a DataLoader makes of a rank's samples."""
    cut = [share[start : start + size] for start in range(0, len(share), size)]
    return [batch for batch in cut if len(batch) == size or not drop_last]


def dealt(ranks: list[list[int]]) -> list[int]:
    """The ranks' samples of one step, dealt together again: first of each rank, second of each rank, ..."""
    longest = max(map(len, ranks))
    return [share[i] for i in range(longest) for share in ranks if i < len(share)]


def global_steps(shares: list[list[int]], local_batch: int, drop_last: bool) -> list[list[int]]:
    cut = [batches(share, local_batch, drop_last) for share in shares]
    return [dealt([rank[k] for rank in cut if k < len(rank)]) for k in range(max(map(len, cut)))]


def permutation(length: int, seed: int, epoch: int) -> list[int]:
    sampler = EpochSampler(length, 1, 0, shuffle=True, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


@settings
@hypothesis.given(
    length=st.integers(0, 200),
    world=st.sampled_from(WORLDS),
    local_batch=st.integers(1, 9),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 1000),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_set_and_order_of_each_step_do_not_depend_on_the_world_size(
    length: int, world: int, local_batch: int, seed: int, epoch: int, drop_last: bool, shuffle: bool
) -> None:
    """The oracle cuts the whole order into global batches; padding only adds to the last one."""
    batch = local_batch * world
    order = permutation(length, seed, epoch) if shuffle else list(range(length))
    expected = batches(order, batch, drop_last)
    shares = []
    for rank in range(world):
        sampler = EpochSampler(
            length,
            world,
            rank,
            seed=seed,
            shuffle=shuffle,
            multiple_of=batch if drop_last else 1,
            padding="last_step" if shuffle else "none",
            batch_size=batch,
        )
        sampler.set_epoch(epoch)
        shares.append(list(sampler))
        assert len(sampler) == len(shares[-1])
    found = global_steps(shares, local_batch, drop_last) if any(shares) else []
    assert len(found) == len(expected)
    for ours, whole in zip(found, expected, strict=True):
        assert ours[: len(whole)] == whole
        assert len(ours) - len(whole) == (max(0, world - len(whole)) if shuffle else 0)
    if shuffle:
        counts = {len(batches(share, local_batch, drop_last)) for share in shares}
        assert len(counts) == 1, "ranks take different numbers of steps"


@settings
@hypothesis.given(
    length=st.integers(1, 100),
    world=st.integers(1, 16),
    epoch=st.integers(0, 9),
    kind=st.sampled_from(("random", "own generator", "weighted")),
)
def test_proxy_sampler_deals_out_one_order(length: int, world: int, epoch: int, kind: str) -> None:
    def sampler() -> torch.utils.data.Sampler:
        if kind == "weighted":
            return WeightedRandomSampler(torch.arange(1.0, length + 1), length)
        generator = torch.Generator().manual_seed(5) if kind == "own generator" else None
        return RandomSampler(range(length), generator=generator)

    def share(replicas: int, rank: int) -> list[int]:
        proxy = DistributedProxySampler(sampler(), num_replicas=replicas, rank=rank)
        proxy.set_epoch(epoch)
        return list(proxy)

    torch.manual_seed(world)  # of the process, which must not matter
    order = share(1, 0)
    shares = []
    for rank in range(world):
        torch.rand(rank + 1)
        shares.append(share(world, rank))
    assert {len(each) for each in shares} == {-(-length // world)}
    assert dealt(shares) == [order[i % length] for i in range(len(shares[0]) * world)]


@settings
@hypothesis.given(length=st.integers(0, 300), seed=st.integers(-(2**62), 2**62), epoch=st.integers(0, 2**31))
def test_every_epoch_is_a_permutation(length: int, seed: int, epoch: int) -> None:
    assert sorted(permutation(length, seed, epoch)) == list(range(length))


def test_neighbouring_seeds_and_epochs_differ() -> None:
    orders = {tuple(permutation(50, seed, epoch)) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400


@settings
@hypothesis.given(length=st.integers(1, 100), world=st.integers(1, 8), data=st.data())
def test_start_index_resumes_an_epoch(length: int, world: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, world - 1))
    sampler = EpochSampler(length, world, rank, shuffle=True, seed=length)
    whole = list(sampler)
    sampler.start_index = data.draw(st.integers(0, len(whole)))
    begun = sampler.start_index
    assert list(sampler) == whole[begun:]
    assert list(sampler) == whole, "only the next iteration starts there"


def test_global_generators_are_left_alone() -> None:
    states = torch.get_rng_state(), random.getstate()
    list(EpochSampler(10, 2, 1, shuffle=True))
    list(DistributedProxySampler(RandomSampler(range(10)), 2, 1))
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
