"""What is Horovod's own: how worlds start and end, its groups and deadlines, and its optimizer against a single process."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import reference.idist as idist
from reference.idist.backends import horovod_meeting as meeting
from reference.idist.backends.horovod import HorovodBackend
from reference.idist.environment import Layout

MISSING = HorovodBackend.missing("horovod")
pytestmark = pytest.mark.timeout(
    500
)  # a hang, not a slow machine: a world of Horovod takes its time to start
needs_horovod = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
ROOT = Path(__file__).parents[2]
RANKS = 3
STEPS = 5
LIMIT = 8.0  # seconds; the deadline in worlds where something goes wrong
OPS = {"SUM": torch.sum, "PRODUCT": torch.prod, "MIN": torch.amin, "MAX": torch.amax}


# -- what needs no world ---------------------------------------------------------------------------------------------
def test_missing_says_which_command_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    missing = HorovodBackend.missing("horovod")
    assert missing is not None and "make env BACKEND=horovod" in missing and "not installed" in missing


def test_an_extension_that_does_not_load_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())

    def load(name: str) -> Any:
        raise ImportError("mpi_lib_v2.so: undefined symbol: _ZN5torch3abcE\nand more")

    monkeypatch.setattr(importlib, "import_module", load)
    missing = HorovodBackend.missing("horovod")
    assert missing is not None and "\n" not in missing
    assert "does not load" in missing and "undefined symbol" in missing and torch.__version__ in missing


def test_places_of_uneven_nodes() -> None:
    places = [meeting.places(rank, ["a", "b", "a", "b", "a"]) for rank in range(5)]
    fields = ["RANK", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME"]
    told = [tuple(place[f"HOROVOD_{field}"] for field in fields) for place in places]
    assert told == [
        ("0", "0", "3", "0", "2", "node0"),
        ("1", "0", "2", "1", "2", "node1"),
        ("2", "1", "3", "0", "2", "node0"),
        ("3", "1", "2", "1", "2", "node1"),
        ("4", "2", "3", "0", "1", "node0"),  # the only third process of a node
    ]


@needs_horovod
def test_ranks_that_do_not_come_are_named(free_board: meeting.Board) -> None:
    errors: dict[int, str] = {}

    def come(rank: int) -> None:
        with pytest.raises(RuntimeError) as error:
            meeting.meet(free_board, layout(rank=rank, world_size=4), timeout=1.5)
        errors[rank] = str(error.value)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert errors.keys() == {0, 2}
    for rank, error in errors.items():
        assert f"rank {rank} of 4 could not meet the others" in error and "within 1.5 s" in error
        assert error.endswith("no word from rank 1, 3")


@needs_horovod
def test_failed_ranks_hear_who_is_silent(free_board: meeting.Board) -> None:
    free_board.write("failed.0.1", "failed")
    assert meeting.silent(free_board, "0", 0, [0, 1]) == ""
    assert meeting.silent(free_board, "0", 0, [0, 1, 2, 3]) == " (no word from rank 2, 3)"


@needs_horovod
def test_a_busy_port_is_said(free_board: meeting.Board) -> None:
    with pytest.raises(RuntimeError, match=f"port {free_board.port}: .*in use.*: choose one that is free"):
        meeting.serve("127.0.0.1", free_board.port)


@pytest.fixture
def free_board() -> Iterator[meeting.Board]:
    server = meeting.serve("127.0.0.1", 0)
    yield meeting.Board(host="127.0.0.1", port=server.server_port, world=0)
    server.shutdown()
    server.server_close()


def layout(**fields: Any) -> Layout:
    unknown = dict.fromkeys(["nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port"])
    return Layout(**{**unknown, "local_rank": 0, "source": "openmpi", **fields})


@pytest.mark.parametrize(("address", "lacking"), [(None, "MASTER_ADDR"), ("node0", "MASTER_PORT")])
def test_without_a_place_to_meet(monkeypatch: pytest.MonkeyPatch, address: str | None, lacking: str) -> None:
    monkeypatch.delenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", raising=False)
    with pytest.raises(ValueError, match=rf"openmpi tells none\): {lacking} is not set; .*horovodrun"):
        meeting.open_board(layout(rank=0, world_size=2, master_addr=address))


def test_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_GLOO_RENDEZVOUS_ADDR", raising=False)
    with pytest.raises(ValueError, match=r"under torchrun.*use horovodrun, srun or mpirun"):
        meeting.open_board(layout(rank=0, world_size=2, source="torchrun"))


@pytest.mark.parametrize("own", ["127.0.1.1", "unknown"])
def test_an_own_name_that_others_cannot_reach(monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    def resolve(name: str) -> str:
        if own == "unknown":
            raise socket.gaierror("Name or service not known")
        return own

    monkeypatch.delenv("HOROVOD_GLOO_IFACE", raising=False)
    monkeypatch.setattr(socket, "gethostbyname", resolve)
    with pytest.raises(RuntimeError, match="set HOROVOD_GLOO_IFACE"):
        meeting.check_own_name()
    monkeypatch.setenv("HOROVOD_GLOO_IFACE", "eth1")
    meeting.check_own_name()


@needs_horovod
def test_what_spawn_cannot_do_is_refused_before_it_starts() -> None:
    with pytest.raises(ValueError, match="init_method='file:///x'"):
        idist.spawn("horovod", print, nproc_per_node=2, init_method="file:///x")
    with pytest.raises(ValueError, match="rank=0 is not an argument of backend 'horovod'"):
        idist.Parallel("horovod", rank=0)


# -- one world of three processes, in which everything is tried --------------------------------------------------------
@pytest.fixture(scope="module")
def seen() -> list[dict[str, Any]]:
    """What each rank of the world saw."""
    if MISSING is not None:
        pytest.skip(MISSING)
    return idist.spawn("horovod", try_everything, nproc_per_node=RANKS, timeout=60)


def try_everything(local_rank: int) -> list[dict[str, Any]]:
    torch.set_num_threads(1)
    seen: dict[str, Any] = {"layout": layout_seen()}
    for name, attempt in {**ATTEMPTS, **{f"train {name}": training for name in TRAININGS}}.items():
        seen[name] = attempt(name.removeprefix("train ")) if attempt is training else attempt()
    return idist.all_gather(seen)


def layout_seen() -> list[Any]:
    numbers = [idist.get_rank(), idist.get_local_rank(), idist.get_world_size()]
    nodes = [idist.get_nproc_per_node(), idist.get_nnodes(), idist.get_node_rank()]
    return [idist.backend(), idist.model_name(), *numbers, *nodes]


def operand(rank: int, dtype: torch.dtype) -> Tensor:
    """Numbers that need every bit of the dtype."""
    if dtype.is_floating_point:
        return torch.tensor([1 / (rank + 3), -2.5 - rank, 1e30], dtype=dtype)
    return torch.tensor([torch.iinfo(dtype).max // 4 - rank, -5 - rank, 1], dtype=dtype)


def primitives() -> dict[str, Any]:
    """Tensors from the backend itself, with a group and without."""
    backend, rank = idist.current(), idist.get_rank()
    pair = backend.new_group([0, 2])
    results: dict[str, Any] = {}
    for group, handle in ("all", None), ("pair", pair):
        if group == "pair" and rank == 1:
            continue
        for dtype, op in itertools.product((torch.int32, torch.int64, torch.float32, torch.float64), OPS):
            x = operand(rank, dtype)
            results[f"{group} {dtype} {op}"] = backend.all_reduce(x, op, handle)
            assert torch.equal(x, operand(rank, dtype))
        for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.float16, torch.complex64, torch.int64):
            row = (torch.arange(6).view(2, 3) + rank).to(dtype)
            results[f"{group} gather {dtype}"] = backend.all_gather(row, handle)
            if handle is None:
                results[f"all broadcast {dtype}"] = backend.broadcast(row, 2)
        results[f"{group} gather 0-d"] = backend.all_gather(torch.tensor(rank + 0.5), handle)
    results["all broadcast 0-d"] = backend.broadcast(torch.tensor(rank + 0.5), 1)
    return results


def groups() -> dict[str, Any]:
    backend, rank = idist.current(), idist.get_rank()
    found: dict[str, Any] = {
        "all ranks": backend.group_ranks(idist.new_group([2, 1, 0])),
        "twice": idist.new_group([0, 2]) is idist.new_group([0, 2]),
        "pair": backend.group_ranks(idist.new_group([0, 2])),
        "sum": idist.all_reduce(rank + 1, group=[0, 2]),
        "texts": idist.all_gather("é" * 40 * (rank + 1), group=[0, 2]),
        "alone": idist.all_gather(rank, group=[1]),
    }
    with pytest.raises(ValueError, match=r"new_group\(\[\d, \d\]\): another rank asks for other ranks"):
        idist.new_group([0, 1] if rank else [1, 2])
    with pytest.raises(ValueError, match="timeout has no meaning"):
        idist.new_group([0, 1], timeout=3)
    with pytest.raises(ValueError, match="is no group"):
        idist.all_reduce(1, group="everyone")
    return found


def mismatches() -> float:
    """Different shapes are an error at once, on every rank, and the world lives on."""
    with pytest.raises(
        idist.CollectiveError, match=r"horovod: all_reduce failed on rank \d of 3: Mismatched"
    ):
        idist.all_reduce(torch.ones(2 + idist.get_rank()))
    return idist.all_reduce(1.5)


def own_calls() -> list[float]:
    """The user's own Horovod calls, also between ours."""
    import horovod.torch as hvd

    handle = hvd.allreduce_async(torch.full((2,), float(hvd.rank())), op=hvd.Sum, name="idist")
    total = idist.all_reduce(torch.ones(2))
    return [*hvd.synchronize(handle).tolist(), *total.tolist()]


