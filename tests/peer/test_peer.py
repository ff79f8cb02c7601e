"""Beside pytorch-ignite: the same values where the contract says so, and each deliberate difference seen as one."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import reference.idist as ours
from reference.idist.hostlist import expand_hostlist

theirs = pytest.importorskip(
    "ignite.distributed", reason="pytorch-ignite is not installed: docker/locks/peer.txt"
)
scenarios = pytest.importorskip("tests.peer.scenarios")
BOTH = pytest.mark.parametrize("api", [ours, theirs], ids=["ours", "theirs"])


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    """For each rank of a gloo world of two: {"ours": {scenario: value}, "theirs": {scenario: value}}."""
    with ours.Parallel("gloo", nproc_per_node=2, timeout=60) as parallel:
        return parallel.run(scenarios.run, str(tmp_path_factory.mktemp("peer")))


@pytest.mark.parametrize("name", scenarios.SAME)
def test_same(found: list[dict[str, dict[str, Any]]], name: str) -> None:
    assert [rank["ours"][name] for rank in found] == [rank["theirs"][name] for rank in found]


@pytest.mark.parametrize("name", scenarios.DIFFERENT)
def test_different(found: list[dict[str, dict[str, Any]]], name: str) -> None:
    _, mine, other = scenarios.DIFFERENT[name]
    assert mine != other
    assert [rank["ours"][name] for rank in found] == mine
    assert [rank["theirs"][name] for rank in found] == other


def test_a_leader_that_raises_leaves_nobody_waiting(found: list[dict[str, dict[str, Any]]]) -> None:
    name = "one_rank_first, the leader raises"
    assert [rank["ours"][name] for rank in found] == ["goes on", "goes on"]
    assert [rank["theirs"][name] for rank in found] == ["goes on", "waits"]


def test_parallel_returns_a_value() -> None:
    def value(api: ModuleType) -> Any:
        with api.Parallel() as parallel:
            return parallel.run(lambda local_rank: 5)

    assert (value(ours), value(theirs)) == (5, None)


@pytest.mark.parametrize(
    "arguments",
    [
        {"nnodes": 2},
        {"node_rank": 5, "master_port": 1},
        {"nproc_per_node": 2, "colour": "red"},
        {"nproc_per_node": 2, "master_port": 1, "init_method": "file:///x"},
    ],
)
def test_arguments_without_effect_are_errors(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ours.Parallel("gloo", **arguments)
    theirs.Parallel("gloo", **arguments)


@BOTH
@pytest.mark.parametrize(
    "arguments",
    [
        {"backend": "smoke"},
        {"nproc_per_node": 2},
        {"backend": "gloo", "nproc_per_node": 0},
        {
            "backend": "gloo",
            "nproc_per_node": 2,
            "nnodes": 2,
            "node_rank": 2,
            "master_addr": "a",
            "master_port": 1,
        },
        {"backend": "gloo", "nproc_per_node": 2, "nnodes": 2, "node_rank": 0},
    ],
)
def test_wrong_arguments_are_errors_in_both(api: ModuleType, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        api.Parallel(**arguments)


def test_one_process_checks_types_too() -> None:
    calls = [
        (lambda api: api.all_reduce("text"), TypeError),
        (lambda api: api.all_reduce(1, "NO"), ValueError),
    ]
    for call, error in calls:
        with pytest.raises(error):
            call(ours)
        call(theirs)


def test_one_process_gives_the_shapes_of_many() -> None:
    x = torch.tensor(1.0)
    assert (ours.all_gather(x).shape, theirs.all_gather(x).shape) == ((1,), ())
    assert ours.all_reduce(x) is not x
    assert theirs.all_reduce(x) is x


def test_keywords_without_use_in_one_process() -> None:
    with pytest.raises(ValueError):
        ours.auto_model(nn.Linear(1, 1), colour="red")
    theirs.auto_model(nn.Linear(1, 1), colour="red")


@pytest.mark.parametrize(
    ("text", "hosts", "other"),
    [
        ("a1,b[2-3]", ["a1", "b2", "b3"], ["a1", "b2", "b3"]),
        ("node[0-1]", ["node0", "node1"], ["node00", "node01"]),
        ("node[098-100]", ["node098", "node099", "node100"], ["node98", "node99", "node100"]),
        ("g[1,3]-[01-02]", ["g1-01", "g1-02", "g3-01", "g3-02"], ["g1-", "g3-", "01-02"]),
    ],
)
def test_host_lists(text: str, hosts: list[str], other: list[str]) -> None:
    from ignite.distributed.comp_models import native

    assert expand_hostlist(text) == hosts
    assert native._expand_hostlist(text) == other
