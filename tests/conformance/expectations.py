"""What backends differ in: the only place that knows.

Everything that is not listed here has to work, in the same way, on every backend.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

import torch

SERIAL = "serial"
BACKENDS = (SERIAL, "gloo", "nccl", "mpi", "horovod", "xla-tpu")


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """The backend can't do it, and says so: the check has to raise this on every rank."""

    error: str  # name of the exception's type
    text: str  # regular expression that the whole message matches

    def matches(self, error: BaseException) -> bool:
        return (
            type(error).__name__ == self.error and re.fullmatch(self.text, str(error), re.DOTALL) is not None
        )


# (backend, pattern of check names) -> the refusal, or in one line why the check can't even be asked there.
DIFFERENCES: dict[tuple[str, str], Refusal | str] = {
    (SERIAL, "reinitialize"): "one process has no world to leave",
    (SERIAL, "adopt"): "one process has no world to adopt",
    ("xla-tpu", "finalize"): "XLA's runtime ends with its process, which has several replicas",
    ("xla-tpu", "reinitialize"): "XLA's runtime starts once in a process",
    ("xla-tpu", "adopt"): "XLA's runtime starts once in a process",
}


def expected(backend: str, world: int, check: str) -> Refusal | str | None:
    """What is declared for a check; None: it works."""
    for (name, pattern), difference in DIFFERENCES.items():
        if name == backend and fnmatch.fnmatchcase(check, pattern):
            return difference
    return None


def world_sizes(backend: str) -> tuple[int, ...]:
    """The world sizes that this machine can run."""
    if backend == SERIAL:
        return (1,)
    if backend == "mpi":
        return ()  # only mpirun starts its processes
    sizes = (1, 2, 4)
    return tuple(n for n in sizes if n <= torch.cuda.device_count()) if backend == "nccl" else sizes


def deadline(backend: str) -> float:
    """Seconds for a whole world, start included."""
    return 1200.0 if backend == "xla-tpu" else 400.0
