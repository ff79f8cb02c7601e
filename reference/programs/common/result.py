"""result.json of a program: what all ranks measured, and what it was measured on. Fields: experiments/records.py, `Measured`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from reference.cifar10.manifest import of_this_machine
from reference.files import write_json
from reference.programs.common.task import Task
from reference.programs.common.world import World

SCHEMA = 1
_HOW = (
    "worked out: the gradients of all parameters, once a step, as each rank gives them to all-reduce; a ring sends "
    "2 (n - 1) / n of that over the network for n ranks; buckets do not change the sum"
)


def write_result(task: Task, world: World, net: nn.Module, rows: list[list[float]], *, head: int) -> None:
    """Write the file and one line for people; rank 0 only.

    Args:
        net: the trained model, unwrapped.
        rows: of each rank, as `loop.finish` puts them together: `head` facts, then all step times, then all losses.
    """
    steps = range(head, head + task.steps)
    losses = range(head + task.steps, head + 2 * task.steps)
    payload = sum(p.numel() * p.element_size() for p in net.parameters() if p.requires_grad)
    payload = payload if world.size > 1 else 0
    correct, counted = (sum(row[column] for row in rows) for column in (0, 1))
    step_s = [max(row[column] for row in rows) for column in steps]
    result: dict[str, Any] = {
        "schema_version": SCHEMA,
        "program": world.program,
        "backend": world.backend,
        "world_size": world.size,
        "device": _device(world.device),
        "parameters": sum(p.numel() for p in net.parameters() if p.requires_grad),
        "steps_per_epoch": task.steps_per_epoch,
        "step_s": step_s,
        "losses": [sum(row[column] for row in rows) / world.size for column in losses],
        "replicas_equal": len({(row[8], row[9]) for row in rows}) == 1,
        "accuracy": correct / counted,
        "n_evaluated": round(counted),
        "evaluation_s": max(row[2] for row in rows),
        "train_s": max(row[3] for row in rows),
        "ranks": [_rank(rank, row, world.device) for rank, row in enumerate(rows)],
        "communication": {
            "bytes_per_step": payload,
            "steps": task.steps,
            "total_bytes": payload * task.steps,
            "how": _HOW,
        },
        "data": {
            "title": task.images.title,
            "checksum": task.images.checksum,
            "train_images": len(task.train),
            "test_images": len(task.test),
        },
        **_machine(),
    }
    write_json(Path(task.options.output_path) / "result.json", result)
    speed = task.options.batch_size * task.steps / result["train_s"]
    print(
        f"{world.program}, {world.backend}, {world.size} ranks: loss {result['losses'][-1]:.4f}, accuracy "
        f"{result['accuracy']:.4f} of {result['n_evaluated']:,} images, {speed:.0f} images/s",
        flush=True,
    )


def _device(device: torch.device) -> str:
    if device.type != "xla":
        return device.type
    from torch_xla import runtime  # is there, as the training ran on it

    return f"xla ({runtime.device_type()})"  # the CPU simulates what is not there


def _rank(rank: int, row: list[float], device: torch.device) -> dict[str, Any]:
    return {
        "rank": rank,
        "threads": round(row[5]),
        "cpu_s": row[4],
        "loop_s": row[3],
        "peak_memory_bytes": round(row[6]) * 1024,
        "peak_device_memory_bytes": round(row[7]) * 1024 if device.type == "cuda" else None,
    }


def _machine() -> dict[str, Any]:
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    facts = of_this_machine()
    return {
        "versions": facts["versions"],
        "git": facts["git"],
        "host": {**facts["host"], "devices": devices},
    }
