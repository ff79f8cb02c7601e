"""The world of a program, as far as the shared code has to know it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reference.idist import progress


@dataclass(frozen=True, kw_only=True)
class World:
    """Where this rank stands. It is made once all ranks have met, and tells the supervisor so.

    Args:
        program: the module's name.
        backend: "none" for a single process.
        rank, size: of this process (replica), and how many there are.
        device: what it trains on.
        all_reduce: the sum over all ranks of a float32 tensor on the device; may change what it gets.
    """

    program: str
    backend: str
    rank: int
    size: int
    device: torch.device
    all_reduce: Callable[[Tensor], Any]

    def __post_init__(self) -> None:
        progress.report("rendezvous", rank=self.rank, world_size=self.size)

    def table(self, row: list[float]) -> list[list[float]]:
        """Every rank's row, in the order of ranks, on all ranks. Collective. Numbers are rounded to float32."""
        rows = torch.zeros(self.size, len(row))
        rows[self.rank] = torch.tensor(row)
        total: list[list[float]] = self.all_reduce(rows.to(self.device)).cpu().tolist()
        return total
