"""Matrix runs made up for tests: folders of records whose numbers are known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.records import FailedRank, Measured, Record, Times, write_record
from tests.experiments import made

STEPS = 12
LOSSES = [2.0 - 0.1 * step for step in range(STEPS)]
LOG = "\x1b[31mreading\x1b[0m </pre><script>document.title = 'owned'</script>\r\nValueError: no such thing\n"


def starts(
    step_s: float,
    *,
    first_step_s: float = 10.0,
    repeats: int = 3,
    order: int = 1,
    losses: Sequence[float] = LOSSES,
    changes: dict[str, Any] | None = None,
    **cell: Any,
) -> list[Record]:
    """Good repeats of one cell, each one in a thousand slower than the one before."""
    found = []
    for repeat in range(1, repeats + 1):
        of = made.cell(repeat=repeat, **cell)
        drift = 1 + 0.001 * (repeat - 1)
        measured = made.measured([step_s * drift] * len(losses), of, losses=list(losses), **(changes or {}))
        found.append(
            made.record(
                of=of,
                order=order + 100 * repeat,
                times=Times(rendezvous_s=first_step_s / 2, first_step_s=first_step_s * drift, wall_s=60.0),
                measured=Measured.model_validate(measured),
            )
        )
    return found


def failed(order: int = 90, **cell: Any) -> Record:
    """A start whose rank 1 died."""
    return made.record(
        of=made.cell(**cell),
        order=order,
        state="failed",
        reason="rank 1 on here exited with code 7",
        exit_code=7,
        failed=FailedRank(host="here", rank=1, exit_code=7, log="logs/here-rank-1.log"),
        logs=["logs/launcher.log", "logs/here-rank-1.log"],
        measured=None,
    )


def skipped(order: int = 91, **cell: Any) -> Record:
    """A start that was not made."""
    return made.record(
        of=made.cell(**cell),
        order=order,
        state="skipped",
        reason="needs 2 NVIDIA GPUs, this machine has 0",
        exit_code=None,
        started=None,
        times=Times(),
        measured=None,
    )


def write(folder: Path, *records: Record) -> Path:
    """Write records as a matrix run leaves them; failed ones with logs."""
    for record in records:
        place = folder / "cells" / record.cell.name
        write_record(place, record)
        for name in record.logs:
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(LOG if "rank" in name else "the launcher's lines\n", newline="")
    return folder


def whole(folder: Path) -> Path:
    """A run with everything in it: every state, two world sizes, curves that agree and one that does not."""
    near = [loss * (1 + 1e-6) for loss in LOSSES]
    off = [loss * 1.01 for loss in LOSSES]
    return write(
        folder,
        *starts(1.0, program="idist", backend="none", launcher="plain", processes=1, order=1),
        *starts(0.625, program="native_ddp", order=2),
        *starts(0.625, program="idist", order=3),
        *starts(0.8, program="ignite", order=4),
        *starts(0.64, program="idist", launcher="spawn", order=5, first_step_s=15.0),
        *starts(0.64, program="idist", launcher="torch_distributed_launch", order=6),
        *starts(0.5, program="idist", backend="horovod", launcher="horovodrun", order=7, losses=near),
        *starts(0.5, program="horovod_native", backend="horovod", launcher="horovodrun", order=8, losses=off),
        failed(program="idist", backend="xla-tpu", launcher="spawn"),
        skipped(program="idist", backend="nccl"),
    )
