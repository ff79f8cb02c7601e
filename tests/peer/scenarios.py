"""The same calls through our idist and through pytorch-ignite's, beside each other in one gloo world of two.

Each scenario is a function of (api, rank), where api is one of the two modules; it gives a plain value.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ignite.distributed as theirs
import torch
from torch import nn
from torch.utils.data import RandomSampler, TensorDataset

import reference.idist as ours
from tests.conformance.world import World

Scenario = Callable[[ModuleType, int], Any]
NINE, TEN = TensorDataset(torch.arange(9)), TensorDataset(torch.arange(10))


def raised(call: Callable[[], Any]) -> str:
    """The name of the error's type, or "nothing"."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return "nothing"


def _changed_by_all_reduce(api: ModuleType, rank: int) -> list[float]:
    x = torch.tensor([1.0 + rank])
    api.all_reduce(x)
    return x.tolist()


def _of_group_zero(api: ModuleType, rank: int) -> Any:
    return api.all_gather(rank + 5, group=api.new_group([0]))


def _only(api: ModuleType, rank: int) -> Any:
    return api.one_rank_only(rank=1, with_barrier=True)(lambda: "value")()


def _first(api: ModuleType, rank: int) -> Any:
    with api.one_rank_first():
        return rank


def _averaged_gradient(api: ModuleType, rank: int) -> list[float]:
    model = api.auto_model(nn.Linear(1, 1, bias=False).double())
    optimizer = api.auto_optim(torch.optim.SGD(model.parameters(), lr=1.0))
    before = next(model.parameters()).detach().clone()
    model(torch.tensor([[2.0 + rank]], dtype=torch.float64)).sum().backward()
    optimizer.step()
    return (before - next(model.parameters()).detach()).flatten().tolist()


def _samples(api: ModuleType, data: TensorDataset = TEN, **kwargs: Any) -> list[list[int]]:
    return [batch.tolist() for (batch,) in api.auto_dataloader(data, **kwargs)]


def _touches_generator(api: ModuleType, rank: int) -> bool:
    before = torch.get_rng_state()
    list(api.DistributedProxySampler(RandomSampler(TEN)))
    return not torch.equal(torch.get_rng_state(), before)


def _bad_keyword(api: ModuleType, rank: int) -> str:
    return raised(
        lambda: api.auto_optim(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0), colour="red")
    )


SAME: dict[str, Scenario] = {
    "ranks": lambda api, rank: (
        api.get_rank(),
        api.get_local_rank(),
        api.get_world_size(),
        api.get_nproc_per_node(),
    ),
    "nodes": lambda api, rank: (api.get_nnodes(), api.get_node_rank(), api.hostname(), str(api.device())),
    "backend": lambda api, rank: (api.backend(), api.model_name()),
    "SUM": lambda api, rank: api.all_reduce(torch.tensor([1.5 + rank, 2.0])).tolist(),
    "PRODUCT": lambda api, rank: api.all_reduce(torch.tensor([1.5 + rank]), "PRODUCT").tolist(),
    "MIN": lambda api, rank: api.all_reduce(torch.tensor([5 - rank]), "MIN").tolist(),
    "MAX": lambda api, rank: api.all_reduce(torch.tensor([5 - rank]), "MAX").tolist(),
    "AND": lambda api, rank: api.all_reduce(torch.tensor([6 - rank], dtype=torch.int32), "AND").tolist(),
    "sum of floats": lambda api, rank: api.all_reduce(0.1 * (rank + 1)),
    "gather tensor": lambda api, rank: api.all_gather(torch.full((1, 2), rank)).tolist(),
    "gather 0-d": lambda api, rank: api.all_gather(torch.tensor(rank)).tolist(),
    "gather numbers": lambda api, rank: api.all_gather(rank + 0.5),
    "gather strings": lambda api, rank: api.all_gather("ab" * rank),
    "gather objects": lambda api, rank: api.all_gather({"rank": [rank]}),
    "gather shapes": lambda api, rank: [
        x.tolist()
        for x in api.all_gather_tensors_with_shapes(torch.full((rank + 1, 2), rank), [[1, 2], [2, 2]])
    ],
    "broadcast tensor": lambda api, rank: api.broadcast(torch.tensor([rank + 3.0]), src=1).tolist(),
    "broadcast string": lambda api, rank: api.broadcast(f"from {rank}", src=1),
    "broadcast Path": lambda api, rank: str(api.broadcast(Path(f"p{rank}"), src=1)),
    "broadcast safely": lambda api, rank: api.broadcast("x" if rank == 0 else None, src=0, safe_mode=True),
    "one_rank_only": _only,
    "one_rank_first": _first,
    "gradients": _averaged_gradient,
    "wrong type": lambda api, rank: raised(lambda: api.all_reduce("text")),
    "wrong op": lambda api, rank: raised(lambda: api.all_reduce(torch.ones(1), "NO")),
    "wrong ranks": lambda api, rank: raised(lambda: api.new_group((0, 1))),
    "batches": lambda api, rank: _samples(api, batch_size=4, shuffle=False)[:2],
    "divided workers": lambda api, rank: api.auto_dataloader(TEN, batch_size=4, num_workers=3).num_workers,
}