class Odd(nn.Module):
    """Parameters and buffers of every kind, different on every rank."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        self.zero_d = nn.Parameter(torch.tensor(rank + 1.0))
        self.bf16 = nn.Parameter(torch.full((3,), rank + 0.25, dtype=torch.bfloat16))
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.frozen = nn.Parameter(torch.full((2,), float(rank)), requires_grad=False)
        self.register_buffer("count", torch.tensor(2**60 + rank))
        self.register_buffer("mask", torch.tensor([rank == 0, rank == 1]))
        self.register_buffer("hidden", torch.full((2,), rank + 0.5), persistent=False)


def models() -> dict[str, Any]:
    torch.manual_seed(idist.get_rank())
    model = idist.auto_model(Odd(idist.get_rank()))
    with pytest.raises(ValueError, match="auto_model: find_unused_parameters has no meaning"):
        idist.auto_model(nn.Linear(1, 1), find_unused_parameters=True)
    tensors = dict(itertools.chain(model.named_parameters(), model.named_buffers()))
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def optimizers() -> dict[str, Any]:
    """State and options of rank 0, and what is refused."""
    rank = idist.get_rank()
    parameter = nn.Parameter(torch.ones(2))
    plain = torch.optim.Adam([parameter], lr=0.5 if rank else 0.125)
    if rank == 0:
        parameter.grad = torch.ones(2)
        plain.step()
        plain.zero_grad()
    wrapped = idist.auto_optim(plain)
    scheduler = torch.optim.lr_scheduler.StepLR(wrapped, step_size=1, gamma=0.5)
    calls: list[int] = []
    wrapped.register_step_post_hook(lambda *_: calls.append(1))
    parameter.sum().backward()
    wrapped.step()
    scheduler.step()
    again = torch.optim.Adam([nn.Parameter(torch.ones(2))])
    again.load_state_dict(wrapped.state_dict())
    wrapped.add_param_group({"params": nn.Parameter(torch.ones(1))})
    for keywords, wrong in ({"momentum": 1, "op": None}, "momentum"), ({"fp16": 1}, "fp16"):
        with pytest.raises(ValueError, match=f"auto_optim: {wrong} has no meaning with backend='horovod'"):
            idist.auto_optim(plain, **keywords)
    with pytest.raises(ValueError, match="already"):
        idist.auto_optim(wrapped)
    return {
        "class": isinstance(wrapped, torch.optim.Adam),
        "lr": scheduler.get_last_lr(),
        "steps": again.state_dict()["state"][0]["step"].item(),
        "exp_avg": again.state_dict()["state"][0]["exp_avg"],
        "hooks": calls,
        "added": wrapped.param_groups[1]["lr"],
    }


ATTEMPTS = {f.__name__: f for f in (primitives, groups, mismatches, own_calls, models, optimizers)}


def test_layout(seen: list[dict[str, Any]]) -> None:
    expected = [["horovod", "horovod-dist", rank, rank, RANKS, RANKS, 1, 0] for rank in range(RANKS)]
    assert [rank["layout"] for rank in seen] == expected


@pytest.mark.parametrize(("group", "ranks"), [("all", [0, 1, 2]), ("pair", [0, 2])])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.float32, torch.float64], ids=str)
def test_reductions(
    seen: list[dict[str, Any]], group: str, ranks: list[int], op: str, dtype: torch.dtype
) -> None:
    operands = torch.stack([operand(rank, dtype) for rank in ranks])
    expected = operands.clone()[0]
    for row in operands[1:]:
        expected = OPS[op](torch.stack([expected, row]), dim=0).to(dtype)  # wraps around as the dtype does
    for rank in ranks:
        found = seen[rank]["primitives"][f"{group} {dtype} {op}"]
        assert found.dtype is dtype
        if dtype.is_floating_point:
            torch.testing.assert_close(found, expected, rtol=4 * torch.finfo(dtype).eps, atol=0)
        else:
            assert torch.equal(found, expected)
        assert torch.equal(found, seen[ranks[0]]["primitives"][f"{group} {dtype} {op}"])


@pytest.mark.parametrize(("group", "ranks"), [("all", [0, 1, 2]), ("pair", [0, 2])])
def test_gathering_and_broadcast_of_every_dtype(
    seen: list[dict[str, Any]], group: str, ranks: list[int]
) -> None:
    for dtype in (torch.bool, torch.uint8, torch.bfloat16, torch.float16, torch.complex64, torch.int64):
        rows = torch.stack([(torch.arange(6).view(2, 3) + rank).to(dtype) for rank in range(RANKS)])
        for rank in ranks:
            assert torch.equal(seen[rank]["primitives"][f"{group} gather {dtype}"], rows[ranks])
            assert torch.equal(seen[rank]["primitives"][f"all broadcast {dtype}"], rows[2])
    for rank in ranks:
        assert seen[rank]["primitives"][f"{group} gather 0-d"].tolist() == [other + 0.5 for other in ranks]
        assert torch.equal(seen[rank]["primitives"]["all broadcast 0-d"], torch.tensor(1.5))


def test_groups(seen: list[dict[str, Any]]) -> None:
    texts = ["é" * 40, "é" * 120]
    for rank, found in enumerate(result["groups"] for result in seen):
        inside = rank != 1
        assert found == {
            "all ranks": (0, 1, 2),
            "twice": True,
            "pair": (0, 2) if inside else (),
            "sum": 4 if inside else 2,
            "texts": texts if inside else ["é" * 80],
            "alone": [rank],
        }


def test_a_mismatch_is_an_error_and_no_end(seen: list[dict[str, Any]]) -> None:
    assert [result["mismatches"] for result in seen] == [4.5] * RANKS


def test_own_horovod_calls_do_not_disturb_ours(seen: list[dict[str, Any]]) -> None:
    assert [result["own_calls"] for result in seen] == [[3.0, 3.0, 3.0, 3.0]] * RANKS


def test_models_start_as_rank_zero_s(seen: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    model = Odd(0)
    tensors = dict(itertools.chain(model.named_parameters(), model.named_buffers()))
    for result in seen:
        assert result["models"].keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert result["models"][name].dtype is tensor.dtype
            assert torch.equal(result["models"][name], tensor), name


def test_optimizers_start_as_rank_zero_s(seen: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(seen):
        found = result["optimizers"]
        assert found["class"] and found["lr"] == [0.0625] and found["steps"] == 2 and found["hooks"] == [1]
        torch.testing.assert_close(found["exp_avg"], torch.full((2,), 0.19))  # 0.9 * 0.1 + 0.1
        assert found["added"] == (0.5 if rank else 0.125)  # what it was made with


# -- training, compared with one process -------------------------------------------------------------------------------
class Net(nn.Module):
    def __init__(self, seed: int, spare: bool = False) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 3)
        self.spare = nn.Linear(7, 3) if spare else None
        self.double()

    def forward(self, x: Tensor, spare: bool = False) -> Tensor:
        hidden = torch.tanh(self.first(x))
        return self.second(hidden) + (self.spare(hidden) if spare and self.spare else 0)


def batch(step: int, rank: int | None) -> tuple[Tensor, Tensor]:
    """Four samples of a rank, or those of all of them."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(RANKS, 4, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(RANKS, 4, 3, generator=generator, dtype=torch.float64)
    return (x.flatten(0, 1), y.flatten(0, 1)) if rank is None else (x[rank], y[rank])


