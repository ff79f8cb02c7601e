"""The trainer beside pytorch-ignite's CIFAR-10 example and beside plain PyTorch: speed, accuracy, time from command to end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.results import ResultError, Row, Samples
from benchmarks.starting import Bench, shown

RANKS = 2
BATCH_SIZE = 512  # global
TRAIN_IMAGES = 10_240
TEST_IMAGES = 5_000
EPOCHS = 3
LEARNING_RATE = 0.05  # the example's 0.4 is for five epochs of 98 steps; here are three of twenty
SEED = 543  # of the first start; each later one has the next number
AT_LEAST = 1.5  # times the images per second of a peer

QUICK = {
    "batch_size": 16,
    "max_train_samples": 480,
    "max_eval_samples": 256,
    "num_epochs": 2,
    "learning_rate": 0.01,
}

TITLE = "Training: this trainer, pytorch-ignite's example, plain PyTorch"
TEXT = (
    f"ResNet-18 of torchvision for {EPOCHS} epochs on {TRAIN_IMAGES:,} images, global batch {BATCH_SIZE}, {RANKS} gloo ranks under torchrun, "
    "one thread a rank, SGD with Nesterov's momentum 0.9, weight decay 1e-4, one epoch of warm-up to a learning rate of "
    f"{LEARNING_RATE:g}, then down to 0. The peers are `benchmarks/peers/ignite_cifar10.py`, which writes anew what pytorch-ignite's "
    "documentation shows, and `benchmarks/peers/plain_torch.py`, which uses DistributedDataParallel alone. Both augment image by image "
    "with torchvision on PIL images in one loader process a rank; the images come from the same uint8 arrays as the trainer's, so that "
    "no JPEG is decoded. "
    "Speed is measured by the same class on all sides (`reference.metrics.Throughput`): images trained on after ten steps, by "
    "the seconds of the slowest rank in the training loop, loader included, evaluation left out. "
    f"Accuracy is that on the same {TEST_IMAGES:,} test images after the last epoch. Every start has a seed of its own, the same on all "
    "sides, which however draw their random numbers differently: so the accuracies of one seed differ as those of two seeds do, and after so few steps "
    "by much; the row shows that they are of one kind, not which is better. "
    "The time from command to end holds start-up, training, evaluation of the test images, checkpoints and TensorBoard (plain PyTorch: checkpoint only). "
    "Bare steps are what the arithmetic allows: two processes with a thread each take steps on batches in their memory, with the trainer's "
    "memory layout and optimizer, without loader or communication; no side can be faster than that in fp32, and a peer that reaches the share s of it leaves no more than 1 / s to gain. Where the processor has units for "
    "bf16, the trainer runs with `--with_amp=bf16` as well. "
    "pytorch-ignite's example evaluates all training images as well; those seconds are taken off its time, and shown in a row of their own."
)  # fmt: skip


class Side(NamedTuple):
    """A program, what people call it, and where its result is."""

    program: str
    title: str
    fixed: tuple[str, ...] = ()


OURS = Side("reference.cifar10", "this trainer", ("run",))
BF16 = Side("reference.cifar10", "this trainer in bf16", ("run", "--with_amp=bf16"))
IGNITE = Side("benchmarks.peers.ignite_cifar10", "pytorch-ignite", ("--evaluate_train",))
PLAIN = Side("benchmarks.peers.plain_torch", "plain PyTorch")


class Run(NamedTuple):
    """One start: images/s, accuracy, and seconds from the command to the end without evaluating the training set."""

    speed: float
    accuracy: float = 0.0
    seconds: float = 0.0
    evaluation_train_s: float = 0.0


def measure(bench: Bench) -> list[Row]:
    """Train on each side in turns, `bench.repeats` times."""
    sides = [OURS, IGNITE, PLAIN]
    if torch.cpu._is_avx512_bf16_supported():
        sides.append(BF16)
    else:
        bench.say("bf16: this processor has no units for it, and would be slower: left out")
    calls: list[Callable[[], Run]] = [partial(_train, bench, side, count(SEED)) for side in sides]
    bare, *runs = bench.in_turns(partial(_bare, bench), *calls)
    found = dict(zip(sides, runs, strict=True))
    rows = []
    for side in (OURS, BF16):
        for peer in (IGNITE, PLAIN) if side in found else ():
            rows += _rows(bench, side, found[side], peer, found[peer])
    for side in (OURS, IGNITE, PLAIN):
        rows.append(
            Row(
                name="images a second, of what bare steps reach", unit="images/s", ours=_samples(found[side], "speed"),
                theirs=_samples(bare, "speed"), what=side.title, than="bare steps", command=_command(bench, side),
            )
        )  # fmt: skip
    rows.append(
        Row(
            name="evaluation of the training set at the end, pytorch-ignite's example",
            unit="s",
            ours=_samples(found[IGNITE], "evaluation_train_s"),
            what=IGNITE.title,
            command=_command(bench, IGNITE),
        )
    )
    return rows


def _samples(runs: list[Run], value: str) -> Samples:
    return [[getattr(run, value)] for run in runs]


def _rows(bench: Bench, side: Side, ours: list[Run], peer: Side, theirs: list[Run]) -> list[Row]:
    def row(name: str, unit: str, value: str, at_least: float | None = None) -> Row:
        return Row(
            name=name, unit=unit, ours=_samples(ours, value), theirs=_samples(theirs, value), what=side.title, than=peer.title,
            at_least=at_least, command=_command(bench, side),
        )  # fmt: skip

    return [
        row("images a second", "images/s", "speed", AT_LEAST),
        row("accuracy on the test images", "", "accuracy"),
        row("from command to end", "s", "seconds"),
    ]


def _bare(bench: Bench) -> Run:
    out = bench.new_folder("bare-output")
    size, steps = (4, 2) if bench.quick else (BATCH_SIZE // RANKS, 20)
    sizes = (f"--batch_size={size}", f"--steps={steps}", f"--output={out}")
    bench.start(
        "torchrun", RANKS, "-m", "benchmarks.worlds.bare", *sizes, env={"OMP_NUM_THREADS": "1"}, name="bare"
    )
    speed = float(json.loads((out / "bare.json").read_text(encoding="utf-8"))["images_per_s"])
    bench.say(f"bare steps: {speed:.0f} images/s")
    return Run(speed=speed)


def _options(bench: Bench, side: Side, seed: int) -> list[str]:
    settings: dict[str, Any] = {
        "batch_size": BATCH_SIZE, "max_train_samples": TRAIN_IMAGES, "max_eval_samples": TEST_IMAGES, "num_epochs": EPOCHS,
        "learning_rate": LEARNING_RATE,
    }  # fmt: skip
    if bench.quick:
        settings |= QUICK
    elif bench.data_path is None:  # the digits are fewer
        settings |= {"max_train_samples": 1_024, "max_eval_samples": 359}
    given = [f"--{name}={value}" for name, value in settings.items()]
    return [*side.fixed, "--backend=gloo", *bench.dataset, *given, "--threads=1", f"--seed={seed}"]


def _command(bench: Bench, side: Side) -> str:
    return shown("torchrun", RANKS, "-m", side.program, *_options(bench, side, SEED))


def _train(bench: Bench, side: Side, seeds: Iterator[int]) -> Run:
    out = bench.new_folder(f"{side.program.rpartition('.')[2]}-output")
    program = ["-m", side.program, *_options(bench, side, next(seeds)), f"--output_path={out}"]
    start = bench.start("torchrun", RANKS, *program, name=side.program)
    result = read_result(out)
    extra = result.get("evaluation_train_s") or 0.0
    accuracy = result["accuracy"] if "accuracy" in result else result["val_metrics"]["Accuracy"]
    run = Run(
        speed=result["throughput_images_per_s"],
        accuracy=accuracy,
        seconds=start.seconds - extra,
        evaluation_train_s=extra,
    )
    bench.say(f"{side.title}: {run.speed:.0f} images/s, accuracy {accuracy:.3f}, {run.seconds:.0f} s")
    return run


def read_result(folder: Path) -> dict[str, Any]:
    """The one result.json under a folder: in it, or in the run directory that the trainer made in it.

    Raises:
        ResultError: there is none, or the run ended before anything was measured.
    """
    files = [*folder.glob("result.json"), *folder.glob("*/result.json")]
    if len(files) != 1:
        raise ResultError(f"{folder} has {len(files)} result.json, must be 1")
    content: dict[str, Any] = json.loads(files[0].read_text(encoding="utf-8"))
    if content["throughput_images_per_s"] is None:
        raise ResultError(
            f"{files[0]}: no step after the warm-up, so no speed: more images or epochs are needed"
        )
    return content
