"""The same cells in TensorBoard and ClearML: their parameters, their numbers, and the curves of each start."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from experiments.records import Measured, Record

Scalar = Callable[[str, str, float, int], None]  # title, series, value, step


def parameters(record: Record) -> dict[str, str | int | float]:
    """What was run, as the trackers list it."""
    cell = record.cell.model_dump(exclude={"settings"})
    return {**cell, **record.cell.settings.model_dump(exclude={"data_path"}, exclude_none=True)}


def numbers(record: Record, measured: Measured) -> dict[str, float]:
    """What came out: the median speed after the warm-up, accuracy, start, memory."""
    found = {
        "accuracy": measured.accuracy,
        "memory_MiB": max(rank.peak_memory_bytes for rank in measured.ranks) / 2**20,
    }
    steps = measured.step_s[record.warmup :]
    if steps:
        found["images_per_s"] = record.cell.settings.batch_size / float(np.median(steps))
    if record.times.first_step_s is not None:
        found["first_step_s"] = record.times.first_step_s
    return found


def to_tensorboard(records: Iterable[Record], folder: Path) -> int:
    """Write event files, a folder for each start that was measured.

    Returns:
        How many.
    """
    from torch.utils.tensorboard import SummaryWriter

    count = 0
    for record, measured in _measured(records):
        with SummaryWriter(str(folder / record.cell.name)) as writer:

            def scalar(
                title: str, series: str, value: float, step: int, writer: SummaryWriter = writer
            ) -> None:
                writer.add_scalar(f"{title}/{series}", value, step)

            _curves(record, measured, scalar)
            results = {f"result/{name}": value for name, value in numbers(record, measured).items()}
            writer.add_hparams(parameters(record), results, run_name=".")
        count += 1
    return count


def to_clearml(records: Iterable[Record], project: str) -> int:
    """Make a ClearML task of each start that was measured; with CLEARML_OFFLINE_MODE=1 without a server.

    Returns:
        How many.

    Raises:
        ImportError: clearml is not installed.
    """
    from reference.handlers.clearml import clearml_task

    task_class = clearml_task("experiments report --clearml")
    count = 0
    for record, measured in _measured(records):
        task = task_class.init(
            project_name=project,
            task_name=record.cell.name,
            reuse_last_task_id=False,
            auto_connect_arg_parser=False,
            auto_connect_frameworks=False,
            auto_resource_monitoring=False,
        )
        task.connect(parameters(record), name="cell")
        logger = task.get_logger()
        _curves(record, measured, lambda *one, logger=logger: logger.report_scalar(*one))
        for name, value in numbers(record, measured).items():
            logger.report_single_value(name, value)
        task.close()
        count += 1
    return count


def _measured(records: Iterable[Record]) -> Iterable[tuple[Record, Measured]]:
    return ((record, record.measured) for record in records if record.measured is not None)


def _curves(record: Record, measured: Measured, scalar: Scalar) -> None:
    batch = record.cell.settings.batch_size
    for step, (loss, seconds) in enumerate(zip(measured.losses, measured.step_s, strict=True), start=1):
        scalar("training", "loss", loss, step)
        scalar("training", "images_per_s", batch / seconds, step)
