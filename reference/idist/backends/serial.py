"""The null object: one process, no communication. Every call has its meaning at world size 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from reference.idist.backends.base import Backend, RankGroup, not_a_group, refuse_keywords

if TYPE_CHECKING:
    from reference.idist.launcher import SpawnPlan


class SerialBackend(Backend):
    """World size 1."""

    model_name = "serial"
    name = "serial"
    rank = local_rank = node_rank = 0
    world_size = nproc_per_node = nnodes = 1

    @classmethod
    def initialize(cls, name: str, *, timeout: float, device: str | None, **options: Any) -> Backend:
        return cls()

    @classmethod
    def spawn(
        cls, plan: SpawnPlan, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        raise ValueError("nproc_per_node: a single process (backend=None) starts no others")

    def finalize(self, failed: bool = False) -> None:
        pass

    @property
    def device(self) -> torch.device:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def all_reduce(self, x: Tensor, op: str, group: Any) -> Tensor:
        return x.clone()

    def all_gather(self, x: Tensor, group: Any) -> Tensor:
        return x[None].clone()

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        return x.clone()

    def barrier(self) -> None:
        pass

    def new_group(self, ranks: Sequence[int], **kwargs: Any) -> Any:
        refuse_keywords(kwargs, "new_group", None)
        return RankGroup(tuple(ranks))

    def group_ranks(self, group: Any) -> tuple[int, ...]:
        if not isinstance(group, RankGroup):
            raise not_a_group(group)
        return group.ranks

    def wrap_model(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        refuse_keywords(kwargs, "auto_model", None)
        return model

    def wrap_optimizer(self, optimizer: Optimizer, **kwargs: Any) -> Optimizer:
        refuse_keywords(kwargs, "auto_optim", None)
        return optimizer
