"""What getting batches ready costs, with our pipeline and with the one of tutorials."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import default_collate

from benchmarks.results import Row
from benchmarks.starting import TRAINER, Bench, shown
from benchmarks.turns import alternating
from reference.cifar10 import datasets, per_sample
from reference.cifar10.data import ImageArray, training_batch

TITLE = "Input: images in bulk, and image by image"
TEXT = (
    "A batch of 512 images is cut out of the data set, cropped, flipped and normalised by one process with one thread: as the "
    "trainer does it, and image by image with torchvision's transforms (`--pipeline=torchvision`). Then the trainer itself, with two "
    "gloo processes and ResNet-18, tells which part of its training time passes between asking for a batch and having it "
    "(`input_share` in `result.json`, here in percent), and how fast it trains, with both pipelines, and with torchvision's in a "
    "loader process beside each rank, where the time it takes is that of the cores that train."
)
BATCH, BLOCKS, BATCHES = 512, 10, 5
_WAYS = {
    "batched": ("--pipeline=batched",),
    "torchvision": ("--pipeline=torchvision",),
    "torchvision, a loader process a rank": ("--pipeline=torchvision", "--num_workers=2"),
}


def measure(bench: Bench) -> list[Row]:
    """See `TEXT`."""
    return [_batches(bench), *_trainings(bench)]


def _batches(bench: Bench) -> Row:
    size, blocks = (32, 2) if bench.quick else (BATCH, BLOCKS)
    name = "digits" if bench.data_path is None else "images"
    where = bench.data_path or bench.folder
    datasets.prepare(name, where)
    images = datasets.load(name, where)
    array = ImageArray(images.train)
    singly = per_sample.Images(array, per_sample.training_transform(flip=images.flip))
    prepare = training_batch(543, images.flip, epoch=lambda: 1)
    cpu = torch.device("cpu")

    def in_bulk(places: list[int]) -> Tensor:
        return prepare(array.__getitems__(places), cpu, non_blocking=False)[0]

    def image_by_image(places: list[int]) -> Tensor:
        batch: list[Tensor] = default_collate([singly[place] for place in places])
        return batch[0]

    sides: dict[str, Callable[[list[int]], Tensor]] = {"bulk": in_bulk, "single": image_by_image}
    found: dict[str, list[list[float]]] = {side: [] for side in sides}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for side in alternating(blocks, list(sides)):
            times = []
            for _ in range(BATCHES):
                places = torch.randint(0, len(array), (size,)).tolist()
                begin = time.perf_counter()
                sides[side](places)
                times.append((time.perf_counter() - begin) * 1e6 / size)
            found[side].append(times)
    finally:
        torch.set_num_threads(threads)
    return Row(
        name=f"one image of a batch of {size}", unit="us", ours=found["bulk"], theirs=found["single"], what="in bulk",
        than="torchvision's transforms",
    )  # fmt: skip


def _trainings(bench: Bench) -> list[Row]:
    size = 32 if bench.quick else BATCH
    options = [
        "--backend=gloo", *bench.dataset, "--model=resnet18", f"--batch_size={size}", f"--max_train_samples={16 * size}",
        "--num_epochs=1", "--learning_rate=0.05", "--max_eval_samples=10",
    ]  # fmt: skip
    commands = {name: shown("torchrun", 2, *TRAINER, *options, *way) for name, way in _WAYS.items()}
    runs = bench.in_turns(*(_side(bench, name, [*options, *way]) for name, way in _WAYS.items()))
    results = dict(zip(_WAYS, runs, strict=True))

    def samples(name: str, value: str, factor: float = 1.0) -> list[list[float]]:
        return [[factor * result[value]] for result in results[name]]

    shares = [
        Row(
            name=f"input's share of the time, {name}", unit="%", ours=samples(name, "input_share", 100.0), what="--pipeline",
            at_most=3.0 if name == "batched" else None, command=commands[name],
        )
        for name in _WAYS
    ]  # fmt: skip
    speeds = [
        Row(
            name=f"training, batched against {name}", unit="images/s", ours=samples("batched", "throughput_images_per_s"),
            theirs=samples(name, "throughput_images_per_s"), what="batched", than=name,
        )
        for name in list(_WAYS)[1:]
    ]  # fmt: skip
    return [*shares, *speeds]


def _side(bench: Bench, name: str, options: list[str]) -> Callable[[], dict[str, float]]:
    def run() -> dict[str, float]:
        result = bench.train(2, *options).result
        bench.say(
            f"{name}: {result['input_share']:.2%} input, {result['throughput_images_per_s']:.0f} images/s"
        )
        return result

    return run
