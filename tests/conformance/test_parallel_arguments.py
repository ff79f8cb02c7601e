"""Parallel and spawn check every argument before a process starts, and say which one, its value and what is allowed."""

from __future__ import annotations

import os
from typing import Any

import pytest

import reference.idist as idist
from reference.idist import processes
from reference.idist.environment import variables_seen

BACKENDS = ("gloo", "nccl", "mpi", "horovod", "xla-tpu")
NO_MEANING = "has no meaning with backend=None: give a backend, or remove it"
FOR_STARTING = "is for starting processes: give nproc_per_node as well, or remove it under a launcher"
COUNT = "give a whole number of 1 or more"

TABLE: list[tuple[dict[str, Any], str]] = [
    (
        {"backend": "smoke"},
        "backend='smoke' is unknown: use one of gloo, nccl, mpi, horovod, xla-tpu or None",
    ),
    ({"backend": "GLOO"}, "backend='GLOO' is unknown: use one of gloo, nccl, mpi, horovod, xla-tpu or None"),
    ({"nproc_per_node": 2}, f"nproc_per_node=2 {NO_MEANING}"),
    ({"nnodes": 1}, f"nnodes=1 {NO_MEANING}"),
    ({"node_rank": 0}, f"node_rank=0 {NO_MEANING}"),
    ({"master_addr": "a"}, f"master_addr='a' {NO_MEANING}"),
    ({"master_port": 1}, f"master_port=1 {NO_MEANING}"),
    ({"init_method": "file:///x"}, f"init_method='file:///x' {NO_MEANING}"),
    ({"timeout": 5}, f"timeout=5 {NO_MEANING}"),
    ({"start_method": "fork"}, f"start_method='fork' {NO_MEANING}"),
]
STARTING: list[tuple[dict[str, Any], str]] = [
    ({"nnodes": 2}, f"nnodes=2 {FOR_STARTING}"),
    ({"node_rank": 0}, f"node_rank=0 {FOR_STARTING}"),
    ({"master_addr": "a"}, f"master_addr='a' {FOR_STARTING}"),
    ({"master_port": 1}, f"master_port=1 {FOR_STARTING}"),
    ({"init_method": "file:///x"}, f"init_method='file:///x' {FOR_STARTING}"),
    ({"nproc_per_node": 0}, f"nproc_per_node=0: {COUNT}"),
    ({"nproc_per_node": -1}, f"nproc_per_node=-1: {COUNT}"),
    ({"nproc_per_node": "2"}, f"nproc_per_node='2': {COUNT}"),
    ({"nproc_per_node": 2.0}, f"nproc_per_node=2.0: {COUNT}"),
    ({"nproc_per_node": True}, f"nproc_per_node=True: {COUNT}"),
    ({"nproc_per_node": 1, "nnodes": 0}, f"nnodes=0: {COUNT}"),
    ({"nproc_per_node": 1, "nnodes": "1"}, f"nnodes='1': {COUNT}"),
    (
        {"nproc_per_node": 1, "nnodes": 2, "master_addr": "a", "master_port": 1},
        "node_rank is missing: with nnodes=2 give each node its own, from 0 to 1",
    ),
    ({"nproc_per_node": 1, "nnodes": 2, "node_rank": 2}, "node_rank=2: with nnodes=2 it goes from 0 to 1"),
    ({"nproc_per_node": 1, "nnodes": 2, "node_rank": -1}, "node_rank=-1: with nnodes=2 it goes from 0 to 1"),
    (
        {"nproc_per_node": 1, "nnodes": 2, "node_rank": "0"},
        "node_rank='0': with nnodes=2 it goes from 0 to 1",
    ),
    ({"nproc_per_node": 1, "node_rank": 1}, "node_rank=1: with nnodes=1 it goes from 0 to 0"),
    (
        {"nproc_per_node": 1, "nnodes": 2, "node_rank": 0},
        "master_addr is missing: with nnodes=2 give master_addr and master_port, or init_method",
    ),
    (
        {"nproc_per_node": 1, "nnodes": 2, "node_rank": 0, "master_addr": "a"},
        "master_port is missing: with nnodes=2 give master_addr and master_port, or init_method",
    ),
    ({"nproc_per_node": 1, "master_port": 0}, "master_port=0: ports go from 1 to 65535"),
    ({"nproc_per_node": 1, "master_port": 65536}, "master_port=65536: ports go from 1 to 65535"),
    ({"nproc_per_node": 1, "master_port": "80"}, "master_port='80': ports go from 1 to 65535"),
    ({"nproc_per_node": 1, "master_addr": ""}, "master_addr='': give the host name or address of node 0"),
    ({"nproc_per_node": 1, "master_addr": 7}, "master_addr=7: give the host name or address of node 0"),
    (
        {"nproc_per_node": 1, "init_method": "tcp://a:1"},
        "init_method='tcp://a:1': only file:// is taken; for tcp give master_addr and master_port",
    ),
    (
        {"nproc_per_node": 1, "init_method": "file:///x", "master_port": 5},
        "master_port=5 and init_method both say where to meet",
    ),
    ({"nproc_per_node": 1, "timeout": -1.0}, "timeout=-1.0: give seconds above 0"),
    ({"nproc_per_node": 1, "timeout": "9"}, "timeout='9': give seconds above 0"),
    ({"timeout": True}, "timeout=True: give seconds above 0"),
]


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument that is let through must not start anything here; and nobody launched this process."""

    def run(*_: Any, **__: Any) -> None:
        raise AssertionError("processes were started")

    monkeypatch.setattr(processes, "run", run)
    for name in variables_seen(os.environ):
        monkeypatch.delenv(name)


@pytest.mark.parametrize(("arguments", "text"), TABLE)
def test_without_a_backend(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError) as caught:
        idist.Parallel(**arguments)
    assert str(caught.value) == text


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("arguments", "text"), STARTING)
def test_with_a_backend(backend: str, arguments: dict[str, Any], text: str) -> None:
    """The same words on every backend, also on those that are not installed here."""
    with pytest.raises(ValueError) as caught:
        idist.Parallel(backend, **arguments)
    assert str(caught.value) == text


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("nproc_per_node", [None, 1])
def test_unknown_arguments(backend: str, nproc_per_node: int | None) -> None:
    with pytest.raises(ValueError) as caught:
        idist.Parallel(backend, nproc_per_node=nproc_per_node, colour="red")
    assert str(caught.value).startswith(f"colour='red' is not an argument of backend {backend!r}: use ")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_unknown_start_method(backend: str) -> None:
    with pytest.raises(ValueError) as caught:
        idist.Parallel(backend, nproc_per_node=1, start_method="telepathy")
    assert str(caught.value).startswith("start_method='telepathy': use one of ")


def test_spawn_checks_its_arguments_too() -> None:
    with pytest.raises(ValueError, match=r"^nproc_per_node=0: "):
        idist.spawn("gloo", print, nproc_per_node=0)
    with pytest.raises(ValueError, match=r"^colour='red' is not an argument of backend 'gloo': "):
        idist.spawn("gloo", print, colour="red")


def test_arguments_that_the_launcher_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    world = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "1",
    }
    for name, value in world.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ValueError, match=r"^nproc_per_node=2 inside a world of 2 processes \(torchrun\): .*remove it$"
    ):
        idist.Parallel("gloo", nproc_per_node=2)
    with pytest.raises(ValueError, match=rf"^nnodes=2 {FOR_STARTING}$"):
        idist.Parallel("gloo", nnodes=2)
    with pytest.raises(ValueError, match=r"^backend=None in a world of 2 processes \(torchrun\): "):
        idist.Parallel()


def test_one_process_returns_the_value() -> None:
    with idist.Parallel() as parallel:
        assert parallel.run(lambda local_rank, a, *, b: (local_rank, a, b), 1, b=2) == (0, 1, 2)
