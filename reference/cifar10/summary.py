"""The one-screen summary at the end of a run."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.markup import escape


def show(result: dict[str, Any], console: Console | None = None) -> None:
    """Print how a run ended, from the content of its result.json."""
    console = console or Console()
    console.rule("Run summary", align="left", style="default")
    for name, value in rows(result):
        console.print(f"[bold]{name:<14}[/]{escape(value)}", soft_wrap=True, highlight=False)


def rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    """The lines of the summary: what they are called, and what they say."""
    folder = os.path.relpath(result["run_directory"])
    val, train, speed = result["val_metrics"], result["train_metrics"], result["throughput_images_per_s"]
    lines = [
        ("ended", f"{result['exit_reason']} after iteration {result['iteration']:,}, epoch {result['epoch']}")
    ]
    if val is not None:
        counted = f"{result['n_evaluated']:,} test images of {result['data']}"
        lines.append(("accuracy", f"{val['Accuracy']:.4f} on {counted}"))
        lines.append(("loss", f"{val['Loss']:.4f} on the same images"))
    else:
        lines.append(("accuracy", "not evaluated: the run ended before its first evaluation"))
    if train is not None:
        how = "as they were trained on" if result["train_metrics_mode"] == "running" else "in an extra pass"
        lines.append(
            (
                "training",
                f"accuracy {train['Accuracy']:.4f}, loss {train['Loss']:.4f} on training images, {how}",
            )
        )
    if speed is not None:
        steps = f"step {result['step_p50_s']:.3f} s (p50), {result['step_p95_s']:.3f} s (p95)"
        lines.append(("speed", f"{speed:,.0f} images/s over all {result['world_size']} processes, {steps}"))
        lines.append(("input", f"{result['input_share']:.1%} of that time went into getting batches ready"))
    first = result["time_to_first_step_s"]
    took = f"{result['wall_time_s']:.1f} s in all" + (
        "" if first is None else f", {first:.1f} s to the first step"
    )
    if result["train_time_s"]:
        took += f", {result['train_time_s']:.1f} s of training"
    lines.append(("time", took))
    lines.append(("run directory", folder))
    lines.append(("look at it", f"tensorboard --logdir {folder}"))
    if result["checkpoint"] is not None and result["exit_reason"] != "finished":
        lines.append(
            ("go on", f"python -m reference.cifar10 run --resume_from={folder} and the options of before")
        )
    return lines
