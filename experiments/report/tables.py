"""The tables of the report, for HTML and Markdown alike. Every row names the cells that its numbers are from."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.codestats import CodeStats
from experiments.report.claims import costs, percent
from experiments.report.curves import LIMIT, Family
from experiments.report.groups import Group, Run
from experiments.report.pairs import Pair, Scaling
from experiments.report.values import (
    COUNT,
    LAYOUT,
    MIB,
    Table,
    Value,
    cells,
    count,
    digits,
    layout,
    repeats,
    shown,
    text,
)


def matrix(run: Run, curves: Sequence[Family]) -> Table:
    """All groups: what became of them, how fast they are, whether they learn the same."""
    verdicts = {curve.group.number: curve.verdict for family in curves for curve in family.curves}
    trainings = len(run.scenes) > 1
    columns = [
        "cell",
        "state",
        "program",
        "backend",
        "launcher",
        LAYOUT,
        "images/s",
        COUNT,
        "first step after s",
    ]
    columns += ["loss curve", "accuracy", *(["training"] if trainings else [])]
    rows = []
    for scene in run.scenes:
        for group in scene.groups:
            rows.append(
                [
                    cells(group),
                    _state(group),
                    *(text(name) for name in (group.cell.program, group.cell.backend, group.cell.launcher)),
                    layout(group),
                    shown(group.speed),
                    count(group.speed),
                    shown(group.seconds("first_step_s")),
                    text(verdicts.get(group.number, "-")),
                    _accuracy(group),
                    *([text(scene.title)] if trainings else []),
                ]
            )
    return Table(title="All cells", columns=columns, rows=rows)


def _state(group: Group) -> Value:
    if group.state == "ok":
        return text("ok", tone="ok")
    worst = next(record for record in group.records if record.state == group.state)
    good = f"; {len(group.good)} of {len(group.records)} starts are ok" if group.good else ""
    return text(group.state, f"{worst.reason}{good}", tone=group.state)


def _accuracy(group: Group) -> Value:
    if not group.measured:
        return Value(text="-", sort=-1)
    found = [measured.accuracy for measured in group.measured]
    low, high = min(found), max(found)
    each = f"{low:.4f}" if low == high else f"{low:.4f} to {high:.4f}"
    return Value(text=each, detail=f"of {group.measured[0].n_evaluated:,} images", sort=low)


def start_times(run: Run) -> Table:
    """Launch to rendezvous, first step and end."""
    columns = [
        "cell",
        "launcher",
        "program",
        "backend",
        LAYOUT,
        "rendezvous s",
        "first step s",
        "end s",
        "n starts",
    ]
    rows = []
    for group in (g for g in run.groups if g.seconds("wall_s") is not None):
        times = [group.seconds(name) for name in ("rendezvous_s", "first_step_s", "wall_s")]
        names = [text(name) for name in (group.cell.launcher, group.cell.program, group.cell.backend)]
        rows.append([cells(group), *names, layout(group), *(shown(one) for one in times), repeats(times[-1])])
    note = (
        "Seconds since the launcher was started, until all ranks have met, the first training step is complete, and "
        "everything has ended."
    )
    return Table(title="Start", columns=columns, rows=rows, note=note)


def overhead(pairs: Sequence[Pair]) -> Table:
    """Step times of a library by those of hand-written code."""
    columns = [
        "cells",
        "program",
        "hand-written",
        "backend",
        "launcher",
        LAYOUT,
        "overhead",
        COUNT,
        "costs nothing?",
    ]
    rows = []
    for pair in pairs:
        cell = pair.ours.cell
        value, _, interval = percent(pair.ratio).partition(" % ")
        rows.append(
            [
                cells(pair.ours, pair.theirs),
                *(
                    text(name)
                    for name in (cell.program, pair.theirs.cell.program, cell.backend, cell.launcher)
                ),
                layout(pair.ours),
                Value(text=f"{value} %", detail=interval, sort=pair.ratio.value),
                count(pair.ratio),
                text(costs(pair.ratio)),
            ]
        )
    note = (
        "Median step time of the program by that of hand-written code with the same backend, launcher and number of "
        "processes. n is that of the smaller part."
    )
    return Table(title="Overhead", columns=columns, rows=rows, note=note)


def scaling(found: Sequence[Scaling]) -> Table:
    """Throughput with more ranks by that with fewer."""
    columns = ["cells", "program", "backend", "launcher", "ranks", "base", "efficiency", COUNT]
    rows = []
    for one in found:
        cell, base = one.group.cell, one.base.cell
        rows.append(
            [
                cells(one.group, one.base),
                *(text(name) for name in (cell.program, cell.backend, cell.launcher)),
                Value(text=str(cell.world_size), sort=cell.world_size),
                text(f"{base.world_size} rank{'s' * (base.world_size > 1)}, {base.backend} {base.launcher}"),
                shown(one.efficiency),
                count(one.efficiency),
            ]
        )
    note = (
        "Throughput by that of the base and by how many times more ranks there are; 1 is perfect. The global batch stays "
        "the same, so each rank has less to do in a step."
    )
    return Table(title="Efficiency", columns=columns, rows=rows, note=note)


def memory(run: Run) -> Table:
    """Memory, use of the CPU, and bytes that go around."""
    columns = ["cell", "program", "backend", "launcher", LAYOUT, "memory MiB", "GPU memory MiB", "cores used"]
    columns += ["gradients MiB", "n starts"]
    rows = []
    how: dict[str, None] = {}
    for group in (g for g in run.groups if g.measured):
        cell, sent = group.cell, group.measured[0].communication
        how[sent.how] = None
        ranks = [rank for measured in group.measured for rank in measured.ranks]
        on_gpu = [r.peak_device_memory_bytes for r in ranks if r.peak_device_memory_bytes]
        rows.append(
            [
                cells(group),
                *(text(name) for name in (cell.program, cell.backend, cell.launcher)),
                layout(group),
                shown(group.peak_memory, 1 / MIB),
                Value(text=digits(max(on_gpu) / MIB) if on_gpu else "-", sort=max(on_gpu, default=0)),
                shown(group.cores_used),
                Value(text=digits(sent.bytes_per_step / MIB), sort=sent.bytes_per_step),
                repeats(group.peak_memory),
            ]
        )
    note = (
        "Memory: the largest resident size of a process, of the rank that needs the most. Cores used: CPU time of a process "
        "by the time of its training loop, mean over ranks (XLA on a CPU: replicas share a process). Gradients: what a rank "
        f"gives to all-reduce in a step; {'; '.join(how)}."
    )
    return Table(title="Memory, CPU and traffic", columns=columns, rows=rows, note=note)


def equivalence(family: Family) -> Table:
    """The loss curves of one family beside its reference."""
    columns = [
        "cells",
        "program",
        "backend",
        "launcher",
        "largest difference",
        "past the tolerance",
        "last loss",
    ]
    columns += ["verdict", COUNT]
    rows = []
    for curve in family.curves:
        cell = curve.group.cell
        gap = "-" if curve.gap is None else f"{curve.gap:.1e}" if curve.gap else "0"
        rows.append(
            [
                cells(curve.group, family.reference),
                *(text(name) for name in (cell.program, cell.backend, cell.launcher)),
                Value(text=gap, sort=-1 if curve.gap is None else curve.gap),
                text("-" if curve.past is None else f"from step {curve.past}"),
                Value(text=f"{curve.losses[-1]:.4f}", sort=curve.losses[-1]),
                text(curve.verdict),
                Value(text=f"{len(curve.losses)} / {len(curve.group.good)}", sort=len(curve.losses)),
            ]
        )
    note = (
        "Difference of the loss of a step, relative to the reference's, over all steps and repeats; tolerance "
        f"{LIMIT:.1e}. The reference is held against its own first start."
    )
    return Table(title=f"Loss curves: {family.title}", columns=columns, rows=rows, note=note)


def losses(family: Family, most: int = 25) -> Table:
    """The values of the curves, at no more than `most` steps."""
    steps = max(len(curve.losses) for curve in family.curves)
    chosen = sorted(
        {round(1 + (steps - 1) * k / max(1, min(most, steps) - 1)) for k in range(min(most, steps))}
    )
    columns = ["step", *(f"C{curve.group.number}" for curve in family.curves)]
    rows = [
        [
            Value(text=str(step), sort=step),
            *(
                Value(text=f"{c.losses[step - 1]:.6f}" if step <= len(c.losses) else "-", sort=step)
                for c in family.curves
            ),
        ]
        for step in chosen
    ]
    return Table(title=f"Values: {family.title}", columns=columns, rows=rows)


def code(programs: Sequence[CodeStats]) -> Table:
    """What each program costs to write."""
    columns = ["program", "lines", "calls", "of the library", "concepts", "to know", "backends", "launchers"]
    rows = []
    for one in programs:
        calls = sum(one.calls.values())
        rows.append(
            [
                text(one.program),
                Value(text=str(one.lines), sort=one.lines),
                Value(text=str(calls), sort=calls),
                text(", ".join(f"{name} {n}x" if n > 1 else name for name, n in one.calls.items())),
                Value(text=str(len(one.concepts)), sort=len(one.concepts)),
                text("; ".join(one.concepts)),
                text(", ".join(one.backends)),
                text(", ".join(one.launchers)),
            ]
        )
    note = "Counted in the sources (reference/programs) by experiments/codestats.py: lines without blank ones, comments and docstrings."
    return Table(title="Code", columns=columns, rows=rows, note=note)
