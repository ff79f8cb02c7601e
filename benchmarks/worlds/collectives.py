"""idist's collectives and the library's own, in blocks that take turns, on two ranks or more.

    NP=2 launchers/torchrun.sh -m benchmarks.worlds.collectives --backend=gloo --output=DIR
    NP=2 launchers/horovodrun.sh -m benchmarks.worlds.collectives --backend=horovod --output=DIR

Before a case is measured, both sides' results are compared on every rank. Each rank writes `DIR/rank-N.json`: for each case and
side the microseconds of a call (its block's mean), one number a block.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import reference.idist as idist
from benchmarks.turns import alternating
from benchmarks.worlds import raw
from benchmarks.worlds.sizes import SIZES
from reference.files import write_json

QUICK_SIZES = ("8 B", "4 KiB", "1 MiB")
TEXTS = ("8 B", "4 KiB", "1 MiB")
HOROVOD_SIZES = ("8 B", "1 MiB", "16 MiB")
# calls in a block: some tens of milliseconds, whatever the size
_CALLS = {8: 150, 2**12: 100, 2**20: 20, 2**24: 2, 2**26: 1}
_FEW = 100
_NAME = "benchmark"  # without one, Horovod negotiates every call anew; idist gives one too


@dataclass(frozen=True, kw_only=True)
class Case:
    """One collective, called in two ways that have the same result.

    Args:
        name: "all_reduce, 8 B".
        calls: of a block.
        ours, theirs: the call; its result is compared, None is not.
    """

    name: str
    calls: int
    ours: Callable[[], Any]
    theirs: Callable[[], Any]


def main() -> None:
    """Meet, measure and write the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worlds.collectives", allow_abbrev=False)
    parser.add_argument("--backend", choices=("gloo", "horovod"), required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder")
    parser.add_argument("--blocks", type=int, default=10, help="of each side (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a trial: a few calls of small sizes")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with idist.Parallel(given.backend) as parallel:
        parallel.run(_measure, given)


def _measure(local_rank: int, given: argparse.Namespace) -> None:
    sizes = QUICK_SIZES if given.quick else tuple(SIZES)
    cases = (gloo_cases if given.backend == "gloo" else horovod_cases)(sizes)
    found: dict[str, dict[str, list[float]]] = {}
    for case in cases:
        check(case)
        calls = min(case.calls, 3) if given.quick else case.calls
        found[case.name] = {"ours": [], "theirs": []}
        for side in ("ours", "theirs"):
            _block(getattr(case, side), calls)  # does not count
        for side in alternating(given.blocks, ("ours", "theirs")):
            found[case.name][side].append(_block(getattr(case, side), calls))
    write_json(given.output / f"rank-{idist.get_rank()}.json", found)


def _block(call: Callable[[], Any], calls: int) -> float:
    idist.barrier()
    begin = perf_counter()
    for _ in range(calls):
        call()
    return (perf_counter() - begin) / calls * 1e6


def check(case: Case) -> None:
    """Compare the results of both sides.

    Raises:
        RuntimeError: they differ.
    """
    ours, theirs = case.ours(), case.theirs()
    if isinstance(ours, Tensor):
        same = ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    else:
        same = ours == theirs
    if not same:
        raise RuntimeError(f"{case.name}: the results differ on rank {idist.get_rank()}")


def tensor(size: int) -> Tensor:
    """float32, of so many bytes, another one on each rank."""
    generator = torch.Generator().manual_seed(idist.get_rank())
    return torch.rand(size // 4, generator=generator)


def _case(name: str, calls: int, ours: Callable[..., Any], theirs: Callable[..., Any], *given: Any) -> Case:
    return Case(name=name, calls=calls, ours=partial(ours, *given), theirs=partial(theirs, *given))


# ---- gloo


def gloo_cases(sizes: Sequence[str]) -> Iterator[Case]:
    """Every collective beside `torch.distributed`; tensors are made when a case is due, and freed after it."""
    for name in sizes:
        x = tensor(SIZES[name])
        calls = _CALLS[SIZES[name]]
        yield _case(f"all_reduce, {name}", calls, idist.all_reduce, raw.all_reduce, x)
        yield _case(f"all_gather, {name}", calls, idist.all_gather, raw.all_gather, x)
        yield _case(f"broadcast, {name}", calls, idist.broadcast, raw.broadcast, x)
    rank = idist.get_rank()
    yield _case("all_reduce of a number", _FEW, idist.all_reduce, _number, rank + 0.5)
    for name in TEXTS:
        calls = min(_FEW, _CALLS[SIZES[name]])
        text = str(rank) * SIZES[name]
        yield _case(f"all_gather of strings, {name}", calls, idist.all_gather, _objects, text)
    facts = {"rank": rank, "host": "node", "losses": [0.5] * 10, "versions": {"torch": "2"}}
    yield _case("all_gather of dictionaries", _FEW, idist.all_gather, _objects, facts)
    yield _case("barrier", _FEW, idist.barrier, dist.barrier)


def _number(value: float) -> float:
    x = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(x)
    return x.item()


def _objects(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


# ---- Horovod


def horovod_cases(sizes: Sequence[str]) -> Iterator[Case]:
    """The tensor collectives beside Horovod's own."""
    import horovod.torch as hvd

    for name in sizes:
        if name not in HOROVOD_SIZES:
            continue
        x = tensor(SIZES[name])
        # Horovod looks for work once a millisecond: no more calls than that takes
        calls = min(_CALLS[SIZES[name]], 20)
        all_reduce = partial(hvd.allreduce, op=hvd.Sum, name=_NAME)
        yield _case(f"all_reduce, {name}", calls, idist.all_reduce, all_reduce, x)
        yield _case(f"all_gather, {name}", calls, idist.all_gather, partial(hvd.allgather, name=_NAME), x)
        yield _case(
            f"broadcast, {name}", calls, idist.broadcast, partial(hvd.broadcast, root_rank=0, name=_NAME), x
        )


if __name__ == "__main__":
    main()
