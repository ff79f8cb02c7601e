"""`--preset=fast94`: how long, and how accurate."""

from __future__ import annotations

from benchmarks.on_gpu.rows import Rows, arguments
from benchmarks.on_gpu.trainer import train


def main() -> None:
    """One run of the preset."""
    given = arguments()
    rows = Rows("--preset=fast94", given)
    result = train(given, "fast94", preset="fast94")
    accuracy = result["val_metrics"]["Accuracy"]
    learns = given.dataset != "fake"
    note = f"{result['n_evaluated']:,} test images ({given.dataset}), after epoch {result['epoch']}"
    rows.add("accuracy", f"{accuracy:.4f}", note if learns else f"{note}: nothing to learn")
    rows.add(
        "training, without evaluation",
        f"{result['train_time_s']:.1f} s",
        f"{result['throughput_images_per_s']:,.0f} images/s",
    )
    rows.add(
        "from command to end", f"{result['wall_time_s']:.1f} s", f"{result['time_to_first_step_s']:.1f} s to the first step"
    )  # fmt: skip
    rows.add("share of a step for its batch", f"{100 * result['input_share']:.1f} %")


if __name__ == "__main__":
    main()
