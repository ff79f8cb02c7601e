"""Known inputs for every rank, and what must come of them, in plain Python arithmetic.

Each rank can work out the inputs of all ranks, so it knows the right answer without communication.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
DTYPES = (torch.bool, *INTEGERS, *FLOATS)
OPS = ("SUM", "AVERAGE", "PRODUCT", "MIN", "MAX", "AND", "OR")
_FOLD = {
    "SUM": operator.add,
    "PRODUCT": operator.mul,
    "MIN": min,
    "MAX": max,
    "AND": operator.and_,
    "OR": operator.or_,
}


def has_meaning(op: str, dtype: torch.dtype) -> bool:
    """Which reductions a dtype has."""
    if dtype is torch.bool:
        return op in ("MIN", "MAX", "AND", "OR")
    return op not in ("AND", "OR") if dtype.is_floating_point else op != "AVERAGE"


def small(rank: int, dtype: torch.dtype, shape: Sequence[int] = (5,), salt: int = 0) -> Tensor:
    """A tensor whose sums, products and averages over up to four ranks are exact in ``dtype``, other for every rank.

    Integers are -3 to 3 without 0 (uint8: 1 to 3), floats half of that, bools any.
    """
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    whole = torch.randint(1, 4, tuple(shape), generator=generator)
    sign = torch.randint(0, 2, tuple(shape), generator=generator) * 2 - 1
    if dtype is torch.bool:
        return sign > 0
    if dtype is torch.uint8:
        return whole.to(dtype)
    return (whole * sign / 2).to(dtype) if dtype.is_floating_point else (whole * sign).to(dtype)


def uniform(rank: int, dtype: torch.dtype, shape: Sequence[int], salt: int = 0) -> Tensor:
    """Random numbers in [-1, 1), other for every rank."""
    generator = torch.Generator().manual_seed(1000 * salt + rank)
    return torch.rand(tuple(shape), generator=generator, dtype=dtype) * 2 - 1


def fold(values: Sequence[Any], op: str) -> Any:
    """Numbers reduced one after the other."""
    if op == "AVERAGE":
        return functools.reduce(operator.add, values) / len(values)
    return functools.reduce(_FOLD[op], values)


def reduced(tensors: Sequence[Tensor], op: str) -> Tensor:
    """Tensors reduced element by element, in Python's arithmetic, which is exact for `small` values."""
    rows = [tensor.cpu().reshape(-1).tolist() for tensor in tensors]
    flat = [fold(column, op) for column in zip(*rows, strict=True)]
    return torch.tensor(flat, dtype=tensors[0].dtype).reshape(tensors[0].shape)


def assert_same(actual: Any, expected: Tensor, device: torch.device | str = "cpu") -> None:
    """Bit for bit the same tensor: dtype, device, shape and values."""
    assert isinstance(actual, Tensor), f"got {type(actual).__name__} {actual!r}"
    wanted = torch.device(device)
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype}, expected {expected.dtype}"
    assert actual.device == wanted, f"device {actual.device}, expected {wanted}"
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    assert not actual.requires_grad, "the result requires grad"
    assert torch.equal(actual.cpu(), expected.cpu()), f"got {_brief(actual)}, expected {_brief(expected)}"


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """The same shape, and values within ``tolerance``, relative to the largest."""
    assert actual.shape == expected.shape, f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    if expected.numel():
        off = (actual.detach().cpu().double() - expected.detach().cpu().double()).abs().max().item()
        bound = tolerance * max(1.0, expected.detach().abs().max().item())
        assert off <= bound, f"off by {off:.3g}, allowed {bound:.3g}"


def _brief(x: Tensor) -> list[Any]:
    return x.cpu().reshape(-1)[:12].tolist()