def loss_of(net: nn.Module, step: int, rank: int | None, **kwargs: Any) -> Tensor:
    x, y = batch(step, rank)
    return functional.mse_loss(net(x, **kwargs), y)


def plainly(net: nn.Module, optimizer: Any, step: int, rank: int | None) -> None:
    optimizer.zero_grad()
    loss_of(net, step, rank).backward()
    optimizer.step()


def in_two_passes(net: nn.Module, optimizer: Any, step: int, rank: int | None) -> None:
    optimizer.zero_grad()
    for part in (step, step + 100):
        (loss_of(net, part, rank) / 2).backward()
    optimizer.step()


def without_sync(net: nn.Module, optimizer: Any, step: int, rank: int | None) -> None:
    optimizer.zero_grad()
    if rank is None:
        (loss_of(net, step, rank) / 2).backward()
    else:
        with optimizer.no_sync():
            (loss_of(net, step, rank) / 2).backward()
    (loss_of(net, step + 100, rank) / 2).backward()
    optimizer.step()


def clipped(net: nn.Module, optimizer: Any, step: int, rank: int | None) -> None:
    optimizer.zero_grad()
    loss_of(net, step, rank).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.05)
    optimizer.step()


def clipped_as_horovod_says(net: nn.Module, optimizer: Any, step: int, rank: int | None) -> None:
    if rank is None:
        return clipped(net, optimizer, step, rank)
    optimizer.zero_grad()
    loss_of(net, step, rank).backward()
    optimizer.synchronize()
    nn.utils.clip_grad_norm_(net.parameters(), 0.05)
    with optimizer.skip_synchronize():
        optimizer.step()


