"""The report as sections of sentences, tables and pictures, before it becomes HTML or Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from experiments import codestats
from experiments.codestats import CodeStats
from experiments.report import claims, curves, facts, pairs, plots, tables, verdict
from experiments.report.claims import Claim
from experiments.report.curves import Family
from experiments.report.facts import Fact, Fault, scrubbed
from experiments.report.groups import Group, Run
from experiments.report.plots import Plot
from experiments.report.values import Table
from experiments.report.verdict import Sentence


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part with numbers.

    Args:
        name: in links.
        folded: tables that are opened by a click.
    """

    name: str
    title: str
    text: str = ""
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    folded: list[Table] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Content:
    """Everything that is in a report."""

    title: str
    hosts: list[str]
    verdict: list[Sentence]
    claims: list[Claim]
    claims_how: str
    matrix: Table
    left_out: dict[str, str]
    faults: list[Fault]
    sections: list[Section]
    code: list[CodeStats]
    environment: list[Fact]
    groups: list[Group]

    def command(self, group: Group) -> str:
        """What gives the numbers of a group."""
        return scrubbed(group.records[0].line)


def content(run: Run) -> Content:
    """Work everything out."""
    families = curves.families(run.scenes)
    overheads = pairs.overheads(run.scenes)
    launches = pairs.launches(run.scenes, "spawn", "torch_distributed_launch")
    scalings = pairs.scalings(run.scenes)
    code = codestats.statistics()
    presets = list(dict.fromkeys(record.preset for record in run.records))
    return Content(
        title=f"The comparison matrix: {' and '.join(presets)}",
        hosts=list(dict.fromkeys(group.host for group in run.groups)),
        verdict=verdict.verdict(run, families, scalings),
        claims=claims.settle(run, code, overheads, launches, families),
        claims_how=claims.HOW,
        matrix=tables.matrix(run, families),
        left_out=run.left_out,
        faults=facts.faults(run),
        sections=list(_sections(run, families, overheads, scalings, code)),
        code=code,
        environment=facts.environment(run),
        groups=run.groups,
    )


def _sections(
    run: Run,
    families: list[Family],
    overheads: list[pairs.Pair],
    scalings: list[pairs.Scaling],
    code: list[CodeStats],
) -> Iterator[Section]:
    scenes = [scene for scene in run.scenes if scene.fast]
    if scenes:
        yield Section(
            name="throughput",
            title="Throughput",
            text="Images per second over all ranks: the global batch by the median step time of the slowest rank. The values are in the table of all cells.",
            plots=[plots.throughput(scene, f"throughput-{n}") for n, scene in enumerate(scenes, start=1)],
        )
    if families:
        yield Section(
            name="equivalence",
            title="Do they learn the same?",
            text=curves.HOW,
            plots=[
                plots.curves(family, f"curves-{n}")
                for n, family in enumerate(families, start=1)
                if len(family.curves) > 1
            ],
            tables=[tables.equivalence(family) for family in families],
            folded=[tables.losses(family) for family in families],
        )
    starts = tables.start_times(run)
    if starts.rows:
        yield Section(
            name="start",
            title="Time to the first step",
            plots=[plots.start_times(run)],
            tables=[starts],
        )
    if overheads:
        yield Section(
            name="overhead",
            title="Overhead against hand-written code",
            plots=[plots.overhead(overheads)],
            tables=[tables.overhead(overheads)],
        )
    if scalings:
        yield Section(
            name="scaling",
            title="Scaling",
            plots=[plots.scaling(scalings)],
            tables=[tables.scaling(scalings)],
        )
    memory = tables.memory(run)
    if memory.rows:
        yield Section(name="memory", title="Memory, CPU and traffic", tables=[memory])
    yield Section(name="code", title="Code", tables=[tables.code(code)])
