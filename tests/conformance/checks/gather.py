"""all_gather and all_gather_tensors_with_shapes."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import numpy
import torch

import reference.idist as idist
from tests.conformance.checks.reduce import GROUPS, group_of
from tests.conformance.listen import refusal
from tests.conformance.oracle import DTYPES, assert_same, small
from tests.conformance.registry import check
from tests.conformance.shapes import SHAPES, make
from tests.conformance.world import World


@check("all_gather", "all_gather(tensor)", dtype=(*DTYPES, torch.complex64))
def check_all_gather(world: World, dtype: torch.dtype) -> None:
    real = torch.float32 if dtype.is_complex else dtype
    inputs = [small(rank, real, (2, 3)).to(dtype) for rank in world.ranks]
    mine = inputs[world.rank].clone()
    assert_same(idist.all_gather(mine), torch.cat(inputs))
    assert_same(mine, inputs[world.rank])


@check("all_gather", "all_gather of 0-d, empty, n-d, non-contiguous and large tensors", shape=SHAPES)
def check_all_gather_shape(world: World, shape: str) -> None:
    device = idist.device()
    inputs = [make(shape, rank, torch.float64) for rank in world.ranks]
    expected = torch.cat([x.reshape(1) if x.dim() == 0 else x for x in inputs])
    assert_same(idist.all_gather(inputs[world.rank].to(device)), expected, device)


@check(
    "all_gather", "all_gather(tensor), bits that no arithmetic keeps (NaN payloads, -0.0, int64 beyond 2**53)"
)
def check_all_gather_bits(world: World) -> None:
    bits = [torch.tensor([0x7FF8000000000123 + rank, -(2**63), 2**53 + 1 + rank]) for rank in world.ranks]
    assert_same(idist.all_gather(bits[world.rank]), torch.cat(bits))
    gathered = idist.all_gather(bits[world.rank].view(torch.float64))
    assert_same(gathered.view(torch.int64), torch.cat(bits))


@check("all_gather", "all_gather of a tensor that requires grad gives one that does not")
def check_all_gather_requires_grad(world: World) -> None:
    leaf = torch.tensor([1.0 + world.rank], requires_grad=True)
    assert_same(idist.all_gather(leaf * 2), torch.tensor([2.0 + 2 * rank for rank in world.ranks]))


@check(
    "all_gather",
    "all_gather(tensor, group=...): list of ranks or handle",
    ranks=GROUPS,
    form=("list", "handle"),
)
def check_all_gather_group(world: World, ranks: tuple[int, ...], form: str) -> None:
    group = group_of(ranks, form)
    members = ranks if world.rank in ranks else (world.rank,)  # outside: only its own
    for shape in ("0-d", "[0]", "[3,4]"):
        inputs = [make(shape, rank, torch.bfloat16) for rank in world.ranks]
        rows = [inputs[rank].reshape(1) if inputs[rank].dim() == 0 else inputs[rank] for rank in members]
        assert_same(idist.all_gather(inputs[world.rank], group=group), torch.cat(rows))


@check("all_gather", "all_gather(number, string or object, group=...)", ranks=GROUPS, form=("list", "handle"))
def check_all_gather_values_group(world: World, ranks: tuple[int, ...], form: str) -> None:
    group = group_of(ranks, form)
    members = ranks if world.rank in ranks else (world.rank,)
    for value in (lambda r: r, lambda r: "é" * r, lambda r: {"rank": [r] * 1000 * r}):
        assert idist.all_gather(value(world.rank), group=group) == [value(rank) for rank in members]


_VALUES: dict[str, Any] = {
    "bool": lambda rank: rank % 2 == 0,
    "int": lambda rank: -rank,
    "huge int": lambda rank: (-3) ** (400 * rank + 45),
    "float": lambda rank: (0.1, math.inf, 5e-324, -0.0)[rank],
    "NumPy scalar": lambda rank: numpy.float32(0.1 * rank),
    "None": lambda rank: None,
    "string": lambda rank: ("", "plain", "zażółć gęślą jaźń", "\0🦊 \N{COMBINING ACUTE ACCENT}\n")[rank],
    "lone surrogate": lambda rank: "\udcff" * (rank + 1),
    "megabytes of string": lambda rank: "déjà " * (rank * 300_000),
    "bytes": lambda rank: bytes(range(rank * 50)),
    "Path": lambda rank: Path("data") / f"ü{rank}",
    "object": lambda rank: {
        "name": (rank, [None, {1.5, "x"}]),
        "next": {"deep": [[[rank]]]},
        "more": "y" * 99 * rank,
    },
    "type of its own on each rank": lambda rank: (7, "seven", [7.0], {"k": 7})[rank],
}


@check("all_gather", "all_gather({kind})", kind=_VALUES)
def check_all_gather_values(world: World, kind: str) -> None:
    expected = [_VALUES[kind](rank) for rank in world.ranks]
    gathered = idist.all_gather(_VALUES[kind](world.rank))
    assert isinstance(gathered, list)
    assert [type(value) for value in gathered] == [type(value) for value in expected]
    assert gathered == expected
    if kind == "float" and world.size == 4:
        assert math.copysign(1, gathered[3]) == -1


@check("all_gather", "all_gather of what can't be pickled", outcome="TypeError")
def check_all_gather_unpicklable(world: World) -> None:
    text = refusal(TypeError, lambda: idist.all_gather(threading.Lock()))
    assert text.startswith("a value of type lock can't be sent to other ranks: "), text


_UNEVEN: dict[str, Any] = {
    "1-d": lambda rank: (rank + 1,),
    "2-d": lambda rank: (4 - rank, 2 * rank + 1),
    "some empty": lambda rank: (rank % 2 * 3, 2),
    "all empty": lambda rank: (0, rank),
    "0-d": lambda rank: (),
    "equal": lambda rank: (2, 2),
}


@check("all_gather_tensors_with_shapes", "all_gather_tensors_with_shapes(tensor, shapes)", kind=_UNEVEN)
def check_all_gather_tensors_with_shapes(world: World, kind: str) -> None:
    shapes = [_UNEVEN[kind](rank) for rank in world.ranks]
    for dtype in (torch.bool, torch.int64, torch.float64):
        inputs = [small(rank, dtype, shapes[rank]) for rank in world.ranks]
        result = idist.all_gather_tensors_with_shapes(inputs[world.rank], shapes)
        assert isinstance(result, list) and len(result) == world.size
        for actual, expected in zip(result, inputs, strict=True):
            assert_same(actual, expected)


@check("all_gather_tensors_with_shapes", "all_gather_tensors_with_shapes(..., group=...)", ranks=GROUPS)
def check_all_gather_tensors_with_shapes_group(world: World, ranks: tuple[int, ...]) -> None:
    inputs = [small(rank, torch.float32, (rank + 1, 2)) for rank in world.ranks]
    shapes = [(rank + 1, 2) for rank in ranks]
    result = idist.all_gather_tensors_with_shapes(inputs[world.rank], shapes, group=list(ranks))
    members = ranks if world.rank in ranks else (world.rank,)
    assert len(result) == len(members)
    for actual, rank in zip(result, members, strict=True):
        assert_same(actual, inputs[rank])


@check("all_gather_tensors_with_shapes", "all_gather_tensors_with_shapes: wrong shapes", outcome="ValueError")
def check_all_gather_tensors_with_shapes_refuses(world: World) -> None:
    x, n = torch.zeros(2, 3), world.size
    text = refusal(ValueError, lambda: idist.all_gather_tensors_with_shapes(x, [(2, 3)] * (n + 1)))
    assert text == f"shapes has {n + 1} entries for {n} ranks"
    text = refusal(ValueError, lambda: idist.all_gather_tensors_with_shapes(x, [(9, 3)] * n))
    assert text.startswith("x has the shape (2, 3), which is not this rank's entry of shapes=")
    if n > 1:
        text = refusal(
            ValueError, lambda: idist.all_gather_tensors_with_shapes(x, [(2, 3)] * (n - 1) + [(6,)])
        )
        assert text.endswith("all need the same number of dimensions")
    text = refusal(TypeError, lambda: idist.all_gather_tensors_with_shapes([1.0], [(1,)] * n))  # type: ignore[arg-type]
    assert text == "all_gather_tensors_with_shapes takes a tensor, not list"