def scaled(net: nn.Module, optimizer: Any, step: int, rank: int | None) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer.zero_grad()
    scaler.scale(loss_of(net, step, rank)).backward()
    scaler.step(optimizer)
    scaler.update()


def with_closure(net: nn.Module, optimizer: Any, step: int, rank: int | None) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(net, step, rank)
        loss.backward()
        return loss

    optimizer.step(closure)


def without_some_parameters(net: nn.Module, optimizer: Any, step: int, rank: int | None) -> None:
    """Rank 1 alone uses the spare layer."""
    optimizer.zero_grad()
    if rank is None:
        losses = [loss_of(net, step, other, spare=other == 1) for other in range(RANKS)]
        torch.stack(losses).mean().backward()
    else:
        loss_of(net, step, rank, spare=rank == 1).backward()
    optimizer.step()


def without_a_batch(net: nn.Module, optimizer: Any, step: int, rank: int | None) -> None:
    """Rank 2 has run out of batches and only steps."""
    optimizer.zero_grad()
    if rank is None:
        losses = [loss_of(net, step, other) for other in range(RANKS - 1)]
        (torch.stack(losses).sum() / RANKS).backward()
    elif rank != 2:
        loss_of(net, step, rank).backward()
    optimizer.step()


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def lbfgs(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.LBFGS(parameters, lr=0.1, max_iter=3)


TRAININGS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "plainly": (plainly, sgd, {}),
    "predivided": (plainly, sgd, {"gradient_predivide_factor": 2.0}),
    "grouped": (plainly, sgd, {"groups": 2}),
    "in two passes, each averaged": (in_two_passes, sgd, {}),
    "in two passes, averaged once": (in_two_passes, sgd, {"backward_passes_per_step": 2}),
    "without sync": (without_sync, sgd, {}),
    "clipped": (clipped, sgd, {}),
    "clipped as Horovod says": (clipped_as_horovod_says, sgd, {}),
    "scaled": (scaled, sgd, {}),
    "with a closure": (with_closure, sgd, {}),
    "with a closure, many times": (with_closure, lbfgs, {}),
    "without some parameters": (without_some_parameters, sgd, {}),
    "without a batch": (without_a_batch, sgd, {}),
    "compressed": (plainly, sgd, {"compression": "fp16"}),
    "two nets": (plainly, sgd, {}),
}


