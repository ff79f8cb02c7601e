"""What is run and what is compared with what: the cells with their exact commands, and the comparisons."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from reference.programs.equivalence.compare import CLOSE, DIFFERENT, IDENTICAL
from reference.programs.equivalence.training import RECIPES

PROGRAM = "reference.programs.equivalence.cell"
PRECISIONS = ("float32", "float64")
CONTROLS = tuple(name for name in RECIPES if name not in PRECISIONS)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One start of the training program, in which it trains one recipe after another."""

    launcher: str  # a script of launchers/
    world_size: int = 1
    backend: str | None = None
    recipes: tuple[str, ...] = PRECISIONS

    @property
    def title(self) -> str:
        """For people."""
        if self.backend is None:
            return "one process without a backend"
        return f"{self.backend}, {self.world_size} process{'es' * (self.world_size > 1)}, {self.launcher}"

    @property
    def name(self) -> str:
        """Unique, and fit for a file name."""
        kind = "" if self.recipes == PRECISIONS else "-controls"
        return f"{self.backend or 'serial'}-{self.launcher}-{self.world_size}{kind}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the command: one thread a process, so that launchers and world sizes differ in nothing else."""
        return {"NP": str(self.world_size), "OMP_NUM_THREADS": "1"}

    def command(self, out: Path) -> list[str]:
        """What is run from the root of the clone, with an environment's `python` first in PATH."""
        backend = [] if self.backend is None else [f"--backend={self.backend}"]
        options = [*backend, f"--recipes={','.join(self.recipes)}", f"--out={out}"]
        return [f"launchers/{self.launcher}.sh", "-m", PROGRAM, *options]

    def shown(self) -> str:
        """The same as one line to paste, which also makes the environment."""
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        family = self.backend or "none"
        command = [
            "docker/with.sh",
            family,
            "--",
            "env",
            *variables,
            *self.command(Path(f"{self.name}.json")),
        ]
        return shlex.join(command)


SERIAL = Cell(launcher="plain")
TORCHRUN = Cell(backend="gloo", launcher="torchrun", world_size=2)
LAUNCHERS = tuple(
    Cell(backend="gloo", launcher=name, world_size=2) for name in ("spawn", "torch_distributed_launch")
)
GLOO_1, GLOO_4 = (Cell(backend="gloo", launcher="torchrun", world_size=size) for size in (1, 4))
HOROVOD_1, HOROVOD_2, HOROVOD_4 = (
    Cell(backend="horovod", launcher="horovodrun", world_size=size) for size in (1, 2, 4)
)
XLA_1, XLA_2, XLA_4 = (Cell(backend="xla-tpu", launcher="spawn", world_size=size) for size in (1, 2, 4))
CONTROL = Cell(backend="gloo", launcher="torchrun", world_size=2, recipes=CONTROLS)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Hold one recipe of a cell against a recipe of another cell."""

    title: str
    cell: Cell
    recipe: str
    expected: str  # of compare.py: what the two have to be
    reference: Cell = SERIAL
    reference_recipe: str | None = None  # default: the same

    @property
    def reference_curve(self) -> str:
        """The recipe of the reference."""
        return self.reference_recipe or self.recipe


@dataclass(frozen=True, kw_only=True)
class Section:
    """One table of the report."""

    title: str
    text: str
    comparisons: tuple[Comparison, ...]


def _both(cells: tuple[Cell, ...], expected: str, reference: Cell = SERIAL) -> tuple[Comparison, ...]:
    """Each cell in both precisions."""
    return tuple(
        Comparison(title=cell.title, cell=cell, recipe=recipe, expected=expected, reference=reference)
        for cell in cells
        for recipe in PRECISIONS
    )


_FAULTS = {
    "another-seed": "another seed of order and augmentation",
    "lost-sample": "rank 0 loses one sample of one step",
    "local-batch-norm": "batch norm over local batches",
    "equal-weights": "every rank counts the same in the uneven global batches",
}
SECTIONS = (
    Section(
        title="Launchers",
        text=f"Reference: {TORCHRUN.title}. Same machine, same processes, same arithmetic: the same bits.",
        comparisons=_both(LAUNCHERS, IDENTICAL, TORCHRUN),
    ),
    Section(
        title="Backends",
        text=f"Reference: {SERIAL.title}. xla-tpu stands for torch_xla on the CPU, with threads that simulate the "
        "replicas.",
        comparisons=_both((TORCHRUN, HOROVOD_2, XLA_2), CLOSE),
    ),
    Section(
        title="World sizes",
        text=f"Reference: {SERIAL.title}. Two processes stand in the table above.",
        comparisons=_both((GLOO_1, GLOO_4, HOROVOD_1, HOROVOD_4, XLA_1, XLA_4), CLOSE),
    ),
    Section(
        title="Controls",
        text=f"Reference: {SERIAL.title}. Mistakes made on purpose, in float64 with {CONTROL.title}: the comparison has "
        "to find each of them.",
        comparisons=tuple(
            Comparison(
                title=_FAULTS[name], cell=CONTROL, recipe=name, expected=DIFFERENT, reference_recipe="float64"
            )
            for name in CONTROLS
        ),
    ),
)
CELLS = tuple(
    dict.fromkeys([SERIAL, TORCHRUN, *(item.cell for section in SECTIONS for item in section.comparisons)])
)
