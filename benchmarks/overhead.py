"""What idist costs: steps a second of the same training with idist and with hand-written torch.distributed."""

from __future__ import annotations

import json
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from benchmarks.results import ResultError, Row, Samples
from benchmarks.starting import Bench, shown
from benchmarks.worlds.twins import SIDES

RANKS = 2
AT_LEAST = 0.99
WARMUP = 10  # steps that are left out, and at most half of them: DistributedDataParallel arranges its buckets, caches fill
OURS, THEIRS = "idist", "native_ddp"

TITLE = "Overhead of idist over torch.distributed"
TEXT = (
    f"The same training with idist and with hand-written torch.distributed: {RANKS} gloo ranks under torchrun, one thread each, global batch "
    "64. Steps are those of the slowest rank, loading included; losses that differ in a single bit are an error. First both in the same "
    "processes (`benchmarks/worlds/twins.py`), blocks of steps taking turns, so that what drifts on the machine hits both; a sample is a block's median: this decides. Then "
    "`reference/programs/idist.py` and `reference/programs/native_ddp.py` as they are, starts taking turns; two starts of the same program "
    "differ by several percent here. The small network shows what a step costs beside the arithmetic, ResNet-18 what is left of it in a "
    "real one."
)


class Case(NamedTuple):
    """A training: its name in the report and its options.

    Args:
        training: options of both ways to measure it.
        length, times: of the programs: options, and how many times `bench.repeats` starts.
        blocks: options of `benchmarks.worlds.twins`.
    """

    name: str
    training: tuple[str, ...]
    length: tuple[str, ...]
    blocks: tuple[str, ...]
    times: int


def measure(bench: Bench) -> list[Row]:
    """Both cases, twice: in the same processes, and as programs."""
    return [row for case in _cases(bench) for row in (_in_one_world(bench, case), _as_programs(bench, case))]


def _in_one_world(bench: Bench, case: Case) -> Row:
    program = ("-m", "benchmarks.worlds.twins", *case.training, *case.blocks)
    ours: Samples = []
    theirs: Samples = []
    for _ in range(bench.repeats):
        out = bench.new_folder("twins-output")
        bench.start("torchrun", RANKS, *program, f"--output={out}", name="twins")
        found: dict[str, Any] = json.loads((out / "twins.json").read_text(encoding="utf-8"))
        check_same(found["losses"]["idist"], found["losses"]["by_hand"], case.name)
        for side, blocks in zip((ours, theirs), (found["step_s"][name] for name in SIDES), strict=True):
            side.append([1 / median(block) for block in blocks])
    return Row(
        name=f"{case.name}, blocks of steps in turns", unit="steps/s", ours=ours, theirs=theirs, what="idist",
        than="torch.distributed", at_least=AT_LEAST, turns=True, command=shown("torchrun", RANKS, *program, "--output=<folder>"),
    )  # fmt: skip


def _as_programs(bench: Bench, case: Case) -> Row:
    ours: Samples = []
    theirs: Samples = []
    reference: list[float] = []
    for _ in range(case.times):
        found = bench.in_turns(
            *(partial(_steps, bench, case, program, reference) for program in (OURS, THEIRS))
        )
        ours += found[0]
        theirs += found[1]
    program = ("-m", f"reference.programs.{OURS}", "--backend=gloo", *case.training, *case.length)
    return Row(
        name=f"{case.name}, starts in turns", unit="steps/s", ours=ours, theirs=theirs, what="idist", than="torch.distributed",
        command=shown("torchrun", RANKS, *program),
    )  # fmt: skip


def _cases(bench: Bench) -> list[Case]:
    digits = ("--dataset=digits", "--model=small")
    if bench.quick:
        blocks = ("--blocks=2", "--steps=5")
        return [Case("small network, digits", digits, length=("--num_epochs=1",), blocks=blocks, times=1)]
    few = ("--max_train_samples=1280", "--max_eval_samples=64")
    images = (*bench.dataset, "--model=resnet18")
    return [
        Case(
            "small network, digits",
            digits,
            length=("--num_epochs=40",),
            blocks=("--blocks=20", "--steps=100"),
            times=2,
        ),
        Case("ResNet-18", images, length=few, blocks=("--blocks=12", "--steps=5"), times=1),
    ]


def _steps(bench: Bench, case: Case, program: str, reference: list[float]) -> list[float]:
    """Steps a second of one start, one value a step.

    Args:
        reference: losses of the first start, which fills it.
    """
    out = bench.new_folder(f"{program}-output")
    bench.start(
        "torchrun", RANKS, "-m", f"reference.programs.{program}", "--backend=gloo", *case.training, *case.length, "--threads=1",
        f"--output_path={out}", name=program,
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