def training(name: str) -> list[Tensor]:
    """Parameters after some steps on this rank's batches; different at the start on each rank."""
    import horovod.torch as hvd

    step_once, make, kwargs = TRAININGS[name]
    if "compression" in kwargs:
        kwargs = {"compression": hvd.Compression.fp16}
    rank = idist.get_rank()
    net = idist.auto_model(Net(seed=rank, spare="parameters" in name))
    optimizer = idist.auto_optim(make(net.parameters()), **kwargs)
    if name == "two nets":
        other = idist.auto_model(Net(seed=rank))
        others = idist.auto_optim(make(other.parameters()))
        for step in range(STEPS):
            for each in optimizer, others:
                each.zero_grad()
            (loss_of(net, step, rank) + loss_of(other, step, rank)).backward()
            optimizer.step()
            others.step()
        for ours, same in zip(net.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(ours, same, rtol=0, atol=1e-12)  # summed in another order
        return [p.detach() for p in net.parameters()]
    for step in range(STEPS):
        step_once(net, optimizer, step, rank)
    return [p.detach() for p in net.parameters()]


@pytest.mark.parametrize("name", TRAININGS)
def test_training_is_that_of_one_process(seen: list[dict[str, Any]], name: str) -> None:
    step_once, make, _ = TRAININGS[name]
    oracle = Net(seed=0, spare="parameters" in name)
    optimizer = make(oracle.parameters())
    for step in range(STEPS):
        step_once(oracle, optimizer, step, None)
    tolerance = 1e-3 if name == "compressed" else 1e-12
    for result in seen:
        parameters = result[f"train {name}"]
        for ours, theirs, same in zip(parameters, oracle.parameters(), seen[0][f"train {name}"], strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=tolerance)
            assert torch.equal(ours, same)
    if name == "compressed":
        exact = [
            torch.equal(a, b) for a, b in zip(seen[0][f"train {name}"], oracle.parameters(), strict=True)
        ]
        assert not all(exact)


# -- worlds that others start ------------------------------------------------------------------------------------------
PROGRAM = """
import json, os, sys
import reference.idist as idist
from tests.idist.test_horovod import PROGRAMS
PROGRAMS[sys.argv[1]](*sys.argv[2:])
"""


def adopted(folder: str) -> None:
    """The user's own hvd.init(). No other world follows: Horovod's server may still tell it the addresses of this one."""
    import horovod.torch as hvd

    assert idist.backend() is None
    hvd.init()
    seen = [
        layout_seen(),
        idist.all_reduce(idist.get_rank() + 1),
        idist.all_gather("a" * (idist.get_rank() + 1)),
    ]
    idist.sync()
    seen.append(layout_seen())
    rank = hvd.rank()
    hvd.shutdown()
    seen.append(layout_seen())
    Path(folder, str(rank)).write_text(json.dumps(seen))


def joined_twice(folder: str) -> None:
    """One world after another, each with a group."""
    import horovod.torch as hvd

    before, seen = dict(os.environ), []
    for _ in range(2):
        idist.initialize("horovod", timeout=40)
        rank = idist.get_rank()
        group = idist.new_group([0, 2])
        crossed = [hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()]
        seen.append([layout_seen(), crossed, idist.all_reduce(rank, group=group), idist.all_gather(rank)])
        idist.finalize()
        assert idist.backend() is None and dict(os.environ) == before
    idist.initialize("horovod", timeout=40)
    with pytest.raises(ValueError, match="is no group"):
        idist.all_reduce(1, group=group)  # of a world that has ended
    idist.finalize()
    Path(folder, str(rank)).write_text(json.dumps(seen))


def goes_wrong(fault: str, folder: str, nproc: int = 2) -> None:
    with idist.Parallel("horovod", nproc_per_node=nproc, timeout=LIMIT) as parallel:
        parallel.run(wrong_on_rank_one, fault, folder)


def wrong_on_rank_one(local_rank: int, fault: str, folder: str) -> None:
    net = idist.auto_model(Net(seed=0))
    optimizer = idist.auto_optim(sgd(net.parameters()))
    plainly(net, optimizer, 0, local_rank)
    Path(folder, f"{os.getpid()}").touch()
    idist.barrier()
    if local_rank == 1:
        if fault == "raise":
            raise KeyError("rank one broke")
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "absent":
            time.sleep(600)
        if fault == "uneven":
            idist.all_gather("this rank has no more batches")
    if fault == "wait":
        Path(folder, "ready").touch()
        time.sleep(600)
    for step in range(3):
        plainly(net, optimizer, step, local_rank)


PROGRAMS = {f.__name__: f for f in (adopted, joined_twice, goes_wrong)}


def start(*arguments: str, launcher: tuple[str, ...] = (), **variables: str) -> subprocess.Popen[str]:
    """A process of PROGRAM, in a process group of its own."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "SLURM_", "OMPI_"))}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": path, **variables}
    return subprocess.Popen(
        [*launcher, sys.executable, "-c", PROGRAM, *arguments],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ends(process: subprocess.Popen[str], within: float = 400) -> str:
    """What it printed. If it hangs, it is killed with all that it started."""
    try:
        return process.communicate(timeout=within)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"no end within {within} s: {process.communicate()[0]}") from None


def left(folder: Path) -> list[int]:
    """The ranks that still run, a moment after their world has ended."""
    pids = [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
    assert len(pids) == 2
    for _ in range(100):
        running = [pid for pid in pids if Path(f"/proc/{pid}/stat").exists()]
        running = [
            pid
            for pid in running
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        ]
        if not running:
            break
        time.sleep(0.1)
    return running


@needs_horovod
def test_horovodrun_and_an_adopted_world(tmp_path: Path) -> None:
    process = start("adopted", str(tmp_path), launcher=("horovodrun", "-np", "2"))
    output = ends(process)
    assert process.returncode == 0, output
    for rank in range(2):
        own, total, texts, synced, after = json.loads((tmp_path / str(rank)).read_text())
        assert own == synced == ["horovod", "horovod-dist", rank, rank, 2, 2, 1, 0]
        assert (total, texts) == (3, ["a", "aa"])
        assert after == [None, "serial", 0, 0, 1, 1, 1, 0]


@needs_horovod
def test_two_uneven_nodes_under_slurm_twice(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    step = {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "3",
        "SLURM_STEP_NUM_NODES": "2",
    }
    step |= {
        "SLURM_STEP_TASKS_PER_NODE": "2,1",
        "SLURM_STEP_NODELIST": "node[0-1]",
        "HOROVOD_GLOO_IFACE": "lo",
    }
    step |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    places = [("0", "0", "0"), ("1", "1", "0"), ("2", "0", "1")]
    processes = [
        start(
            "joined_twice", str(tmp_path), SLURM_PROCID=rank, SLURM_LOCALID=local, SLURM_NODEID=node, **step
        )
        for rank, local, node in places
    ]
    outputs = [ends(process) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], "\n".join(outputs)
    crossed = [[0, 2, 0, 2], [1, 2, 0, 1], [0, 1, 1, 2]]  # local rank and size, cross rank and size
    for rank, local, node in places:
        numbers = [int(rank), int(local), 3, 2 if node == "0" else 1, 2, int(node)]
        total = 1 if rank == "1" else 2
        once = [["horovod", "horovod-dist", *numbers], crossed[int(rank)], total, [0, 1, 2]]
        assert json.loads((tmp_path / rank).read_text()) == [once, once]


@needs_horovod
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("raise", r"local rank 1 failed first: Traceback .*KeyError: 'rank one broke'$"),
        ("kill", r"local rank 1 failed first: killed by SIGKILL$"),
        (
            "absent",
            r"averaging of gradients failed on rank 0 of 2: no answer within 8 s \(no word from rank 1\)$",
        ),
        ("uneven", r"(averaging of gradients|all_gather) failed on rank . of 2: no answer within 8 s$"),
    ],
    ids=["raise", "kill", "absent", "uneven"],
)
def test_faults(tmp_path: Path, fault: str, expected: str) -> None:
    process = start("goes_wrong", fault, str(tmp_path))
    output = ends(process)
    assert process.returncode == 1
    assert re.search(expected, output.strip(), re.DOTALL), output
    assert not left(tmp_path)


@needs_horovod
def test_nothing_is_left_when_the_parent_is_killed(tmp_path: Path) -> None:
    process = start("goes_wrong", "wait", str(tmp_path))
    for _ in range(1000):
        if (tmp_path / "ready").exists():
            break
        time.sleep(0.1)
    process.kill()
    assert "rank" not in ends(process)
    (tmp_path / "ready").unlink()
    assert not left(tmp_path)
