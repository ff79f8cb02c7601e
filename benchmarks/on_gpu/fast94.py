"""`--preset=fast94`: how long, and how accurate; and on a machine with several GPUs, what more of them bring."""

from __future__ import annotations

import torch

from benchmarks.on_gpu.rows import Given, Rows, arguments
from benchmarks.on_gpu.trainer import train


def main() -> None:
    """The preset on one GPU, then on 2, 4, ... of them: strong scaling, as the global batch stays what it is."""
    given = arguments()
    rows = Rows("--preset=fast94", given)
    one = train(given, "one", preset="fast94")
    learns = given.dataset != "fake"
    note = f"{one['n_evaluated']:,} test images ({given.dataset}), after epoch {one['epoch']}"
    rows.add(
        "accuracy", f"{one['val_metrics']['Accuracy']:.4f}", note if learns else f"{note}: nothing to learn"
    )
    rows.add(
        "training, without evaluation",
        f"{one['train_time_s']:.1f} s",
        f"{one['throughput_images_per_s']:,.0f} images/s",
    )
    rows.add(
        "from command to end", f"{one['wall_time_s']:.1f} s", f"{one['time_to_first_step_s']:.1f} s to the first step"
    )  # fmt: skip
    rows.add("share of a step for its batch", f"{100 * one['input_share']:.1f} %")
    backend, what = ("nccl", "GPUs") if given.device == "cuda" else ("gloo", "processes")
    for count in more(given):
        several = train(given, str(count), preset="fast94", backend=backend, nproc_per_node=count)
        speedup = one["train_time_s"] / several["train_time_s"]
        rows.add(
            f"training on {count} {what}",
            f"{several['train_time_s']:.1f} s",
            f"{speedup:.2f} times as fast as one, {100 * speedup / count:.0f} % of {count} times; "
            f"accuracy {several['val_metrics']['Accuracy']:.4f}",
        )


def more(given: Given) -> list[int]:
    """2, 4, ... GPUs of this machine, which share a batch of 512 evenly; two processes for a trial without one."""
    there = torch.cuda.device_count() if given.device == "cuda" else 2
    return [2**power for power in range(1, there.bit_length())]


if __name__ == "__main__":
    main()
