"""What each choice about the computation of a step is worth on this CPU, alone."""

from __future__ import annotations

import json
import shutil
from statistics import median
from typing import Any

from benchmarks.results import ResultError, Row
from benchmarks.starting import Bench, shown

RANKS = 2
BATCH_SIZE = 64  # of each process
BLOCKS = 10
STEPS = 3  # a block
LOSS_GAP = {"bf16 autocast": 0.03}  # 8 bits of mantissa
SAME = 1e-3  # of the loss of the first step: rounding in another order

TITLE = "Compute: each choice alone"
TEXT = (
    f"ResNet-18 of torchvision on random images, {BATCH_SIZE} in each process; one process with one thread, or {RANKS} gloo ranks with one thread "
    "each for the two choices of DistributedDataParallel. Everything but the choice is as in the trainer (channels last, fused SGD, fp32, no compiler). "
    f"Blocks of {STEPS} steps with and without it take turns in the same process, both from the same weights on the same batches; that both have the same loss "
    "in the first step is checked. The ratio is the seconds of a step with the choice by those without: **below 1 it pays**. "
    "There are no targets: this decides which choices are the trainer's defaults."
)  # fmt: skip


def measure(bench: Bench) -> list[Row]:
    """One process for the choices of a step, one world for those of DistributedDataParallel."""
    sizes = [f"--batch_size={BATCH_SIZE}", f"--blocks={BLOCKS}", f"--steps={STEPS}"]
    if bench.quick:
        sizes = ["--model=shufflenet_v2_x0_5", "--batch_size=16", "--blocks=2", "--steps=2"]
    compiles = shutil.which("g++") is not None and not bench.quick
    if not compiles:
        bench.say(
            "torch.compile: left out, as there is no g++"
            if not bench.quick
            else "torch.compile: left out of a trial"
        )
    rows = []
    for processes, options in ((1, sizes), (RANKS, ["--ddp", *sizes])):
        launcher = "plain" if processes == 1 else "torchrun"
        for name, found in _choices(bench, launcher, processes, options, compiles).items():
            where = "one process" if processes == 1 else f"{processes} ranks"
            check_loss(name, found["first_loss"])
            command = shown(
                launcher,
                processes,
                "-m",
                "benchmarks.worlds.compute",
                *options,
                f"--only='{name}'",
                "--output=.",
            )
            samples = found["samples"]
            rows.append(
                Row(
                    name=f"{name}, {where}",
                    unit="s/step",
                    ours=[[median(block) for block in samples["with"]]],
                    theirs=[[median(block) for block in samples["without"]]],
                    turns=True,
                    what="with",
                    than="without",
                    command=command,
                )
            )
            if name == "torch.compile":
                first = [[found["first_s"]["with"]]]
                rows.append(
                    Row(
                        name="torch.compile: the first step, with the compiler",
                        unit="s",
                        ours=first,
                        what="with",
                    )
                )
    return rows


def _choices(
    bench: Bench, launcher: str, processes: int, options: list[str], compiles: bool
) -> dict[str, Any]:
    from benchmarks.worlds.compute import ALONE  # imports torch

    out = bench.new_folder(f"compute-{processes}-output")
    names = (
        [] if compiles or processes > 1 else [f"--only={','.join(n for n in ALONE if n != 'torch.compile')}"]
    )
    bench.start(
        launcher, processes, "-m", "benchmarks.worlds.compute", *options, *names, f"--output={out}",
        env={"OMP_NUM_THREADS": "1"}, name=f"compute-{processes}",
    )  # fmt: skip
    lines = (out / "choices.jsonl").read_text(encoding="utf-8").splitlines()
    return {found["name"]: found for found in map(json.loads, lines)}


def check_loss(name: str, losses: dict[str, float]) -> None:
    """Refuse a choice that changes what is computed.

    Raises:
        ResultError: the losses of the first step lie further apart than rounding explains.
    """
    on, off = losses["with"], losses["without"]
    if not abs(on - off) <= LOSS_GAP.get(name, SAME) * abs(off):
        raise ResultError(f"{name}: the loss of the first step is {on} with it and {off} without")
