"""torch.distributed's own collectives, used as idist's are: the input stays as it is, the result is new memory."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

# all_gather_into_tensor until torch 2.13
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def all_reduce(x: Tensor) -> Tensor:
    """The sum over all ranks."""
    result = x.clone()
    dist.all_reduce(result)
    return result


def all_gather(x: Tensor) -> Tensor:
    """[n, ...] of each of R ranks to [R n, ...]."""
    result = x.new_empty(dist.get_world_size() * len(x), *x.shape[1:])
    _all_gather_single(result, x)
    return result


def broadcast(x: Tensor) -> Tensor:
    """Rank 0's."""
    result = x.clone()
    dist.broadcast(result, 0)
    return result
