"""What will be run, in which order, with which exact commands; and what will not, and why. Starts nothing.

The command of a cell is made here and nowhere else; a dry run, the run itself, the record and the report show the same one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path

from pydantic import Field

from experiments.matrix import Preset
from experiments.records import Cell, Part, Settings
from experiments.rules import SLURM, Machine, impossible, missing_data

CELLS = "cells"


class Planned(Part):
    """One start of a cell."""

    cell: Cell
    order: int = Field(description="place in the sequence of starts, from 1")
    command: list[str] = Field(
        description="to be started in the root of the clone, in the cell's environment"
    )
    environment: dict[str, str] = Field(description="variables to set for it")
    with_environment: list[str] = Field(
        description="what stands before a command to run it in that environment"
    )
    skipped: str | None = None

    @property
    def line(self) -> str:
        """The same as one line for a shell, which makes the environment where it is missing."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        before = shlex.join([*self.with_environment, "env"]) if self.with_environment else ""
        return " ".join(filter(None, [before, *variables, shlex.join(self.command)]))


class Plan(Part):
    """All starts of a matrix, and what is left out of it."""

    preset_name: str
    preset: Preset
    scheduler: str
    starts: list[Planned]
    left_out: dict[str, str] = Field(description="cells that no machine can run: key to reason")


def make(
    name: str,
    preset: Preset,
    folder: Path,
    machine: Machine,
    no_data: Callable[[Settings], str | None] = missing_data,
) -> Plan:
    """Plan a preset.

    The repeats are interleaved: all cells once, then all again in the opposite order, and so on, so that a machine that
    becomes slower or faster meanwhile does so for all cells alike.

    Args:
        name, preset: of the matrix file.
        folder: of the matrix run; each cell gets a folder of its own in it.
        machine: decides what is skipped.
        no_data: why data of these settings cannot be read.
    """
    cells = preset.cells()
    left_out = {cell.key: reason for cell in cells if (reason := impossible(cell)) is not None}
    possible = [cell for cell in cells if cell.key not in left_out]
    settings = dict.fromkeys(cell.settings for cell in possible)
    data = {one: no_data(one) for one in settings}
    skipped = {
        cell.key: machine.cannot(cell, needs_gpus=preset.needs_gpus) or data[cell.settings]
        for cell in possible
    }
    starts: list[Planned] = []
    for repeat in range(1, preset.repeats + 1):
        for cell in _in_order(possible, repeat):
            if skipped[cell.key] is not None and repeat > 1:
                continue
            again = cell.model_copy(update={"repeat": repeat})
            planned = Planned(
                cell=again,
                order=len(starts) + 1,
                command=command(again, folder),
                environment=environment(again),
                with_environment=[] if machine.in_image else with_environment(again),
                skipped=skipped[cell.key],
            )
            starts.append(planned)
    return Plan(
        preset_name=name, preset=preset, scheduler=machine.scheduler, starts=starts, left_out=left_out
    )


def _in_order(cells: list[Cell], repeat: int) -> Iterable[Cell]:
    return cells if repeat % 2 else reversed(cells)


def folder_of(run: Path, cell: Cell) -> Path:
    """Where a cell leaves everything."""
    return run / CELLS / cell.name


def environment(cell: Cell) -> dict[str, str]:
    """The variables of a cell's command."""
    variables = {"NP": str(cell.processes)}
    if cell.nodes > 1 or cell.launcher in SLURM:
        variables["NNODES"] = str(cell.nodes)
    if cell.settings.threads is not None:
        variables["OMP_NUM_THREADS"] = str(cell.settings.threads)
    return variables


def program(cell: Cell, folder: Path) -> list[str]:
    """The program of a cell and its options, as they would follow `python`."""
    chosen = [] if cell.backend == "none" else [f"--backend={cell.backend}"]
    given = cell.settings.model_dump(exclude_none=True).items()
    options = [f"--{name}={value}" for name, value in given]
    out = f"--output_path={folder_of(folder, cell)}"
    return ["-m", f"reference.programs.{cell.program}", *chosen, *options, out]


def command(cell: Cell, folder: Path) -> list[str]:
    """The command of a cell: a launcher, the program, and its options."""
    kind = "sbatch" if cell.launcher in SLURM else "sh"
    return [f"launchers/{cell.launcher}.{kind}", *program(cell, folder)]


def with_environment(cell: Cell) -> list[str]:
    """What runs a command in the cell's environment. Slurm's scripts find it by themselves."""
    if cell.launcher in SLURM:
        return []
    peer = ["peer"] if cell.program == "ignite" else []
    return ["docker/with.sh", cell.backend, *peer, "--"]
