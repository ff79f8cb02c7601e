"""From outcomes of cells to verdicts: one row for each comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reference.programs.equivalence.compare import Difference, difference, judge
from reference.programs.equivalence.matrix import PRECISIONS, SECTIONS, Cell, Comparison, Section
from reference.programs.equivalence.running import Outcome


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison and what came of it."""

    comparison: Comparison
    precision: str
    found: Difference | None  # None when a cell has no curve
    verdict: str
    passed: bool | None  # None: not compared, because a backend isn't there


def precision_of(recipe: str) -> str:
    """The controls are in float64."""
    return recipe if recipe in PRECISIONS else "float64"


def judge_all(outcomes: Mapping[Cell, Outcome]) -> list[tuple[Section, list[Row]]]:
    """All sections with their rows."""
    return [(section, [_row(item, outcomes) for item in section.comparisons]) for section in SECTIONS]


def _row(item: Comparison, outcomes: Mapping[Cell, Outcome]) -> Row:
    precision = precision_of(item.recipe)
    ours, theirs = outcomes[item.cell], outcomes[item.reference]
    for outcome in (ours, theirs):
        if outcome.skipped is not None:
            return Row(
                comparison=item,
                precision=precision,
                found=None,
                verdict=f"skipped: {outcome.skipped}",
                passed=None,
            )
        if outcome.failed is not None:
            text = f"failed: {outcome.cell.title}: {outcome.failed}"
            return Row(comparison=item, precision=precision, found=None, verdict=text, passed=False)
    curve = ours.curves[item.recipe]
    found = difference(curve, theirs.curves[item.reference_curve])
    verdict, passed = judge(found, item.expected, precision)
    if item.recipe in PRECISIONS and not curve["replicas_equal"]:
        verdict, passed = "the ranks ended with different parameters", False
    return Row(comparison=item, precision=precision, found=found, verdict=verdict, passed=passed)
