"""broadcast."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import torch

import reference.idist as idist
from tests.conformance.listen import refusal
from tests.conformance.oracle import DTYPES, assert_same, small
from tests.conformance.registry import check
from tests.conformance.shapes import SHAPES, make
from tests.conformance.world import World

_VALUES: dict[str, Any] = {
    "bool": lambda rank: rank % 2 == 1,
    "int": lambda rank: 10 - rank,
    "huge int": lambda rank: -(2**64) - rank,
    "float": lambda rank: 0.1 * (rank + 1),
    "NumPy scalar": lambda rank: numpy.float64(0.1 * rank),
    "string": lambda rank: ("", "a", "zażółć 🦊", "os.system('x')")[rank],
    "megabytes of string": lambda rank: "ü" * (1_500_000 - rank),
    "Path": lambda rank: Path("runs") / f"ñ{rank}",
}


@check("broadcast", "broadcast(tensor)", dtype=(*DTYPES, torch.complex64))
def check_broadcast_tensor(world: World, dtype: torch.dtype) -> None:
    real = torch.float32 if dtype.is_complex else dtype
    inputs = [small(rank, real, (3, 2)).to(dtype) for rank in world.ranks]
    for src in world.ranks:
        mine = inputs[world.rank].clone()
        result = idist.broadcast(mine, src)
        assert_same(result, inputs[src])
        assert_same(mine, inputs[world.rank])
        assert result.data_ptr() != mine.data_ptr(), "the result shares memory with the input"


@check("broadcast", "broadcast of 0-d, empty, n-d, non-contiguous and large tensors", shape=SHAPES)
def check_broadcast_shape(world: World, shape: str) -> None:
    device = idist.device()
    src = world.size - 1
    mine = make(shape, world.rank, torch.int64).to(device)
    assert_same(idist.broadcast(mine, src), make(shape, src, torch.int64), device)


@check("broadcast", "broadcast(tensor, safe_mode=True)", shape=SHAPES)
def check_broadcast_safe_tensor(world: World, shape: str) -> None:
    """The others know neither shape nor dtype, and pass whatever they have."""
    rubbish = (None, [1, "x"], torch.zeros(3, dtype=torch.int8), object())
    for src in world.ranks:
        sent = make(shape, src, torch.float64)
        mine = sent.clone() if world.rank == src else rubbish[world.rank]
        result = idist.broadcast(mine, src, safe_mode=True)
        assert_same(result.cpu(), sent)


@check("broadcast", "broadcast(tensor, safe_mode=True)", dtype=DTYPES)
def check_broadcast_safe_dtype(world: World, dtype: torch.dtype) -> None:
    sent = small(0, dtype, (2, 3))
    result = idist.broadcast(sent if world.rank == 0 else None, safe_mode=True)
    assert_same(result.cpu(), sent)


@check("broadcast", "broadcast({kind})", kind=_VALUES)
def check_broadcast_value(world: World, kind: str) -> None:
    for src in world.ranks:
        expected = _plain(_VALUES[kind](src))
        result = idist.broadcast(_VALUES[kind](world.rank), src)
        assert (type(result), result) == (type(expected), expected), (
            f"got {result!r:.80}, expected {expected!r:.80}"
        )


@check("broadcast", "broadcast({kind}, safe_mode=True)", kind=_VALUES)
def check_broadcast_safe_value(world: World, kind: str) -> None:
    rubbish = (None, [1, "x"], torch.zeros(3), object())
    for src in world.ranks:
        expected = _plain(_VALUES[kind](src))
        mine = _VALUES[kind](src) if world.rank == src else rubbish[world.rank]
        result = idist.broadcast(mine, src, safe_mode=True)
        assert (type(result), result) == (type(expected), expected), (
            f"got {result!r:.80}, expected {expected!r:.80}"
        )


@check("broadcast", "broadcast of a tensor that requires grad gives one that does not")
def check_broadcast_requires_grad(world: World) -> None:
    leaf = torch.tensor([1.0 + world.rank], requires_grad=True)
    assert_same(idist.broadcast(leaf * 2), torch.tensor([2.0]))


@check("broadcast", "broadcast of another type", outcome="TypeError")
def check_broadcast_refuses_type(world: World) -> None:
    for wrong, name in ((None, "NoneType"), ([1], "list"), ({}, "dict"), (b"x", "bytes"), (1j, "complex")):
        text = refusal(TypeError, lambda wrong=wrong: idist.broadcast(wrong))
        assert text == f"broadcast takes a tensor, number, string or Path, not {name}"


@check("broadcast", "broadcast from what is no rank", outcome="ValueError")
def check_broadcast_refuses_src(world: World) -> None:
    for wrong in (-1, world.size, "0", 0.0, True, None):
        for safe_mode in (False, True):
            call = lambda src=wrong, safe=safe_mode: idist.broadcast(1, src, safe)  # noqa: E731
            assert refusal(ValueError, call) == f"src={wrong!r}: ranks go from 0 to {world.size - 1}"


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, numpy.generic) else value
