"""The order of samples, and whose they are: against lists that are cut by hand."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.idist.samplers import EpochSampler

worlds = st.integers(1, 16)


def batches(sampler: EpochSampler, batch_size: int) -> list[list[int]]:
    """What a loader of one rank makes of a sampler."""
    samples = iter(sampler)
    return list(iter(lambda: list(islice(samples, batch_size)), []))


@settings(deadline=None, max_examples=200)
@given(
    world_size=worlds,
    local=st.integers(1, 5),
    length=st.integers(1, 200),
    epoch=st.integers(0, 3),
    drop_last=st.booleans(),
)
def test_own_samples_of_all_ranks_are_the_global_batch(
    world_size: int, local: int, length: int, epoch: int, drop_last: bool
) -> None:
    size = world_size * local
    alone = EpochSampler(length, 1, 0, shuffle=True, seed=7)
    alone.set_epoch(epoch)
    order = list(alone)
    assert sorted(order) == list(range(length))
    if drop_last:
        order = order[: length // size * size]
    expected = [order[start : start + size] for start in range(0, len(order), size)]

    shares: list[list[list[int]]] = []  # [rank][step]
    for rank in range(world_size):
        sampler = EpochSampler(
            length,
            world_size,
            rank,
            shuffle=True,
            seed=7,
            padding="last_step",
            batch_size=size,
            multiple_of=size if drop_last else 1,
        )
        sampler.set_epoch(epoch)
        mine = batches(sampler, local)
        assert len(mine) == len(expected)  # every rank takes every step
        own = [sampler.share(step, local) for step in range(len(mine))]
        assert [total for _, total in own] == [len(batch) for batch in expected]
        shares.append([batch[:count] for batch, (count, _) in zip(mine, own, strict=True)])

    for step, batch in enumerate(expected):
        dealt: list[int | None] = [None] * len(batch)
        for rank in range(world_size):
            dealt[rank::world_size] = shares[rank][step]  # fails if the lengths differ
        assert dealt == batch


@settings(deadline=None)
@given(world_size=worlds, local=st.integers(1, 5), length=st.integers(1, 200))
def test_repeated_samples_of_equal_padding_count_on_no_rank(world_size: int, local: int, length: int) -> None:
    seen: list[int] = []
    for rank in range(world_size):
        sampler = EpochSampler(length, world_size, rank, padding="equal")
        mine = batches(sampler, local)
        for step, batch in enumerate(mine):
            own, total = sampler.share(step, local)
            assert 0 <= own <= len(batch) and own <= total
            seen += batch[:own]
    assert sorted(seen) == list(range(length))


@pytest.mark.parametrize("step", [-1, 3])
def test_share_of_a_step_that_does_not_exist(step: int) -> None:
    sampler = EpochSampler(9, 2, 0, batch_size=4, padding="last_step")
    with pytest.raises(ValueError, match=f"step={step}"):
        sampler.share(step, 2)
