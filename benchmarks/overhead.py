"""What idist costs: steps a second of the same training with idist and with hand-written torch.distributed."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, NamedTuple

from benchmarks.results import ResultError, Row, Samples
from benchmarks.starting import Bench, shown

RANKS = 2
AT_LEAST = 0.99
WARMUP = 10  # steps that are left out, and at most half of them: DistributedDataParallel arranges its buckets, caches fill
OURS, THEIRS = "idist", "native_ddp"

TITLE = "Overhead of idist over torch.distributed"
TEXT = (
    "`reference/programs/idist.py` and `reference/programs/native_ddp.py` are one training written twice; they share data, order, model, "
    f"loss and loop, and differ in the distribution layer only. {RANKS} gloo ranks under torchrun, one thread each, starts taking turns. "
    "A sample is one step of the slowest rank, loading included; the first steps are left out. "
    "A start whose losses differ from the first one's in a single bit is an error. "
    "The small network shows what a step costs beside the arithmetic (it takes a few milliseconds), ResNet-18 what is left of it in a real one."
)


class Case(NamedTuple):
    """A training: its name in the report, options, and how many times `bench.repeats` starts of each side."""

    name: str
    options: tuple[str, ...]
    times: int


def measure(bench: Bench) -> list[Row]:
    """Both cases, starts of both sides in turns."""
    rows = []
    for case in _cases(bench):
        ours: Samples = []
        theirs: Samples = []
        reference: list[float] = []
        for _ in range(case.times):
            found = bench.in_turns(
                *(partial(_steps, bench, case, program, reference) for program in (OURS, THEIRS))
            )
            ours += found[0]
            theirs += found[1]
        command = shown("torchrun", RANKS, "-m", f"reference.programs.{OURS}", *case.options)
        rows.append(
            Row(
                name=f"steps a second, {case.name}",
                unit="steps/s",
                ours=ours,
                theirs=theirs,
                what="idist",
                than="torch.distributed",
                at_least=AT_LEAST,
                command=command,
            )
        )
    return rows


def _cases(bench: Bench) -> list[Case]:
    small = ("--backend=gloo", "--dataset=digits", "--model=small", "--batch_size=64")
    large = ("--backend=gloo", *bench.dataset, "--model=resnet18")
    if bench.quick:
        return [Case("small network, digits", (*small, "--num_epochs=1"), 1)]
    return [
        Case("small network, digits", (*small, "--num_epochs=40"), 2),
        Case(
            "ResNet-18", (*large, "--batch_size=64", "--max_train_samples=1280", "--max_eval_samples=64"), 1
        ),
    ]


def _steps(bench: Bench, case: Case, program: str, reference: list[float]) -> list[float]:
    """Steps a second of one start, one value a step.

    Args:
        reference: losses of the first start, which fills it.
    """
    out = bench.new_folder(f"{program}-output")
    bench.start(
        "torchrun", RANKS, "-m", f"reference.programs.{program}", *case.options, "--threads=1", f"--output_path={out}", name=program
    )  # fmt: skip
    result: dict[str, Any] = json.loads((out / "result.json").read_text(encoding="utf-8"))
    losses: list[float] = result["losses"]
    if not reference:
        reference += losses
    check_same(losses, reference, f"{program}, {case.name}")
    times: list[float] = result["step_s"]
    kept = times[min(WARMUP, len(times) // 2) :]
    bench.say(f"{program}, {case.name}: {len(kept) / sum(kept):.2f} steps/s")
    return [1 / seconds for seconds in kept]


def check_same(losses: list[float], reference: list[float], title: str) -> None:
    """Refuse a curve that is not the other one, bit for bit.

    Raises:
        ResultError: naming the first step that differs.
    """
    if len(losses) != len(reference):
        raise ResultError(f"{title}: {len(losses)} steps instead of {len(reference)}")
    for step, (a, b) in enumerate(zip(losses, reference, strict=True), start=1):
        if a != b:
            raise ResultError(
                f"{title}: not the same training: the loss of step {step} is {a!r} instead of {b!r}"
            )
