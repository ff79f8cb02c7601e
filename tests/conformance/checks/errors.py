"""Wrong use: the same error, in the same words, on every backend and at every world size."""

from __future__ import annotations

from typing import Any

import torch

import reference.idist as idist
from tests.conformance import oracle
from tests.conformance.listen import refusal
from tests.conformance.registry import check
from tests.conformance.world import World

_WRONG_GROUPS: dict[str, Any] = {
    "text": "world",
    "number": 0,
    "tuple": (0,),
    "object": object(),
    "bool": True,
}


@check(
    "all_reduce",
    'all_reduce(tensor, "{op}") of a dtype without that operation',
    outcome="ValueError",
    op=oracle.OPS,
    dtype=oracle.DTYPES,
    where=lambda op, dtype: not oracle.has_meaning(op, dtype),
)
def check_all_reduce_refuses_dtype(world: World, op: str, dtype: torch.dtype) -> None:
    text = refusal(ValueError, lambda: idist.all_reduce(torch.ones(3, dtype=dtype), op))
    if dtype is torch.bool and op != "AVERAGE":
        assert text == f"op={op!r} has no meaning for torch.bool: use AND or OR, or convert the tensor"
    else:
        needed = "floating point" if op == "AVERAGE" else "bool or integer"
        assert text == f"op={op!r} needs a {needed} tensor, not {dtype}"


@check("all_reduce", "all_reduce(tensor) of a dtype that has no reduction", outcome="TypeError")
def check_all_reduce_refuses_complex(world: World) -> None:
    text = refusal(TypeError, lambda: idist.all_reduce(torch.ones(2, dtype=torch.complex64)))
    assert text == "all_reduce takes no tensor of dtype torch.complex64"


@check("all_reduce", "all_reduce of another type", outcome="TypeError")
def check_all_reduce_refuses_type(world: World) -> None:
    for wrong in ("text", None, [1], (1.0,), {}, 1j, b"x"):
        text = refusal(TypeError, lambda wrong=wrong: idist.all_reduce(wrong))
        assert text == f"all_reduce takes a tensor or a number, not {type(wrong).__name__}"


@check("all_reduce", "all_reduce with an unknown op", outcome="ValueError")
def check_all_reduce_refuses_op(world: World) -> None:
    for x in (1, torch.ones(2)):
        for wrong in ("sum", "MEAN", "", None, 3):
            text = refusal(ValueError, lambda x=x, op=wrong: idist.all_reduce(x, op))
            assert text == f"op={wrong!r} is unknown: use one of SUM, AVERAGE, PRODUCT, MIN, MAX, AND, OR"


@check("all_reduce", "all_reduce(float, AND or OR)", outcome="ValueError", op=("AND", "OR"))
def check_all_reduce_refuses_float(world: World, op: str) -> None:
    text = refusal(ValueError, lambda: idist.all_reduce(0.5, op))
    assert text == f"op={op!r} needs a bool or an integer, not the float 0.5"


@check(
    "{call}",
    "{call} with a wrong group",
    outcome="ValueError",
    call=("all_reduce", "all_gather"),
    kind=_WRONG_GROUPS,
)
def check_refuses_group(world: World, call: str, kind: str) -> None:
    wrong = _WRONG_GROUPS[kind]
    for x in (torch.ones(2), 1):
        text = refusal(ValueError, lambda x=x: getattr(idist, call)(x, group=wrong))
        assert text == f"group={wrong!r} is no group: give a list of ranks, or what new_group([...]) returned"


@check("{call}", "{call} with a wrong list of ranks", outcome="ValueError", call=("all_reduce", "all_gather"))
def check_refuses_ranks(world: World, call: str) -> None:
    for wrong in ([], [-1], [world.size], [0, 0], ["0"], [0.0], [True], [None]):
        for x in (torch.ones(2), 1):
            refusal(ValueError, lambda x=x, wrong=wrong: getattr(idist, call)(x, group=wrong))


@check(
    "all_gather_tensors_with_shapes",
    "all_gather_tensors_with_shapes with a wrong group",
    outcome="ValueError",
)
def check_with_shapes_refuses_group(world: World) -> None:
    call = lambda: idist.all_gather_tensors_with_shapes(torch.ones(2), [(2,)] * world.size, group="x")  # noqa: E731
    assert refusal(ValueError, call) == (
        "group='x' is no group: give a list of ranks, or what new_group([...]) returned"
    )


@check("any collective", "after an error on every rank the world goes on")
def check_world_survives_errors(world: World) -> None:
    refusal(ValueError, lambda: idist.all_reduce(1, "NO"))
    refusal(TypeError, lambda: idist.broadcast(None))
    assert idist.all_reduce(1) == world.size


@check("broadcast", "broadcast of another type", outcome="TypeError")
def check_broadcast_safe_mode_refuses_type_everywhere(world: World) -> None:
    for src in range(world.size):
        mine = [1] if world.rank == src else None
        text = refusal(TypeError, lambda mine=mine, src=src: idist.broadcast(mine, src, safe_mode=True))
        assert text == "broadcast takes a tensor, number, string or Path, not list"
