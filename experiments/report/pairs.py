"""Two cells that differ in one thing, side by side: what that one thing costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments import statistics
from experiments.report.groups import Group, Scene
from experiments.statistics import Estimate

NATIVE = {"gloo": "native_ddp", "nccl": "native_ddp", "horovod": "horovod_native", "xla-tpu": "xla_native"}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A number of one group divided by that of another: 1.02 is 2 % more.

    Args:
        of: the two numbers.
        training: what both groups trained, for people.
    """

    ours: Group
    theirs: Group
    ratio: Estimate
    of: tuple[Estimate, Estimate]
    training: str


def overheads(scenes: Sequence[Scene]) -> list[Pair]:
    """Step time of the programs with a library on top (idist, ignite) by that of the hand-written one, all else equal."""
    found = []
    for scene in scenes:
        for program in ("idist", "ignite"):
            for ours in scene.find(program=program):
                native = NATIVE.get(ours.cell.backend)
                for theirs in _twins(scene, ours, program=native):
                    found.append(_pair(scene, ours, theirs, ours.steps, theirs.steps))
    return sorted(found, key=lambda pair: (pair.ours.cell.program, pair.ours.number))


def launches(scenes: Sequence[Scene], launcher: str, other: str) -> list[Pair]:
    """Time to the first step under one launcher by that under another, all else equal."""
    found = []
    for scene in scenes:
        for ours in (group for group in scene.groups if group.cell.launcher == launcher):
            for theirs in _twins(scene, ours, launcher=other):
                a, b = (
                    [[r.times.first_step_s] for r in g.good if r.times.first_step_s] for g in (ours, theirs)
                )
                if a and b:
                    found.append(_pair(scene, ours, theirs, a, b))
    return found


def _twins(scene: Scene, ours: Group, **changed: object) -> Iterator[Group]:
    """Groups whose cells are the same but for what is changed."""
    wanted = {
        name: changed.get(name, getattr(ours.cell, name))
        for name in ("program", "backend", "launcher", "processes", "nodes")
    }
    for group in scene.groups:
        if group.good and all(getattr(group.cell, name) == value for name, value in wanted.items()):
            yield group


def _pair(scene: Scene, ours: Group, theirs: Group, a: list[list[float]], b: list[list[float]]) -> Pair:
    of = statistics.estimate(a), statistics.estimate(b)
    return Pair(ours=ours, theirs=theirs, ratio=statistics.ratio(a, b), of=of, training=scene.title)


def together(pairs: Sequence[Pair]) -> dict[str, Estimate]:
    """By training: what its pairs have in common, where there are several and each has two starts or more."""
    found = {}
    for training in dict.fromkeys(pair.training for pair in pairs):
        known = [p.of for p in pairs if p.training == training and min(len(one.starts) for one in p.of) > 1]
        if len(known) > 1:
            found[training] = statistics.together(known)
    return found


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A group beside one with fewer ranks and the same global batch.

    Args:
        efficiency: throughput by that of the base, by how many times more ranks there are: 1 is perfect.
    """

    group: Group
    base: Group
    efficiency: Estimate


def scalings(scenes: Sequence[Scene]) -> list[Scaling]:
    """Every group with more ranks than its base: the same cell with the fewest ranks, else one process without a backend."""
    found = []
    for scene in scenes:
        alone = scene.find(backend="none")
        for group in sorted(scene.fast, key=lambda group: group.number):
            cell = group.cell
            own = scene.find(program=cell.program, backend=cell.backend, launcher=cell.launcher)
            smallest = min(own, key=lambda other: other.cell.world_size)
            if smallest.cell.world_size > 1 and alone:
                smallest = alone[0]
            if cell.world_size > smallest.cell.world_size:
                found.append(_scaling(group, smallest))
    return found


def _scaling(group: Group, base: Group) -> Scaling:
    more = group.cell.world_size / base.cell.world_size
    gain = statistics.ratio(group.rates, base.rates)
    efficiency = Estimate(
        value=gain.value / more,
        low=gain.low / more,
        high=gain.high / more,
        steps=gain.steps,
        repeats=gain.repeats,
    )
    return Scaling(group=group, base=base, efficiency=efficiency)
