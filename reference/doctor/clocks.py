"""How far the clocks of the ranks are apart, by collectives alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import reference.idist as idist

_ROUNDS = 20


@dataclass(frozen=True, kw_only=True)
class Offset:
    """The clock of a rank minus that of rank 0, in seconds."""

    rank: int
    seconds: float
    uncertainty: float


def measure(clock: Callable[[], float] = time.time) -> list[Offset]:
    """The offset of every rank's ``clock`` (in seconds); every rank calls this, and gets the same list.

    Rank 0 reads its clock before a first all-reduce and after a second one, every other rank between the two. Nobody leaves
    the first before rank 0 has entered it, and rank 0 leaves the second only after everybody has entered it: so each of
    these moments lies between rank 0's two.
    """
    token, rounds = torch.zeros(1, device=idist.device()), []
    for _ in range(_ROUNDS):
        before = clock()
        idist.all_reduce(token).item()
        between = clock()
        idist.all_reduce(token).item()
        after = clock()
        rounds.append((before, between, after))
    return offsets(idist.all_gather(rounds))


def offsets(rounds: Sequence[Sequence[tuple[float, float, float]]]) -> list[Offset]:
    """The offsets from the readings before, between and after the collectives: [rank][round]. All rounds must agree."""
    found = []
    for rank, readings in enumerate(rounds):
        bounds = [
            (theirs[1] - ours[2], theirs[1] - ours[0])
            for ours, theirs in zip(rounds[0], readings, strict=True)
        ]
        low, high = max(b[0] for b in bounds), min(b[1] for b in bounds)
        if low > high:  # a clock was set meanwhile
            low, high = min(bounds, key=lambda b: b[1] - b[0])
        found.append(
            Offset(
                rank=rank,
                seconds=0.0 if rank == 0 else (low + high) / 2,
                uncertainty=0.0 if rank == 0 else (high - low) / 2,
            )
        )
    return found
