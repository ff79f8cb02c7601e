"""Records and plans made up for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from experiments.plan import Planned
from experiments.records import Cell, Git, Host, Measured, Record, Settings, Times

HOST = {"name": "here", "system": "Linux", "processor": "two cores", "cores": 2, "memory_bytes": 2**30}
GIT = {"revision": "0" * 40, "dirty": False}


def cell(**changes: Any) -> Cell:
    values = {"program": "idist", "backend": "gloo", "launcher": "torchrun", "processes": 2, **changes}
    return Cell.model_validate(values)


def measured(step_s: Sequence[float], of: Cell | None = None, **changes: Any) -> dict[str, Any]:
    of = of or cell()
    rank = {
        "threads": 1,
        "cpu_s": 1.0,
        "loop_s": 2.0,
        "peak_memory_bytes": 2**20,
        "peak_device_memory_bytes": None,
    }
    return {
        "schema_version": 1,
        "program": of.program,
        "backend": of.backend,
        "world_size": of.world_size,
        "device": "cpu",
        "parameters": 10,
        "steps_per_epoch": len(step_s),
        "step_s": list(step_s),
        "losses": [1.0 / (1 + number) for number in range(len(step_s))],
        "replicas_equal": True,
        "accuracy": 0.5,
        "n_evaluated": 100,
        "evaluation_s": 0.1,
        "train_s": sum(step_s),
        "ranks": [{"rank": number, **rank} for number in range(of.world_size)],
        "communication": {
            "bytes_per_step": 40,
            "steps": len(step_s),
            "total_bytes": 40 * len(step_s),
            "how": "so",
        },
        "data": {"title": "digits", "checksum": "sha256:1", "train_images": 1438, "test_images": 359},
        "versions": {"python": "3.11", "torch": "2.0"},
        "host": HOST,
        "git": GIT,
        **changes,
    }


def record(step_s: Sequence[float] = (0.5, 0.5), of: Cell | None = None, **changes: Any) -> Record:
    of = of or cell()
    values: dict[str, Any] = {
        "cell": of,
        "state": "ok",
        "reason": "finished",
        "exit_code": 0,
        "command": ["launchers/torchrun.sh"],
        "environment": {"NP": "2"},
        "line": "NP=2 launchers/torchrun.sh",
        "preset": "smoke",
        "warmup": 0,
        "order": 1,
        "started": 1.0,
        "times": Times(rendezvous_s=1.0, first_step_s=2.0, wall_s=3.0),
        "host": Host.model_validate(HOST),
        "git": Git.model_validate(GIT),
        "measured": Measured.model_validate(measured(step_s, of)),
        **changes,
    }
    return Record(**values)


def planned(order: int, *command: str, **changes: Any) -> Planned:
    """A start whose command is made up."""
    repeat = changes.pop("repeat", order)
    of = cell(repeat=repeat, settings=Settings(), **changes.pop("cell", {}))
    return Planned(
        cell=of, order=order, command=list(command), environment={"NP": "2"}, with_environment=[], **changes
    )
