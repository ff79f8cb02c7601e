"""all_reduce."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy
import torch

import reference.idist as idist
from tests.conformance import oracle
from tests.conformance.listen import refusal
from tests.conformance.oracle import (
    DTYPES,
    FLOATS,
    OPS,
    assert_close,
    assert_same,
    fold,
    reduced,
    small,
    uniform,
)
from tests.conformance.registry import check
from tests.conformance.shapes import SHAPES, make
from tests.conformance.world import World

GROUPS = ((0,), (1,), (0, 1), (0, 2), (0, 1, 3), (0, 1, 2, 3))


@check("all_reduce", 'all_reduce(tensor, "{op}")', op=OPS, dtype=DTYPES, where=oracle.has_meaning)
def check_all_reduce(world: World, op: str, dtype: torch.dtype) -> None:
    inputs = [small(rank, dtype) for rank in world.ranks]
    mine = inputs[world.rank].clone()
    result = idist.all_reduce(mine, op)
    assert_same(result, reduced(inputs, op))
    assert_same(mine, inputs[world.rank])  # unchanged
    assert result.data_ptr() != mine.data_ptr(), "the result shares memory with the input"


@check("all_reduce", 'all_reduce(tensor, "{op}")', op=("SUM", "PRODUCT", "MIN", "MAX"))
def check_all_reduce_int64_is_exact(world: World, op: str) -> None:
    """Beyond 2**53 a float64 in between would round."""
    base = 2**15 if op == "PRODUCT" else 2**60
    inputs = [torch.tensor([base + 3 * rank + 1, -(base + rank)]) for rank in world.ranks]
    assert_same(idist.all_reduce(inputs[world.rank], op), reduced(inputs, op))


@check(
    "all_reduce",
    "all_reduce(tensor), sums of half precision are made in float32",
    smallest_world=2,
    dtype=FLOATS[:2],
)
def check_all_reduce_half_keeps_precision(world: World, dtype: torch.dtype) -> None:
    """Big + 1 is big in the dtype itself: only a wider sum sees the ones."""
    big = 1 / torch.finfo(dtype).eps * 2
    inputs = [torch.tensor([big if rank == 0 else 1.0], dtype=dtype) for rank in world.ranks]
    expected = torch.tensor([big + world.size - 1]).to(dtype)
    assert_same(idist.all_reduce(inputs[world.rank]), expected)


@check(
    "all_reduce", "all_reduce(tensor), small integers wrap around", dtype=("uint8", "int8", "int16", "int32")
)
def check_all_reduce_wraps(world: World, dtype: str) -> None:
    info = torch.iinfo(getattr(torch, dtype))
    span, whole = info.max - info.min + 1, info.max * world.size
    expected = torch.tensor([(whole - info.min) % span + info.min], dtype=getattr(torch, dtype))
    assert_same(idist.all_reduce(torch.tensor([info.max], dtype=getattr(torch, dtype))), expected)


@check("all_reduce", 'all_reduce(tensor, "SUM")', dtype=("float32", "float64"))
def check_all_reduce_any_values(world: World, dtype: str) -> None:
    inputs = [uniform(rank, getattr(torch, dtype), (1000,)) for rank in world.ranks]
    expected = torch.stack([x.double() for x in inputs]).sum(0).to(inputs[0].dtype)
    assert_close(idist.all_reduce(inputs[world.rank]), expected, 4 * torch.finfo(inputs[0].dtype).eps)


@check("all_reduce", "all_reduce(tensor) with infinities and NaN", op=("SUM", "MIN", "MAX"))
def check_all_reduce_special_values(world: World, op: str) -> None:
    """Infinities reduce as numbers do; a NaN on any rank shows in the result."""
    inputs = [
        torch.tensor([math.inf if rank == 0 else 1.0, -math.inf if rank == 0 else 2.0])
        for rank in world.ranks
    ]
    assert_same(idist.all_reduce(inputs[world.rank], op), reduced(inputs, op))
    for ill in world.ranks:
        mine = math.nan if world.rank == ill else 1.0
        assert idist.all_reduce(torch.tensor([mine, 1.0]), op).isnan().tolist() == [True, False]
        assert math.isnan(idist.all_reduce(mine, op))


@check("all_reduce", "all_reduce of 0-d, empty, n-d, non-contiguous and large tensors", shape=SHAPES)
def check_all_reduce_shape(world: World, shape: str) -> None:
    device = idist.device()
    for op, dtype in (("SUM", torch.float32), ("MAX", torch.int64), ("AND", torch.int32)):
        inputs = [make(shape, rank, dtype) for rank in world.ranks]
        mine = inputs[world.rank].to(device)
        expected = functools.reduce(
            {"SUM": torch.add, "MAX": torch.maximum, "AND": torch.bitwise_and}[op], inputs
        )
        assert_same(idist.all_reduce(mine, op), expected, device)


@check("all_reduce", "all_reduce of a tensor that requires grad gives one that does not")
def check_all_reduce_requires_grad(world: World) -> None:
    leaf = torch.tensor([1.0, 2.0 + world.rank], requires_grad=True)
    inner = leaf * 2
    result = idist.all_reduce(inner)
    assert_same(result, torch.tensor([2.0 * world.size, sum(2 * (2.0 + rank) for rank in world.ranks)]))
    inner.sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [2.0, 2.0]


@check(
    "all_reduce",
    "all_reduce(tensor, group=...): list of ranks or handle",
    ranks=GROUPS,
    form=("list", "handle"),
)
def check_all_reduce_group(world: World, ranks: tuple[int, ...], form: str) -> None:
    group = group_of(ranks, form)
    for dtype in (torch.bool, torch.int64, torch.float16, torch.float64):
        for op in OPS:
            if oracle.has_meaning(op, dtype) and (op != "AVERAGE" or len(ranks) != 3):
                inputs = [small(rank, dtype, salt=len(ranks)) for rank in world.ranks]
                inside = world.rank in ranks
                expected = reduced([inputs[rank] for rank in ranks], op) if inside else inputs[world.rank]
                mine = inputs[world.rank].clone()
                result = idist.all_reduce(mine, op, group=group)
                assert_same(result, expected)
                assert_same(mine, inputs[world.rank])
                assert result.data_ptr() != mine.data_ptr(), "the result shares memory with the input"
    empty = torch.empty(0, 3)
    assert_same(idist.all_reduce(empty, group=group), empty)


@check("all_reduce", "all_reduce(number, group=...)", ranks=GROUPS)
def check_all_reduce_number_group(world: World, ranks: tuple[int, ...]) -> None:
    values = [2**64 + rank for rank in world.ranks]
    inside = world.rank in ranks
    for op in OPS:
        expected = fold([values[rank] for rank in ranks] if inside else [values[world.rank]], op)
        result = idist.all_reduce(values[world.rank], op, group=list(ranks))
        assert (type(result), result) == (type(expected), expected)


_NUMBERS: dict[str, Any] = {
    "bool": lambda rank: rank % 2 == 0,
    "int": lambda rank: 5 - 3 * rank,
    "huge_int": lambda rank: (-1) ** rank * (2**70 + rank),
    "float": lambda rank: 0.1 * (rank + 1),
    "tiny_and_huge_float": lambda rank: (1e300, 1e-300, -1e300, 5e-324)[rank],
    "int_or_float": lambda rank: 1 if rank == 0 else 2.5 * rank,
    "numpy_int": lambda rank: numpy.int64(2**62 - rank),
    "numpy_float": lambda rank: numpy.float32(0.1 * (rank + 1)),
}


@check(
    "all_reduce",
    "all_reduce({kind})",
    kind=_NUMBERS,
    op=OPS,
    where=lambda kind, op: "float" not in kind or op not in ("AND", "OR"),
)
def check_all_reduce_number(world: World, kind: str, op: str) -> None:
    values = [_NUMBERS[kind](rank) for rank in world.ranks]
    plain = [value.item() if isinstance(value, numpy.generic) else value for value in values]
    expected = fold(plain, op)
    if any(isinstance(value, float) for value in plain):
        expected = float(expected)  # a mix gives a float
    result = idist.all_reduce(values[world.rank], op)
    assert (type(result), result) == (type(expected), expected), f"got {result!r}, expected {expected!r}"


@check("all_reduce", "many reductions of different sizes one after the other")
def check_all_reduce_series(world: World) -> None:
    for size in range(1, 30):
        result = idist.all_reduce(torch.full((size,), size * (world.rank + 1)))
        assert_same(result, torch.full((size,), size * sum(rank + 1 for rank in world.ranks)))


@check("new_group", "new_group(ranks) in any order gives a group in rank order", smallest_world=2)
def check_new_group_order(world: World) -> None:
    group = idist.new_group([1, 0])
    gathered = idist.all_gather(world.rank, group=group)
    assert gathered == ([0, 1] if world.rank < 2 else [world.rank]), gathered


@check("new_group", "new_group(ranks): wrong ranks", outcome="ValueError")
def check_new_group_refuses(world: World) -> None:
    form, span = "give a list of int, with at least one rank", f"ranks go from 0 to {world.size - 1}"
    table: list[tuple[Any, Any, str]] = [
        (ranks, ranks, form) for ranks in ((0,), "0", 0, None, [], ["0"], [0.0], [True])
    ]
    table += [
        ([-1], -1, span),
        ([0, world.size], world.size, span),
        ([0, 0], [0, 0], "a rank stands there twice"),
    ]
    for ranks, named, end in table:
        text = refusal(ValueError, lambda ranks=ranks: idist.new_group(ranks))
        assert text == f"ranks={named!r}: {end}", text


def group_of(ranks: tuple[int, ...], form: str) -> Any:
    """A list of ranks, or the handle of new_group."""
    return list(ranks) if form == "list" else idist.new_group(list(ranks))
