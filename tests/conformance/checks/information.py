"""Getters: right, and pure. One rank alone may call them: a hidden collective would make it wait for ever."""

from __future__ import annotations

import socket
from typing import Any

import torch

import reference.idist as idist
from tests.conformance.listen import logged, refusal
from tests.conformance.registry import check
from tests.conformance.world import World

_MODELS = {
    None: "serial",
    "gloo": "native-dist",
    "nccl": "native-dist",
    "horovod": "horovod-dist",
    "xla-tpu": "xla-dist",
}
_GETTERS = (
    "backend",
    "model_name",
    "device",
    "get_rank",
    "get_local_rank",
    "get_world_size",
    "get_nproc_per_node",
    "get_nnodes",
    "get_node_rank",
    "hostname",
)


def _expected(world: World, getter: str) -> Any:
    if getter == "device":
        if world.backend == "xla-tpu":
            return "xla"
        return "cuda" if torch.cuda.is_available() and world.backend != "gloo" else "cpu"
    return {
        "backend": world.backend,
        "model_name": _MODELS[world.backend],
        "get_rank": world.rank,
        "get_local_rank": world.rank,
        "get_world_size": world.size,
        "get_nproc_per_node": world.size,
        "get_nnodes": 1,
        "get_node_rank": 0,
        "hostname": socket.gethostname(),
    }[getter]


@check("information", "{getter}()", getter=_GETTERS)
def check_getter(world: World, getter: str) -> None:
    answer = getattr(idist, getter)()
    if getter == "device":
        assert isinstance(answer, torch.device)
        answer = answer.type
    assert answer == _expected(world, getter), (
        f"{getter}() is {answer!r}, expected {_expected(world, getter)!r}"
    )


@check("information", "any getter called by one rank alone", alone=("first", "last"))
def check_getters_are_pure(world: World, alone: str) -> None:
    if world.rank == (0 if alone == "first" else world.size - 1):
        for getter in _GETTERS:
            getattr(idist, getter)()
        assert idist.available_backends()
    world.exchange("asked")  # the others wait here, without idist


@check("information", "has_*_support, registered_computation_models, available_backends()")
def check_flags(world: World) -> None:
    models = set(idist.registered_computation_models)
    assert models == {"serial", "native-dist", "horovod-dist", "xla-dist"}
    available = idist.available_backends()
    assert isinstance(available, tuple)
    assert world.backend is None or world.backend in available
    assert idist.has_native_dist_support is torch.distributed.is_available()
    assert idist.has_hvd_support is ("horovod" in available)
    assert idist.has_xla_support is ("xla-tpu" in available)


@check("information", "show_config() logs on rank 0 only")
def check_show_config(world: World) -> None:
    lines, _ = logged(idist.show_config)
    if world.rank != 0:
        assert lines == [], f"rank {world.rank} logged {lines}"
        return
    text = "\n".join(lines)
    assert (
        f"world size {world.size}" in text and _MODELS[world.backend] in text and str(world.backend) in text
    ), text


@check("information", "set_local_rank(index) in a launched world", outcome="ValueError")
def check_set_local_rank_is_for_adopted_worlds(world: World) -> None:
    for wrong in (-1, "0", 1.0, True):
        text = refusal(ValueError, lambda index=wrong: idist.set_local_rank(index))
        assert text == f"index={wrong!r}: give a whole number of 0 or more"
    text = refusal(ValueError, lambda: idist.set_local_rank(world.rank))
    assert text.startswith(f"set_local_rank({world.rank}): ")
    assert idist.get_local_rank() == world.rank
