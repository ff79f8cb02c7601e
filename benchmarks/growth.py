"""How memory and time grow with the number of processes, the data set and the length of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.results import ResultError, Row
from benchmarks.starting import Bench, Start, shown
from reference.cifar10 import datasets

TITLE = "Growth"
TEXT = (
    "Memory is the largest resident size of a process (all of it: torch alone is most). *Processes*: "
    "`reference.programs.idist` under torchrun with 1, 2, 4 and 8 gloo processes of one thread each, on digits with a "
    "small model, beside the same with one process; memory is the largest rank's. Eight processes on fewer cores wait for each "
    "other at start-up: the time says so, and has no target. *Data*: the same program with one process, on all 50,000 random "
    "images of `--dataset=fake` beside 1,024 of them (must be the same: both hold the array), and on `fake` beside digits, as memory over "
    "the bytes of the additional images. *Length*: the engine of the CIFAR-10 trainer with all its handlers, a small model and "
    "batches of 16; the last fifth of a run of 20,000 steps beside its first fifth, after a warm-up of one twentieth. Flat is 1."
)
WORLD_SIZES = (1, 2, 4, 8)
STEPS = 20_000
_BATCH = 64
_FEW_STEPS = 4
_IMAGE_BYTES = 32 * 32 * 3
_IDIST = ("-m", "reference.programs.idist")
_LONG = ("-m", "benchmarks.worlds.long_run")


@dataclass(frozen=True, kw_only=True)
class Used:
    """What one start used.

    Args:
        memory: MiB, of the largest rank.
        rendezvous: seconds from the launch until all ranks had met.
    """

    memory: float
    rendezvous: float


def measure(bench: Bench) -> list[Row]:
    """The three parts, one after the other."""
    return [*_processes(bench), *_data(bench), *_length(bench)]


def used(start: Start, out: Path) -> Used:
    """Read what a program and its supervisor wrote.

    Raises:
        ResultError: the ranks never met.
    """
    result: dict[str, Any] = json.loads((out / "result.json").read_text(encoding="utf-8"))
    met = start.times["rendezvous_s"]
    if met is None:
        raise ResultError(f"{start.folder}: the supervisor has not heard of a rendezvous")
    memory = max(rank["peak_memory_bytes"] for rank in result["ranks"]) / 2**20
    return Used(memory=memory, rendezvous=met)


def _run(bench: Bench, launcher: str, processes: int, program: Sequence[str], name: str) -> Used:
    out = bench.new_folder(f"{name}-output")
    start = bench.start(
        launcher, processes, *program, f"--output_path={out}", env={"OMP_NUM_THREADS": "1"}, name=name
    )
    return used(start, out)


# ---- processes


def _processes(bench: Bench) -> list[Row]:
    sizes = WORLD_SIZES[:2] if bench.quick else WORLD_SIZES
    program = [
        *_IDIST,
        "--backend=gloo",
        f"--batch_size={_BATCH}",
        f"--max_train_samples={_FEW_STEPS * _BATCH}",
        "--max_eval_samples=64",
    ]
    found = bench.in_turns(
        *[lambda n=n: _run(bench, "torchrun", n, program, f"{n}-processes") for n in sizes]
    )
    one, *more = found
    rows = []
    for size, starts in zip(sizes[1:], more, strict=True):
        command = shown("torchrun", size, *program, "--output_path=<folder>")
        rows += [
            Row(
                name=f"{size} gloo processes: largest memory of a rank", unit="MiB", ours=[[s.memory] for s in starts],
                theirs=[[s.memory] for s in one], what=f"{size} processes", than="1 process", at_most=1.1, command=command,
            ),
            Row(
                name=f"{size} gloo processes: command to rendezvous", unit="s", ours=[[s.rendezvous] for s in starts],
                theirs=[[s.rendezvous] for s in one], what=f"{size} processes", than="1 process", command=command,
            ),
        ]  # fmt: skip
    return rows


# ---- data


def _data(bench: Bench) -> list[Row]:
    small, large = (128, 1024) if bench.quick else (1024, 50_000)

    def program(dataset: str, wanted: int) -> list[str]:
        return [
            *_IDIST,
            f"--dataset={dataset}",
            "--batch_size=128",
            f"--max_train_samples={wanted}",
            "--max_eval_samples=128",
        ]

    def side(dataset: str, wanted: int) -> Used:
        return _run(bench, "plain", 1, program(dataset, wanted), f"{dataset}-{wanted}")

    digits, few, many = bench.in_turns(
        lambda: side("digits", small), lambda: side("fake", small), lambda: side("fake", large)
    )
    command = shown("plain", 1, *program("fake", large), "--output_path=<folder>")
    more_images = _images("fake") - _images("digits")
    arrays = more_images * _IMAGE_BYTES / 2**20
    return [
        Row(
            name=f"training on {large:,} images: memory", unit="MiB", ours=[[s.memory] for s in many],
            theirs=[[s.memory] for s in few], what=f"{large:,} images", than=f"{small:,} of them", at_most=1.02, command=command,
        ),
        Row(
            name=f"a data set of {more_images:,} images more: more memory", unit="MiB",
            ours=[[a.memory - b.memory] for a, b in zip(few, digits, strict=True)], theirs=[[arrays]] * len(few),
            what="more than with digits", than="their pixels", at_most=1.1, command=command,
        ),
    ]  # fmt: skip


def _images(dataset: str) -> int:
    return sum(datasets.prepare(dataset, Path()))


# ---- length


def _length(bench: Bench) -> list[Row]:
    steps = 400 if bench.quick else STEPS
    (starts,) = bench.in_turns(lambda: _long_run(bench, steps))
    command = shown("plain", 1, *_LONG, "--output=<folder>", f"--steps={steps}")

    def row(name: str, unit: str, series: str, at_most: float) -> Row:
        first, last = zip(*(fifths(start[series]) for start in starts), strict=True)
        return Row(
            name=f"{steps:,} steps: {name}", unit=unit, ours=list(last), theirs=list(first), what="last fifth", than="first fifth",
            at_most=at_most, command=command,
        )  # fmt: skip

    return [row("a step", "ms", "step_ms", 1.05), row("resident memory", "MiB", "resident_mib", 1.02)]


def fifths(blocks: Sequence[float]) -> tuple[list[float], list[float]]:
    """The first and the last fifth of the blocks of a run, without the warm-up, its first twentieth."""
    kept = list(blocks[len(blocks) // 20 :])
    size = len(kept) // 5
    return kept[:size], kept[-size:]


def _long_run(bench: Bench, steps: int) -> dict[str, list[float]]:
    out = bench.new_folder("long-output")
    bench.start(
        "plain", 1, *_LONG, f"--output={out}", f"--steps={steps}", env={"OMP_NUM_THREADS": "1"}, name="long"
    )
    found: dict[str, list[float]] = json.loads((out / "long_run.json").read_text(encoding="utf-8"))
    return found
