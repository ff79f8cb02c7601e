"""What it costs to evaluate the whole training set, as pytorch-ignite's example does, beside metrics of the batches trained on."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import ResultError, Row
from benchmarks.starting import Bench, shown
from benchmarks.training import RANKS, read_result

TRAIN_IMAGES = 2_048
TEST_IMAGES = 512
BATCH_SIZE = 128  # global
EPOCHS = 2
MODES = ("full", "running")

TITLE = "Evaluation of the training set"
TEXT = (
    "`--train_metrics=full` runs the model over all training images once more for their accuracy and loss; `running`, the default, takes "
    f"both from the batches as they were trained on, which costs no pass. ResNet-18, {TRAIN_IMAGES:,} training and {TEST_IMAGES:,} test images, "
    f"{EPOCHS} epochs, each of them validated, global batch {BATCH_SIZE}, {RANKS} gloo ranks with one thread each; starts take turns. "
    "The whole training is the time from the end of the first step to the end of the run. An image costs less in an evaluation than in training, as there is "
    "no backward pass; the ratio of the two is in the second row, from the same runs with `full`."
)

_LINE = re.compile(r"Epoch \d+ - (train|val) metrics \((\d+\.\d+) s\)")


class Run(NamedTuple):
    """Seconds of the training after its first step, seconds for an image in training, and in each evaluation of the training set."""

    seconds: float
    image_s: float
    evaluated_image_s: list[float]


def measure(bench: Bench) -> list[Row]:
    """Both modes, starts in turns."""
    full, running = bench.in_turns(*(partial(_train, bench, mode) for mode in MODES))
    command = shown("torchrun", RANKS, "-m", "reference.cifar10", "run", *_options(bench, "full"))
    return [
        Row(
            name="whole training, each epoch evaluated",
            unit="s",
            ours=[[run.seconds] for run in full],
            theirs=[[run.seconds] for run in running],
            what="--train_metrics=full",
            than="--train_metrics=running",
            command=command,
        ),
        Row(
            name="seconds for a thousand images",
            unit="s",
            ours=[[1000 * seconds for seconds in run.evaluated_image_s] for run in full],
            theirs=[[1000 * run.image_s] for run in full],
            what="in an evaluation",
            than="in training",
            command=command,
        ),
    ]


def _sizes(bench: Bench) -> dict[str, Any]:
    if bench.quick:
        return {"max_train_samples": 128, "max_eval_samples": 32, "batch_size": 32, "num_epochs": 2}
    train = TRAIN_IMAGES if bench.data_path is not None else 1_408  # the digits are fewer
    test = TEST_IMAGES if bench.data_path is not None else 256
    return {
        "max_train_samples": train,
        "max_eval_samples": test,
        "batch_size": BATCH_SIZE,
        "num_epochs": EPOCHS,
    }


def _options(bench: Bench, mode: str) -> list[str]:
    sizes = [f"--{name}={value}" for name, value in _sizes(bench).items()]
    return ["--backend=gloo", *bench.dataset, *sizes, "--threads=1", "--learning_rate=0.05", "--validate_every=1",
            f"--train_metrics={mode}"]  # fmt: skip


def _train(bench: Bench, mode: str) -> Run:
    out = bench.new_folder(f"{mode}-output")
    bench.start(
        "torchrun",
        RANKS,
        "-m",
        "reference.cifar10",
        "run",
        *_options(bench, mode),
        f"--output_path={out}",
        name=mode,
    )
    result = read_result(out)
    run = Path(result["run_directory"])
    passes = evaluation_seconds((run / "logs" / "rank-0.log").read_text(encoding="utf-8"))
    sizes = _sizes(bench)
    wanted = sizes["num_epochs"] if mode == "full" else 0
    if (len(passes["train"]), len(passes["val"])) != (wanted, sizes["num_epochs"]):
        raise ResultError(f"{run}: evaluations {passes} are not one an epoch")
    seconds = result["wall_time_s"] - result["time_to_first_step_s"]
    bench.say(f"--train_metrics={mode}: {seconds:.1f} s after the first step")
    return Run(
        seconds,
        1 / result["throughput_images_per_s"],
        [spent / sizes["max_train_samples"] for spent in passes["train"]],
    )


def evaluation_seconds(log: str) -> dict[str, list[float]]:
    """Seconds of each evaluation pass that a run's log tells of: of the training set (`train`), of the test set (`val`)."""
    found: dict[str, list[float]] = {"train": [], "val": []}
    for name, seconds in _LINE.findall(log):
        found[name].append(float(seconds))
    return found
