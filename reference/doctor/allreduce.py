"""A real all-reduce over all ranks: latency and bandwidth for 8 B to 64 MiB, and whether the value is right."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

import reference.idist as idist

SIZES = (8, 128, 2048, 2**15, 2**19, 2**23, 2**26)  # bytes
_BUDGET = 0.5  # seconds for each size, about
_ROUNDS = 3, 100  # fewest and most


@dataclass(frozen=True, kw_only=True)
class Row:
    """One size. Times are medians of the slowest rank, until the result can be read on the host."""

    bytes: int
    seconds: float
    bus_bandwidth: float  # bytes/s
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Table:
    """The all-reduce of a backend, or why there is none."""

    backend: str
    world_size: int = 0
    device: str = ""
    rows: tuple[Row, ...] = ()
    failed: str | None = None
    remark: str = ""
    versions: dict[str, str] = field(default_factory=dict)  # where the backend has an environment of its own


class WrongValue(RuntimeError):
    """An all-reduce returned something else than the sum."""


def measure(local_rank: int, sizes: Sequence[int] = SIZES) -> Table:
    """Reduce float32 tensors of ``sizes`` bytes over all ranks of the current world; every rank calls this.

    The bus bandwidth is bytes / time * 2 (n - 1) / n, as nccl-tests counts it (PERFORMANCE.md there): what each link
    must carry, whatever the number of ranks n.

    Raises:
        WrongValue: a rank got a wrong sum.
    """
    n, device = idist.get_world_size(), idist.device()
    rows = []
    for size in sizes:
        x = torch.full((size // 4,), float(idist.get_rank() + 1), device=device)
        first = _timed(x, n)
        first = _timed(x, n)  # the first one allocates, connects, compiles
        rounds = min(_ROUNDS[1], max(_ROUNDS[0], int(_BUDGET / idist.all_reduce(first, "MAX"))))
        median = statistics.median([_timed(x, n, check=False) for _ in range(rounds)])
        seconds = idist.all_reduce(median, "MAX")
        rows.append(
            Row(bytes=size, seconds=seconds, bus_bandwidth=size / seconds * 2 * (n - 1) / n, rounds=rounds)
        )
    return Table(
        backend=idist.backend() or "none",
        world_size=n,
        device=_device(device),
        rows=tuple(rows),
        remark=_remark(n, device),
    )


def _timed(x: torch.Tensor, n: int, check: bool = True) -> float:
    """Seconds of one all-reduce of ``x``, which holds rank + 1 everywhere."""
    start = time.perf_counter()
    result = idist.all_reduce(x)
    value = result[-1].item()  # waits for the device
    seconds = time.perf_counter() - start
    expected = n * (n + 1) / 2
    if value != expected or (check and not bool((result == expected).all())):
        raise WrongValue(
            f"the sum of 1 to {n} came out as {value:g} instead of {expected:g}, or not everywhere"
        )
    return seconds


def _remark(n: int, device: torch.device) -> str:
    if device.type == "xla" and os.environ.get("PJRT_DEVICE") == "CPU":
        return "a simulation: the devices are threads on the CPU, and say nothing about a TPU"
    return "" if n > 1 else "one process: nothing is sent, this only shows that the backend starts"


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
