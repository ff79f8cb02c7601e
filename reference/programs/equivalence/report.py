"""The report: Markdown for people, JSON for programs. Every number has the command that makes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from reference.markdown import table
from reference.programs.equivalence import compare, training
from reference.programs.equivalence.matrix import Cell, Section
from reference.programs.equivalence.results import Row
from reference.programs.equivalence.running import Outcome

Sections = Sequence[tuple[Section, Sequence[Row]]]
_COMPARED = (
    "compared", "precision", "loss: absolute", "loss: relative", "parameters: absolute", "parameters: relative", "tolerance",
    "verdict", "as expected",
)  # fmt: skip
_RESULT = {True: "yes", False: "**NO**", None: "not compared"}


def markdown(outcomes: Mapping[Cell, Outcome], sections: Sections, plots: Mapping[str, str]) -> str:
    """The whole report.

    Args:
        plots: file name of each picture, with its text alternative.
    """
    parts = [
        "# The same training everywhere",
        "Written by `make equivalence` (`python -m reference.programs.equivalence`). The same small network is trained "
        "with every launcher, backend and number of processes; the loss of each step and the parameters after the "
        "last one are compared. " + _summary(sections),
        _what(outcomes),
    ]
    for name, text in plots.items():
        parts.append(f"![{text}]({name})")
    for section, rows in sections:
        parts += [f"## {section.title}", section.text, _table(rows)]
    parts += ["## Tolerance", _tolerance(), "## Cells", _cells(outcomes)]
    return "\n\n".join(parts) + "\n"


def as_json(outcomes: Mapping[Cell, Outcome], sections: Sections) -> str:
    """All numbers of the report, and all losses."""
    cells = {
        cell.name: {
            "command": cell.shown(),
            "seconds": round(outcome.seconds, 1),
            "skipped": outcome.skipped,
            "failed": outcome.failed,
            **outcome.facts,
            "curves": {
                name: {key: curve[key] for key in ("losses", "digest", "replicas_equal")}
                for name, curve in outcome.curves.items()
            },
        }
        for cell, outcome in outcomes.items()
    }
    rows = [
        {
            "section": section.title,
            "title": row.comparison.title,
            "cell": row.comparison.cell.name,
            "recipe": row.comparison.recipe,
            "reference": row.comparison.reference.name,
            "reference_recipe": row.comparison.reference_curve,
            "precision": row.precision,
            "tolerance": compare.tolerance(row.precision),
            "expected": row.comparison.expected,
            "verdict": row.verdict,
            "passed": row.passed,
            "difference": None if row.found is None else asdict(row.found),
        }
        for section, rows in sections
        for row in rows
    ]
    return json.dumps({"schema": 1, "comparisons": rows, "cells": cells}, indent=1) + "\n"


def _summary(sections: Sections) -> str:
    passed = [row.passed for _, rows in sections for row in rows]
    text = f"**{passed.count(True)} of {len(passed)} comparisons came out as expected"
    if passed.count(False):
        text += f", {passed.count(False)} DID NOT"
    if passed.count(None):
        text += f", {passed.count(None)} were not made because a backend is missing"
    return text + ".**"


def _what(outcomes: Mapping[Cell, Outcome]) -> str:
    parameters = sum(p.numel() for p in training.build_model(0).parameters())
    versions = sorted(
        {
            f"torch {outcome.facts['torch']} on Python {outcome.facts['python']}"
            for outcome in outcomes.values()
            if outcome.facts
        }
    )
    return (
        f"A convolutional network of {parameters:,} parameters with cross-replica batch norm takes {training.STEPS} steps "
        f"of SGD with Nesterov's momentum on {training.SAMPLES} real images (scikit-learn's digits), shuffled and "
        f"augmented, in global batches of {training.BATCH_SIZE}. The last batch of each of the {training.EPOCHS} epochs is "
        f"uneven: it has {training.SAMPLES % training.BATCH_SIZE} images, so with 4 processes one has none. The weights "
        "start from another seed on each rank, and only those of rank 0 may count. The process without a backend keeps torch's "
        "own batch norm, so that the cross-replica one is held against it. Everything runs on CPUs, one thread "
        f"a process; {', '.join(versions)}."
    )


def _table(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        found, limit = row.found, f"{compare.tolerance(row.precision):.1e}"
        if row.comparison.expected == compare.IDENTICAL:
            limit = "0"
        elif row.comparison.expected == compare.DIFFERENT:
            limit = f"more than {limit}"
        numbers = (
            ["-"] * 4
            if found is None
            else [
                _number(value)
                for value in (
                    found.loss_absolute,
                    found.loss_relative,
                    found.state_absolute,
                    found.state_relative,
                )
            ]
        )
        title = row.comparison.title
        lines.append([title, row.precision, *numbers, limit, row.verdict, _RESULT[row.passed]])
    return table(_COMPARED, lines)


def _number(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def _tolerance() -> str:
    single, double = compare.tolerance("float32"), compare.tolerance("float64")
    return (
        "All differences are the largest over all steps or tensors. A loss is relative to the reference's loss of that step, "
        "a parameter (or batch norm statistic) to the largest value of its tensor in the reference.\n\n"
        "Another backend or another number of processes adds the same numbers up in another order, so results may differ by "
        f"rounding and by nothing else. The tolerance is {compare.TOLERANCE_IN_EPSILONS:,} epsilon of the precision: {single:.1e} "
        f"in float32 and {double:.1e} in float64. Where it comes from: the longest sums of a step have 16,384 terms; adding "
        "them in another order changes the result by about √16,384 = 128 epsilon; 12 steps on top of each other make "
        "1,536; the limit is the power of two above the double of that. The proof is in having two precisions: rounding "
        f"shrinks with epsilon by {single / double:.1e} from float32 to float64, a lost or repeated sample, another "
        "weight or another order does not. The controls show how large such mistakes are."
    )


def _cells(outcomes: Mapping[Cell, Outcome]) -> str:
    lines = [
        [cell.name, "skipped" if outcome.skipped else f"{outcome.seconds:.0f}", f"`{cell.shown()}`"]
        for cell, outcome in outcomes.items()
    ]
    return table(("cell", "seconds", "command"), lines)
