"""Tensors of shapes and memory layouts that are easy to get wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.conformance.oracle import small

SHAPES = (
    "0-d",
    "[0]",
    "[2,0,3]",
    "[1]",
    "[7]",
    "[3,4]",
    "[2,3,4,5]",
    "transposed",
    "strided",
    "expanded",
    "sliced",
    "large",
)
_PLAIN = {
    "0-d": (),
    "[0]": (0,),
    "[2,0,3]": (2, 0, 3),
    "[1]": (1,),
    "[7]": (7,),
    "[3,4]": (3, 4),
    "[2,3,4,5]": (2, 3, 4, 5),
    "large": (1 << 18, 3),
}


def make(name: str, rank: int, dtype: torch.dtype) -> Tensor:
    """The rank's tensor of that form, with `small` values."""
    if name in _PLAIN:
        return small(rank, dtype, _PLAIN[name])
    base = small(rank, dtype, (6, 4))
    if name == "transposed":
        return base.t()
    if name == "strided":
        return base[::2, 1::2]
    if name == "expanded":
        return base[:, :1].expand(6, 3)
    return base[2:5]
