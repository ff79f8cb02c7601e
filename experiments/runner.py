"""Runs the starts of a plan, one after another, each under the supervisor, and leaves a record of each, whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from experiments.plan import Plan, Planned, folder_of
from experiments.records import (
    RECORD,
    FailedRank,
    Git,
    Host,
    Measured,
    Record,
    RecordError,
    State,
    Times,
    read_measured,
    read_record,
    write_record,
)
from experiments.rules import IMAGE_RECORD, Machine
from experiments.supervise import Job, supervise
from reference.files import write_atomically

HOME = Path("output-matrix")
PLAN = "plan.json"
_MAY_CHANGE = {"about", "time_limit"}  # of a preset, when a run goes on
_STARTUP = 180.0  # seconds until all ranks have met
_GRACE = 10.0  # seconds for a program to end when it is asked to; there are no checkpoints to write
Supervise = Callable[[Job, Callable[[str], None]], dict[str, Any]]


class RunError(ValueError):
    """A matrix cannot be run there; the message is one line."""


class Board(Protocol):
    """Is told what happens."""

    def started(self, planned: Planned) -> None:
        """A cell starts."""

    def line(self, text: str) -> None:
        """A line that the running cell printed."""

    def ended(self, planned: Planned, record: Record, *, kept: bool) -> None:
        """A cell is over; ``kept``: its record was there already."""


def new_folder(preset: str, home: Path = HOME) -> Path:
    """A name for a new matrix run."""
    return home / f"{preset}-{datetime.now():%Y%m%d-%H%M%S}"


def newest(preset: str = "*", home: Path = HOME) -> Path:
    """The newest matrix run, of a preset or at all.

    Raises:
        RunError: there is none.
    """
    found = sorted(home.glob(f"{preset}-*/{PLAN}"), key=lambda path: path.stat().st_mtime)
    if not found:
        wanted = "" if preset == "*" else f" of the preset {preset}"
        raise RunError(f"{home} holds no matrix run{wanted}: start one with python -m experiments run")
    return found[-1].parent


def read_plan(run: Path) -> Plan:
    """The plan of a matrix run.

    Raises:
        RunError: it has none, or one that this code cannot read.
    """
    try:
        return Plan.model_validate_json((run / PLAN).read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{run / PLAN}: {error.strerror}: {run} is not the folder of a matrix run") from None
    except ValueError:
        raise RunError(f"{run / PLAN} was written by other code: run the matrix again") from None


def prepare(run: Path, plan: Plan, *, resume: bool) -> None:
    """Make the folder of a matrix run, or check that it holds the same matrix.

    Raises:
        RunError: it holds records already, or those of another matrix.
    """
    if (run / PLAN).exists():
        if not resume:
            raise RunError(
                f"{run} holds a matrix run: --resume goes on with it, --output names another folder"
            )
        before, now = (one.preset.model_dump(exclude=_MAY_CHANGE) for one in (read_plan(run), plan))
        for name in now:
            if before[name] != now[name]:
                raise RunError(f"{run} is of another matrix: {name} has changed; use another --output")
    run.mkdir(parents=True, exist_ok=True)
    write_atomically(run / PLAN, plan.model_dump_json(indent=1) + "\n")


def existing(run: Path, planned: Planned) -> Record | None:
    """The record of a start, if it has a readable one."""
    try:
        return read_record(folder_of(run, planned.cell) / RECORD)
    except RecordError:
        return None


class Runner:
    """Runs a plan on this machine.

    Args:
        run: the folder, prepared.
        plan: the same as in it.
        board: is told what happens.
        machine: knows where the environments are.
        supervise: runs a job; the supervisor's function.
    """

    def __init__(
        self, run: Path, plan: Plan, board: Board, machine: Machine, supervise: Supervise = supervise
    ) -> None:
        self._run = run
        self._machine = machine
        self._plan = plan
        self._board = board
        self._supervise = supervise
        self._stopped = False
        self.host, self.git = this_machine()

    def run(self) -> int:
        """Run all starts that have no good record yet.

        Returns:
            0 all are ok or skipped, 1 some failed, 130 stopped by Ctrl-C or SIGTERM.
        """
        failed = False
        with self._between_cells():
            for planned in self._plan.starts:
                if self._stopped:
                    return 130
                record = existing(self._run, planned)
                kept = record is not None and record.state == "ok"
                if record is None or not kept:
                    record = self._one(planned)
                self._board.ended(planned, record, kept=kept)
                if record.state == "interrupted":
                    return 130
                failed |= record.state == "failed"
        return int(failed)

    def _one(self, planned: Planned) -> Record:
        folder = folder_of(self._run, planned.cell)
        shutil.rmtree(folder, ignore_errors=True)  # what a failed or interrupted start left
        folder.mkdir(parents=True)
        if planned.skipped is not None:
            record = self.record(planned, state="skipped", reason=planned.skipped)
        else:
            self._board.started(planned)
            limit = self._plan.preset.time_limit
            job = Job(
                command=planned.command,
                log_dir=folder / "logs",
                startup_timeout=min(_STARTUP, limit),
                timeout=limit,
                grace=_GRACE,
                env={**self._machine.variables(planned.cell), **planned.environment},
            )
            record = self.of_result(planned, self._supervise(job, self._board.line))
        write_record(folder, record)
        return record

    def of_result(self, planned: Planned, result: Mapping[str, Any]) -> Record:
        """The record of a start that the supervisor has seen end."""
        folder = folder_of(self._run, planned.cell)
        failed = result["failed"]
        if failed is not None:
            failed = FailedRank(**{**failed, "log": failed["log"] and f"logs/{failed['log']}"})
        state, reason, measured = judge(planned, result["reason"], result["exit_code"], folder)
        return self.record(
            planned,
            state=state,
            reason=reason,
            exit_code=result["exit_code"],
            failed=failed,
            started=result["started"],
            times=Times(**{name: result[name] for name in Times.model_fields}),
            restarts=result["restarts"],
            hosts=result.get("hosts", [self.host.name] * planned.cell.world_size),
            logs=[f"logs/{name}" for name in result["logs"]],
            measured=measured,
        )

    def record(self, planned: Planned, **facts: Any) -> Record:
        """A record with what is the same for all starts of this run."""
        return Record(
            cell=planned.cell,
            command=planned.command,
            environment=planned.environment,
            line=planned.line,
            preset=self._plan.preset_name,
            warmup=self._plan.preset.warmup,
            order=planned.order,
            image=image(),
            host=self.host,
            git=self.git,
            **facts,
        )

    @contextmanager
    def _between_cells(self) -> Iterator[None]:
        """A signal that comes between two cells ends the run; during a cell it is the supervisor's."""

        def stop(number: int, frame: object) -> None:
            self._stopped = True

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def judge(planned: Planned, reason: str, exit_code: int, folder: Path) -> tuple[State, str, Measured | None]:
    """The state of a start, the reason of it, and what its program measured."""
    if reason.startswith("stopped by"):
        return "interrupted", reason, None
    if exit_code != 0:
        return "failed", reason, None
    try:
        measured = read_measured(folder / "result.json")
    except RecordError as error:
        return "failed", f"the program left no result: {error}", None
    cell = planned.cell
    for name in ("program", "backend", "world_size"):
        asked, found = getattr(cell, name), getattr(measured, name)
        if asked != found:
            return "failed", f"it ran with {name} {found} instead of {asked}", None
    if not measured.replicas_equal:
        return "failed", "the ranks ended with different parameters", None
    return "ok", "finished", measured


def this_machine() -> tuple[Host, Git]:
    """What starts the cells."""
    from reference.cifar10.manifest import of_this_machine  # imports torch

    facts = of_this_machine()
    return Host(**facts["host"]), Git(**facts["git"])


def image() -> dict[str, Any] | None:
    """The container that this is: what its build wrote down, and how it was named; None outside of one."""
    facts: dict[str, Any] = {}
    if IMAGE_RECORD.is_file():
        facts = json.loads(IMAGE_RECORD.read_text(encoding="utf-8"))
    if os.environ.get("IMAGE"):
        facts["name"] = os.environ["IMAGE"]
    return facts or None


def status(run: Path) -> list[tuple[Planned, Record | None]]:
    """Every start of a matrix run with its record, None where it has none yet.

    Raises:
        RunError: it is none.
    """
    return [(planned, existing(run, planned)) for planned in read_plan(run).starts]
