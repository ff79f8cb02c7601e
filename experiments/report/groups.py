"""The records of a run, put together: repeats of one cell on one machine are a group, groups of one training a scene."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from experiments import runner, statistics
from experiments.plan import CELLS
from experiments.records import RECORD, Cell, Measured, Record, Settings, read_records
from experiments.statistics import Estimate

STATES = ("failed", "interrupted", "skipped", "ok")  # a group is what the first of these says that it holds


@dataclass(frozen=True, kw_only=True)
class Group:
    """The repeats of one cell on one machine.

    Args:
        number: by which the report names it: C1, C2, ...
        records: in the order of their starts, at least one.
    """

    number: int
    records: tuple[Record, ...]

    @property
    def cell(self) -> Cell:
        """Of the first repeat."""
        return self.records[0].cell

    @property
    def host(self) -> str:
        """The machine."""
        return self.records[0].host.name

    @property
    def name(self) -> str:
        """For people, with what tells groups of one training apart."""
        cell = self.cell
        return f"{cell.program} {cell.backend} {cell.launcher} {cell.nodes}x{cell.processes}"

    @property
    def state(self) -> str:
        """The worst of its repeats."""
        return next(state for state in STATES if any(record.state == state for record in self.records))

    @cached_property
    def good(self) -> list[Record]:
        """Repeats that came to their end."""
        return [record for record in self.records if record.state == "ok"]

    @cached_property
    def measured(self) -> list[Measured]:
        """What the good repeats found out."""
        return [record.measured for record in self.good if record.measured is not None]

    @cached_property
    def steps(self) -> list[list[float]]:
        """Seconds of each step after the warm-up, of each good repeat that has one."""
        return [sample for sample in statistics.step_times(self.good) if sample]

    @cached_property
    def speed(self) -> Estimate | None:
        """Images per second; None: nothing was measured."""
        return statistics.throughput(self.good) if self.steps else None

    @cached_property
    def rates(self) -> list[list[float]]:
        """Images per second of each step."""
        return [[self.cell.settings.batch_size / seconds for seconds in sample] for sample in self.steps]

    def seconds(self, name: str) -> Estimate | None:
        """Seconds from the launch to rendezvous_s, first_step_s or wall_s; None: no good repeat has it."""
        return self.each(lambda record: getattr(record.times, name))

    def each(self, value: Callable[[Record], float | None]) -> Estimate | None:
        """The median of something that each good repeat has one of; None: none of them has."""
        found = [value(record) for record in self.good]
        known = [[one] for one in found if one is not None]
        return statistics.estimate(known) if known else None

    @property
    def peak_memory(self) -> Estimate | None:
        """Bytes of the rank that needs the most."""

        def largest(record: Record) -> float | None:
            ranks = record.measured.ranks if record.measured else []
            return max((rank.peak_memory_bytes for rank in ranks), default=None)

        return self.each(largest)

    @property
    def cores_used(self) -> Estimate | None:
        """CPU time by wall time of the training loop, mean over ranks."""

        def mean(record: Record) -> float | None:
            ranks = record.measured.ranks if record.measured else []
            used = [rank.cpu_s / rank.loop_s for rank in ranks if rank.loop_s]
            return sum(used) / len(used) if used else None

        return self.each(mean)


@dataclass(frozen=True, kw_only=True)
class Scene:
    """The groups that trained the same thing on the same machine, so that their numbers can be put side by side."""

    host: str
    settings: Settings
    groups: tuple[Group, ...]

    @property
    def title(self) -> str:
        """The training, for people."""
        given = self.settings
        epochs = f"{given.num_epochs} epoch{'s' * (given.num_epochs > 1)}"
        return f"{given.model} on {given.dataset}, global batch {given.batch_size}, {epochs}"

    @cached_property
    def fast(self) -> list[Group]:
        """Groups with a speed, the fastest first."""
        return sorted((g for g in self.groups if g.speed is not None), key=lambda g: -speed_of(g).value)

    def find(self, **wanted: object) -> list[Group]:
        """Groups with a speed whose cells have these values."""
        return [g for g in self.fast if all(getattr(g.cell, name) == value for name, value in wanted.items())]


def speed_of(group: Group) -> Estimate:
    """The speed of a group that has one."""
    assert group.speed is not None
    return group.speed


@dataclass(frozen=True, kw_only=True)
class Run:
    """A matrix run, or several that were collected.

    Args:
        folder: of it.
        groups: in the order of their first starts.
        left_out: what no machine can run: key of the cell to reason; unknown in collected runs.
        missing: planned, but without a record.
    """

    folder: Path
    groups: list[Group]
    left_out: dict[str, str]
    missing: list[Cell]

    @cached_property
    def scenes(self) -> list[Scene]:
        """In the order of their first starts."""
        found: dict[tuple[str, Settings], list[Group]] = {}
        for group in self.groups:
            settings = group.cell.settings.model_copy(update={"data_path": ""})
            found.setdefault((group.host, settings), []).append(group)
        return [Scene(host=key[0], settings=key[1], groups=tuple(groups)) for key, groups in found.items()]

    @property
    def records(self) -> list[Record]:
        """All of them, group by group."""
        return [record for group in self.groups for record in group.records]

    def folder_of(self, record: Record) -> Path:
        """Where the record and its logs are; collected runs have the machine in the name."""
        own = self.folder / CELLS / record.cell.name
        return own if (own / RECORD).is_file() else own.with_name(f"{record.host.name}-{record.cell.name}")


def read(folder: Path) -> Run:
    """Read a matrix run.

    Raises:
        RecordError: it has no records, or a broken one.
        RunError: its plan was written by other code.
    """
    records = read_records(folder)
    plan = runner.read_plan(folder) if (folder / runner.PLAN).is_file() else None
    there = {record.cell.name for record in records}
    return Run(
        folder=folder,
        groups=grouped(records),
        left_out=plan.left_out if plan else {},
        missing=[start.cell for start in plan.starts if start.cell.name not in there] if plan else [],
    )


def grouped(records: Sequence[Record]) -> list[Group]:
    """Repeats of one cell on one machine together, numbered in the order of the records."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        found.setdefault((record.host.name, record.cell.key), []).append(record)
    return [Group(number=number, records=tuple(each)) for number, each in enumerate(found.values(), start=1)]
