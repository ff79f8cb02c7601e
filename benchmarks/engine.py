"""The engine's loop against a bare Python loop: what an iteration costs more."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.results import Row, Samples
from benchmarks.starting import Bench, shown

TITLE = "The engine's loop"
TEXT = (
    "One process with one thread. In each start, blocks of iterations take turns: a bare `for batch in data: step(batch)`, "
    "`reference.engine.Engine` and pytorch-ignite's `Engine`, with a step that does nothing; and the engine with every handler "
    "that the CIFAR-10 trainer attaches (throughput, running accuracy and loss, schedule, search for NaN, log line, `events.jsonl` "
    "and TensorBoard every 15 iterations, stop request, the checkpoint's filter; no checkpoint falls due). An iteration's cost is "
    "a block's time over that of its neighbour with the bare loop. Targets: the loop costs at most 1 % of a step of 1 ms, all "
    "handlers together at most 1 % of a step of 50 ms. Then a perceptron (64-256-10, batch of 64) is trained by a loop written by hand "
    "and by `create_supervised_trainer`, with a handler that keeps the losses: on a step of a fraction of a millisecond, which is as "
    "bad as it gets."
)
_PROGRAM = ("-m", "benchmarks.worlds.loop")
_QUICK = ("--blocks=2", "--empty=200", "--handled=50", "--steps=10")


def measure(bench: Bench) -> list[Row]:
    """Start the program, and compare its blocks."""
    (found,) = bench.in_turns(lambda: _blocks(bench))
    command = shown("plain", 1, *_PROGRAM, "--output=<folder>")
    rows = [
        Row(
            name="empty step, no handlers: over a bare loop, an iteration",
            unit="us", ours=_excess(found, "engine", "bare"), what="engine", at_most=10.0, command=command,
        ),
        Row(
            name="empty step, the CIFAR-10 trainer's handlers: over a bare loop, an iteration",
            unit="us", ours=_excess(found, "handled", "bare_of_handled"), what="engine", at_most=500.0, command=command,
        ),
    ]  # fmt: skip
    if "ignite" in found[0]:
        rows.append(
            Row(
                name="empty step, no handlers: an iteration",
                unit="us", ours=_side(found, "engine"), theirs=_side(found, "ignite"), turns=True, what="engine", than="pytorch-ignite",
                at_most=1.0, command=command,
            )
        )  # fmt: skip
    rows.append(
        Row(
            name="a step of a small perceptron",
            unit="us", ours=_side(found, "supervised"), theirs=_side(found, "by_hand"), turns=True, what="supervised trainer",
            than="written by hand", at_most=1.1, command=command,
        )
    )  # fmt: skip
    if "ignite_supervised" in found[0]:
        rows.append(
            Row(
                name="a step of a small perceptron, both trainers",
                unit="us", ours=_side(found, "supervised"), theirs=_side(found, "ignite_supervised"), turns=True,
                what="supervised trainer", than="pytorch-ignite", at_most=1.0, command=command,
            )
        )  # fmt: skip
    return rows


def _blocks(bench: Bench) -> dict[str, list[float]]:
    out = bench.new_folder("loop-output")
    bench.start(
        "plain",
        1,
        *_PROGRAM,
        f"--output={out}",
        *(_QUICK if bench.quick else ()),
        env={"OMP_NUM_THREADS": "1"},
        name="loop",
    )
    found: dict[str, list[float]] = json.loads((out / "loop.json").read_text(encoding="utf-8"))
    return found


def _side(found: list[dict[str, Any]], name: str) -> Samples:
    return [start[name] for start in found]


def _excess(found: list[dict[str, Any]], name: str, bare: str) -> Samples:
    """Each block over the bare block that took its turn with it."""
    return [[a - b for a, b in zip(start[name], start[bare], strict=True)] for start in found]
