"""Whether all cells learn the same: the loss of every step beside that of one of them.

Curves are compared among cells with the same training and the same number of ranks: batch norm takes its statistics over the
part of a rank, so another number of ranks is another training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.report.groups import Group, Scene
from experiments.statistics import curve_gap
from reference.programs.equivalence.compare import TOLERANCE_IN_EPSILONS, tolerance

LIMIT = tolerance("float32")
SURE_STEPS = 12  # for which the tolerance was worked out
REFERENCE = "reference"
IDENTICAL, CLOSE, APART, DIFFERENT = "identical", "within rounding", "drifts apart", "different"
HOW = (
    f"The tolerance is {TOLERANCE_IN_EPSILONS:,} epsilon of float32 ({LIMIT:.1e} of the loss), which rounding stays below in "
    f"the first {SURE_STEPS} steps (reference/programs/equivalence/compare.py says why). A curve that keeps it to the end is "
    f"“{CLOSE}”; one that breaks it in the first {SURE_STEPS} steps is “{DIFFERENT}”; one that breaks it later “{APART}”: "
    "rounding grows from step to step, and these records cannot tell it from a small mistake."
)
# The curve that the others are held against: the first of these that is there.
_REFERENCES = (("native_ddp", "gloo"), ("native_ddp", "nccl"), ("idist", "none"), ("idist", "gloo"))


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The loss curve of a group beside the reference.

    Args:
        losses: of its first good repeat.
        gap: the largest relative difference to the reference, over all steps and repeats.
        past: the first step (from 1) that is past the tolerance; None: none is.
        verdict: one of this module's words, or why it was not compared.
    """

    group: Group
    losses: Sequence[float]
    gap: float | None
    past: int | None
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Family:
    """Curves that should be one."""

    scene: Scene
    world_size: int
    reference: Group
    curves: list[Curve]  # the reference's own is the first

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.scene.title}, {self.world_size} rank{'s' * (self.world_size > 1)}"


def families(scenes: Sequence[Scene]) -> list[Family]:
    """All curves, by training and number of ranks."""
    found = []
    for scene in scenes:
        groups = [group for group in scene.groups if group.measured]
        for size in sorted({group.cell.world_size for group in groups}):
            found.append(_family(scene, size, [g for g in groups if g.cell.world_size == size]))
    return found


def _family(scene: Scene, size: int, groups: list[Group]) -> Family:
    def rank(group: Group) -> tuple[int, int]:
        kind = (group.cell.program, group.cell.backend)
        return _REFERENCES.index(kind) if kind in _REFERENCES else len(_REFERENCES), group.number

    reference, *others = sorted(groups, key=rank)
    ordered = [reference, *sorted(others, key=lambda group: group.number)]
    curves = [compare(group, reference) for group in ordered]
    return Family(scene=scene, world_size=size, reference=reference, curves=curves)


def compare(group: Group, reference: Group) -> Curve:
    """One group's curves, of all repeats, beside the first of the reference."""
    wanted = reference.measured[0]
    first = group.measured[0]
    for measured in group.measured:
        for what, ours, theirs in (
            ("other images", measured.data.checksum, wanted.data.checksum),
            ("another number of steps", len(measured.losses), len(wanted.losses)),
        ):
            if ours != theirs:
                text = f"not compared: {what}"
                return Curve(group=group, losses=first.losses, gap=None, past=None, verdict=text)
    all_losses = [measured.losses for measured in group.measured]
    gap = max(curve_gap(losses, wanted.losses) for losses in all_losses)
    past = min(filter(None, (_past(losses, wanted.losses) for losses in all_losses)), default=None)
    if gap == 0:
        verdict = REFERENCE if group is reference else IDENTICAL
    elif past is None:
        verdict = CLOSE
    else:
        verdict = DIFFERENT if past <= SURE_STEPS else APART
    return Curve(group=group, losses=first.losses, gap=gap, past=past, verdict=verdict)


def _past(ours: Sequence[float], theirs: Sequence[float]) -> int | None:
    steps = enumerate(zip(ours, theirs, strict=True), start=1)
    return next((number for number, (a, b) in steps if curve_gap([a], [b]) > LIMIT), None)