# name -> (scenario, our values on rank 0 and 1, theirs)
DIFFERENT: dict[str, tuple[Scenario, list[Any], list[Any]]] = {
    "all_reduce leaves its input alone": (_changed_by_all_reduce, [[1.0], [2.0]], [[3.0], [3.0]]),
    "all_reduce of ints beyond 64 bits": (
        lambda api, rank: raised(lambda: api.all_reduce(2**70)) == "nothing",
        [True] * 2,
        [False] * 2,
    ),
    "broadcast of a float is exact": (
        lambda api, rank: api.broadcast(0.1 * (1 - rank)),
        [0.1] * 2,
        [0.10000000149011612] * 2,
    ),
    "broadcast of an int is exact": (
        lambda api, rank: api.broadcast((2**24 + 1) * (1 - rank)),
        [2**24 + 1] * 2,
        [2.0**24] * 2,
    ),
    "a rank outside the group gets a list, too": (_of_group_zero, [[5], [6]], [[5], 6]),
    "batch sizes that do not divide": (
        lambda api, rank: raised(lambda: api.auto_dataloader(TEN, batch_size=3)),
        ["ValueError"] * 2,
        ["nothing"] * 2,
    ),
    "no shuffling unless asked": (
        lambda api, rank: sorted(_samples(api, batch_size=4)[0]) == [rank, rank + 2],
        [True] * 2,
        [False] * 2,
    ),
    "each sample once without shuffle": (
        lambda api, rank: sorted(
            i for batch in _samples(api, NINE, batch_size=4, shuffle=False) for i in batch
        ),
        [[0, 2, 4, 6, 8], [1, 3, 5, 7]],
        [[0, 2, 4, 6, 8], [0, 1, 3, 5, 7]],
    ),
    "the global generator stays": (_touches_generator, [False] * 2, [True] * 2),
    "keywords without use": (_bad_keyword, ["ValueError"] * 2, ["nothing"] * 2),
}


def run(local_rank: int, folder: str) -> list[dict[str, Any]]:
    """{name: value} of each library, of both ranks."""
    theirs.sync()  # takes up the process group that ours made
    found: list[dict[str, Any]] = []
    for api in (ours, theirs):
        values = {name: scenario(api, local_rank) for name, scenario in SAME.items()}
        values |= {name: scenario(api, local_rank) for name, (scenario, *_) in DIFFERENT.items()}
        values["one_rank_first, the leader raises"] = _leader_raises(
            api, local_rank, Path(folder) / api.__name__
        )
        found.append(values)
    return [{"ours": mine, "theirs": other} for mine, other in ours.all_gather(tuple(found))]


def _leader_raises(api: ModuleType, rank: int, folder: Path) -> str:
    """How the rank that comes second fares when the first one raises: "raises", or "waits"."""
    folder.mkdir(exist_ok=True)
    world = World(backend="gloo", size=2, rank=rank, scratch=folder, limit=60)

    def work() -> None:
        with contextlib.suppress(RuntimeError, KeyError), api.one_rank_first():
            raise KeyError(rank)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(2 if rank == 1 else None)
    waits = thread.is_alive()
    if any(world.exchange("waits", waits)) and rank == 0:
        api.barrier()  # sets the other free
    thread.join()
    return "waits" if waits else "goes on"
