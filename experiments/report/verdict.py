"""What to use on this machine, and why, in a few sentences; each names the cells that its numbers are from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.report.claims import starts
from experiments.report.curves import APART, CLOSE, DIFFERENT, IDENTICAL, Family
from experiments.report.groups import STATES, Group, Run, Scene, speed_of
from experiments.report.pairs import Scaling
from experiments.report.values import digits
from experiments.statistics import Estimate, differs


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A part of the verdict: what it is about, and what is known."""

    topic: str
    text: str
    groups: list[Group]


def verdict(run: Run, curves: Sequence[Family], scalings: Sequence[Scaling]) -> list[Sentence]:
    """The sentences, the most important first."""
    scenes = [scene for scene in run.scenes if scene.fast]
    found = []
    for scene in scenes:
        found += [_fastest(scene), *_quickest(scene)]
    return [*found, *_scales(scalings), *_learns(curves), _complete(run)]


def number(found: Estimate, unit: str) -> str:
    """A number with unit, interval and n: "2,310 images/s [2,250, 2,400]"."""
    return f"{digits(found.value)} {unit} [{digits(found.low)}, {digits(found.high)}]"


def _named(groups: Sequence[Group]) -> str:
    return ", ".join(f"{group.name} (C{group.number})" for group in groups)


def _nobody(others: Sequence[Group] | Sequence[tuple[Estimate, Group]]) -> str:
    return "The other one is not shown" if len(others) == 1 else f"None of the {len(others)} others is shown"


def _fastest(scene: Scene) -> Sentence:
    first, *others = scene.fast
    best = speed_of(first)
    slower = [group for group in others if differs(best, speed_of(group))]
    alike = [group for group in others if group not in slower]
    text = f"{first.name} (C{first.number}) has the highest median: {number(best, 'images/s')}, n = {best.n}."
    if not others:
        text += " Nothing was run beside it."
    elif not slower:
        text += f" {_nobody(others)} to be slower: these records do not decide it."
    elif not alike:
        text += " All others are shown to be slower."
    else:
        text += f" Not shown to be slower: {_named(alike)}: choose among these by what else matters."
        text += f" Shown to be slower: {_named(slower)}."
    return Sentence(topic=f"Throughput, {scene.title}", text=text, groups=[first, *others])


def _quickest(scene: Scene) -> Iterator[Sentence]:
    """The launchers of each number of ranks; one process needs none."""
    timed = [(g.seconds("first_step_s"), g) for g in scene.groups if g.cell.world_size > 1]
    known = sorted(
        ((found, group) for found, group in timed if found is not None), key=lambda one: one[0].value
    )
    if len(known) < 2:
        return
    (best, first), *others = known
    (last_time, last) = others[-1]
    alike = [group for found, group in others if not differs(best, found)]
    text = (
        f"{first.name} (C{first.number}) is the first to have taken a step, after {number(best, 's')} ({starts(best)}); "
        f"the last is {last.name} (C{last.number}) with {number(last_time, 's')}."
    )
    if len(alike) == len(others):
        text += f" {_nobody(others)} to start slower than the first."
    elif alike:
        text += f" Not shown to start slower than the first: {_named(alike)}."
    yield Sentence(topic=f"Start, {scene.title}", text=text, groups=[group for _, group in known])


def _scales(scalings: Sequence[Scaling]) -> Iterator[Sentence]:
    if not scalings:
        return
    best = max(scalings, key=lambda one: one.efficiency.value)
    worst = min(scalings, key=lambda one: one.efficiency.value)
    parts = []
    for word, one in (("best", best), ("worst", worst))[: 1 + (best is not worst)]:
        ranks, low = one.group.cell.world_size, one.base.cell.world_size
        share = number(one.efficiency, "of perfect")
        parts.append(
            f"{word}: {one.group.name} (C{one.group.number}), {ranks} ranks by {low}: {share}, n = {one.efficiency.n}"
        )
    yield Sentence(
        topic="Scaling",
        text=f"Efficiency, {'; '.join(parts)}.",
        groups=[best.group, best.base, worst.group, worst.base],
    )


def _learns(curves: Sequence[Family]) -> Iterator[Sentence]:
    compared = [curve for family in curves for curve in family.curves if curve.group is not family.reference]
    if not compared:
        return
    counts = Counter(curve.verdict for curve in compared)
    bad = [curve for curve in compared if curve.verdict not in (IDENTICAL, CLOSE)]
    gap = max((curve.gap for curve in compared if curve.gap is not None), default=0.0)
    listed = ", ".join(f"{count} {word}" for word, count in counts.items())
    text = f"Of {len(compared)} loss curves held against a reference of the same training and number of ranks: {listed}."
    text += f" The largest relative difference is {gap:.1e}." if gap else ""
    if bad:
        text += f" Look at {_named([curve.group for curve in bad])}."
    elif not (counts[APART] or counts[DIFFERENT]):
        text += " They learn the same."
    yield Sentence(topic="Equivalence", text=text, groups=[curve.group for curve in compared])


def _complete(run: Run) -> Sentence:
    counts = Counter(group.state for group in run.groups)
    listed = ", ".join(f"{counts[state]} {state}" for state in reversed(STATES) if counts[state])
    text = f"{len(run.groups)} cells, {len(run.records)} starts: {listed}."
    if run.missing:
        text += f" {len(run.missing)} starts are planned but have no record: the run is not complete."
    return Sentence(
        topic="Cells", text=text, groups=[g for g in run.groups if g.state in ("failed", "interrupted")]
    )
