"""NCCL (gloo on the CPU) with one rank: what idist adds to a call of torch.distributed, and that both give the same."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import reference.idist as idist
from benchmarks.on_gpu.rows import Rows, arguments
from benchmarks.turns import alternating
from benchmarks.worlds import raw

SIZES = {"4 KiB": 2**10, "1 MiB": 2**18, "64 MiB": 2**24}  # float32 values


def main() -> None:
    """Join a world of one, and measure in turns."""
    given = arguments()
    backend = "nccl" if given.device == "cuda" else "gloo"
    rows = Rows(f"{backend}, one rank", given)
    idist.initialize(backend)
    for title, count in SIZES.items():
        x = torch.randn(count, device=idist.device())
        calls = 3 if given.quick else 100 if count < 2**20 else 30
        for name, ours, theirs in (
            ("all_reduce", lambda x=x: idist.all_reduce(x), lambda x=x: raw.all_reduce(x)),
            ("all_gather", lambda x=x: idist.all_gather(x), lambda x=x: raw.all_gather(x)),
            ("broadcast", lambda x=x: idist.broadcast(x, src=0), lambda x=x: raw.broadcast(x)),
        ):
            a, b = torch.as_tensor(ours()), theirs()
            same = torch.equal(a.reshape(-1), b.reshape(-1))
            seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
            for side in alternating(4, tuple(seconds)):
                seconds[side] += _timed(ours if side == "ours" else theirs, calls, given.device)
            mine, other = (statistics.median(seconds[side]) * 1e6 for side in ("ours", "theirs"))
            note = f"torch.distributed: {other:,.1f} us; out of place as idist's is"
            rows.add(
                f"{name}, {title}",
                f"{mine:,.1f} us",
                note if same else f"{note}; another result",
                None if same else False,
            )
    idist.finalize()


def _timed(call: Callable[[], Any], calls: int, device: str) -> list[float]:
    """Seconds of each call, to the end of its work on the device."""
    found = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return found


if __name__ == "__main__":
    main()
