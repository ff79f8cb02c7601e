"""barrier, one_rank_only and one_rank_first: who goes first, and what the others learn when that fails."""

from __future__ import annotations

import time
from typing import Any

import reference.idist as idist
from tests.conformance.listen import refusal
from tests.conformance.registry import check
from tests.conformance.world import World

_LATE = 0.3  # seconds: how much later a rank comes, so that a call that does not wait is caught


@check("barrier", "barrier()", smallest_world=2)
def check_barrier(world: World) -> None:
    """Nobody leaves before the last has come, whoever that is."""
    for late in world.ranks:
        if world.rank == late:
            time.sleep(_LATE)
            world.note(f"{late} has come")
        idist.barrier()
        assert f"{late} has come" in world.diary()


@check("barrier", "barrier() alone")
def check_barrier_returns(world: World) -> None:
    assert idist.barrier() is None


@check("one_rank_only", "one_rank_only(rank): only that rank runs the function")
def check_one_rank_only(world: World) -> None:
    for rank in world.ranks:

        @idist.one_rank_only(rank=rank)
        def double(x: int, *, plus: int = 0, rank: int = rank) -> int:
            """Twice x."""
            world.note(f"{rank} by {world.rank}")
            return 2 * x + plus

        assert (double.__name__, double.__doc__) == ("double", "Twice x.")
        assert double(4, plus=1) == (9 if world.rank == rank else None)
    world.exchange("done")
    assert sorted(world.diary()) == sorted(f"{rank} by {rank}" for rank in world.ranks)


@check("one_rank_only", "one_rank_only(rank): no collective without a barrier")
def check_one_rank_only_is_free(world: World) -> None:
    if world.rank == world.size - 1:
        assert idist.one_rank_only(rank=world.rank)(lambda: "alone")() == "alone"
    world.exchange("done")  # the others never called it


@check("one_rank_only", "one_rank_only(rank, with_barrier=True): the others wait", smallest_world=2)
def check_one_rank_only_barrier(world: World) -> None:
    for rank in world.ranks:

        @idist.one_rank_only(rank=rank, with_barrier=True)
        def work(rank: int = rank) -> str:
            time.sleep(_LATE)
            world.note(f"{rank} worked")
            return "value"

        assert work() == ("value" if world.rank == rank else None)
        assert f"{rank} worked" in world.diary()


@check("one_rank_only", "one_rank_only(with_barrier=True): the rank raises, so all raise")
def check_one_rank_only_raises(world: World) -> None:
    for rank in world.ranks:

        @idist.one_rank_only(rank=rank, with_barrier=True)
        def work() -> None:
            raise KeyError("no such thing")

        if world.rank == rank:
            assert refusal(KeyError, work) == "'no such thing'"
        else:
            text = refusal(RuntimeError, work)
            assert text.startswith(f"rank {rank} failed in ") and text.endswith(
                "work: KeyError: 'no such thing'"
            ), text
    assert idist.all_reduce(1) == world.size  # and the world goes on


@check(
    "one_rank_first",
    "one_rank_first(rank): that rank, then the others; {form}",
    form=("decorator", "context manager"),
)
def check_one_rank_first(world: World, form: str) -> None:
    for rank in world.ranks:
        label = f"{form} {rank}"

        def body(rank: int = rank, label: str = label) -> int:
            if world.rank == rank:
                time.sleep(_LATE)
            world.note(f"{label} by {world.rank}")
            return world.rank

        if form == "decorator":
            assert idist.one_rank_first(rank=rank)(body)() == world.rank
        else:
            with idist.one_rank_first(rank=rank):
                assert body() == world.rank
        world.exchange(label)
        lines = [line for line in world.diary() if line.startswith(label)]
        assert lines[0] == f"{label} by {rank}"
        assert sorted(lines) == sorted(f"{label} by {each}" for each in world.ranks)


@check("one_rank_first", "one_rank_first(local=True): that local rank of each node, then the others")
def check_one_rank_first_local(world: World) -> None:
    with idist.one_rank_first(local=True):
        if world.rank == 0:
            time.sleep(_LATE)
        world.note(str(world.rank))
    world.exchange("done")
    assert world.diary()[0] == "0"
    assert len(world.diary()) == world.size


@check("one_rank_first", "one_rank_first: the first raises, so all raise", local=(False, True))
def check_one_rank_first_raises(world: World, local: bool) -> None:
    def work() -> None:
        with idist.one_rank_first(local=local):
            world.note(f"{world.rank} was inside")
            raise OSError("disk is full")

    if world.rank == 0:
        assert refusal(OSError, work) == "disk is full"
    else:
        assert refusal(RuntimeError, work) == "rank 0 failed in one_rank_first: OSError: disk is full"
    world.exchange("done")
    assert world.diary() == ["0 was inside"]
    assert idist.all_reduce(1) == world.size


@check("one_rank_first", "one_rank_first: another rank raises, alone", smallest_world=2)
def check_one_rank_first_follower_raises(world: World) -> None:
    def work() -> int:
        with idist.one_rank_first():
            if world.rank == 1:
                raise OSError("mine")
            return world.rank

    if world.rank == 1:
        assert refusal(OSError, work) == "mine"
    else:
        assert work() == world.rank
    assert idist.all_reduce(1) == world.size


@check(
    "{call}", "{call} with what is no rank", outcome="ValueError", call=("one_rank_only", "one_rank_first")
)
def check_leading_refuses_rank(world: World, call: str) -> None:
    for wrong in (-1, world.size, "0", 0.0, True, None):

        def use(rank: Any = wrong) -> Any:
            return getattr(idist, call)(rank=rank)(lambda: 1)()

        assert refusal(ValueError, use) == f"rank={wrong!r}: ranks go from 0 to {world.size - 1}"
