"""Run one cell after another as processes with a deadline, of which nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from reference.idist.backends import backend_class
from reference.programs.equivalence.matrix import Cell

ROOT = Path(__file__).resolve().parents[3]  # of the clone, where launchers/ is
_MARK = "EQUIVALENCE_CELL"  # in the environment of every process of a cell, whatever session or parent it has
_GRACE = 10.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a cell: curves, or the reason why there are none."""

    cell: Cell
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: str | None = None
    failed: str | None = None


@dataclass(frozen=True, kw_only=True)
class Runner:
    """Runs cells.

    Args:
        python: the interpreter of all backends but XLA.
        xla_python: XLA's, which needs another torch.
        folder: for logs and results.
        deadline: seconds for a cell.
    """

    python: Path
    xla_python: Path
    folder: Path
    deadline: float

    def run(self, cell: Cell) -> Outcome:
        """Run a cell to its end or its deadline."""
        reason = self._missing(cell)
        if reason is not None:
            return Outcome(cell=cell, skipped=reason)
        out, log = self.folder / f"{cell.name}.json", self.folder / f"{cell.name}.log"
        out.unlink(missing_ok=True)
        python = self._interpreter(cell)
        path = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
        start = time.monotonic()
        code = run_command(cell.command(out), {**cell.environment, "PATH": path}, log, self.deadline)
        seconds = time.monotonic() - start
        if code is None:
            return Outcome(cell=cell, seconds=seconds, failed=f"no end within {self.deadline:g} s, see {log}")
        if code or not out.is_file():
            return Outcome(cell=cell, seconds=seconds, failed=f"exit code {code}, see {log}")
        facts = json.loads(out.read_text())
        curves = facts.pop("curves")
        return Outcome(
            cell=cell, seconds=seconds, facts=facts, curves=curves, failed=_contradiction(cell, facts)
        )

    def _interpreter(self, cell: Cell) -> Path:
        return self.xla_python if cell.backend == "xla-tpu" else self.python

    def _missing(self, cell: Cell) -> str | None:
        if cell.backend is None:
            return None
        if cell.backend == "xla-tpu":
            found = self.xla_python.is_file()
            return None if found else "XLA needs an environment of its own: make env BACKEND=xla-tpu"
        return backend_class(cell.backend).missing(cell.backend)


def _contradiction(cell: Cell, facts: dict[str, Any]) -> str | None:
    """Whether the cell ran in another world than it was asked to."""
    for name, asked in (("backend", cell.backend), ("world_size", cell.world_size)):
        if facts[name] != asked:
            return f"it ran with {name} {facts[name]!r} instead of {asked!r}"
    return None


def run_command(command: list[str], environment: dict[str, str], log: Path, deadline: float) -> int | None:
    """Run a command from the root of the clone. Its exit code, or None if it was ended after ``deadline`` seconds."""
    mark = uuid.uuid4().hex
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **environment, _MARK: mark},
        )
        try:
            return process.wait(deadline)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(mark)
            process.wait()


def _end(mark: str) -> None:
    """SIGTERM, and after the grace period SIGKILL, for every process that carries the mark."""
    left = list(_marked(mark))
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    psutil.wait_procs(left, timeout=_GRACE)
    for process in _marked(mark):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(_MARK) == mark:
                yield process
