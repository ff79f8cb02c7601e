"""Runs the starts of a plan as Slurm job arrays, through the same batch scripts that users submit.

The cells of one repeat that have the same layout and launcher are an array, whose cells run one after another; arrays wait
for one another, too, so that no two cells disturb each other. What a site needs (partition, account, GPUs) comes from the
`#SBATCH` lines of the script or from sbatch's own variables (SBATCH_PARTITION, SBATCH_ACCOUNT, ...).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from experiments.plan import Plan, Planned, folder_of, program
from experiments.records import Record, write_record
from experiments.rules import ROOT, Machine
from experiments.runner import Board, RunError, Runner, existing
from experiments.slurm_log import result_of
from experiments.supervise.rank import __file__ as RANK_PROGRAM

_TICK = 1.0  # seconds between two looks at the queue
_SPARE = 5  # minutes more than a cell's limit, for the start of the job; the script's own TIMEOUT comes first


@dataclass
class Array:
    """Cells that run as one job array."""

    name: str
    starts: list[Planned]
    job: str = ""
    began: dict[int, float] = field(default_factory=dict)  # when the cells started
    over: set[int] = field(default_factory=set)


def arrays(starts: Sequence[Planned]) -> list[Array]:
    """The starts, in order, as arrays."""
    found: dict[str, Array] = {}
    for one in starts:
        cell = one.cell
        layout = f"{cell.launcher}-{cell.nodes}x{cell.processes}-t{cell.settings.threads or 0}"
        name = f"r{cell.repeat}-{layout}"
        found.setdefault(name, Array(name, [])).starts.append(one)
    return list(found.values())


def sbatch(array: Array, run: Path, limit: float, after: str | None) -> tuple[dict[str, str], list[str]]:
    """The variables and the command that submit an array.

    Args:
        run: the folder of the matrix run.
        limit: seconds for a cell.
        after: the array that has to end first.
    """
    cell = array.starts[0].cell
    by_task = cell.launcher == "slurm"
    folder = (run / "slurm").absolute()
    variables = {"TIMEOUT": str(math.ceil(limit)), "LOG_DIR": str(folder / "logs"), "NP": str(cell.processes)}
    options = [
        f"--array=0-{len(array.starts) - 1}%1",
        f"--nodes={cell.nodes}",
        f"--ntasks-per-node={cell.processes if by_task else 1}",
        f"--time={math.ceil(limit / 60) + _SPARE}",
        "--no-requeue",
        f"--job-name=matrix-{array.name}",
        f"--output={folder / array.name}-%a.out",
    ]
    if cell.settings.threads is not None:
        variables["OMP_NUM_THREADS"] = str(cell.settings.threads)
        options.append(f"--cpus-per-task={cell.settings.threads * (1 if by_task else cell.processes)}")
    if after is not None:
        options.append(f"--dependency=afterany:{after}")
    rank = os.path.relpath(RANK_PROGRAM, ROOT)
    cells = ["-m", "experiments.slurm_cell", str(folder / f"{array.name}.json"), "%a"]
    return variables, ["sbatch", "--parsable", *options, f"launchers/{cell.launcher}.sbatch", rank, *cells]


class SlurmRunner(Runner):
    """Runs a plan on the cluster that this host can submit to."""

    def run(self) -> int:
        """Submit what has no good record, wait, and write the records; returns as `Runner.run`."""
        self._cancel(
            self._jobs.read_text().split() if self._jobs.exists() else []
        )  # of a run that was killed
        todo = []
        records: list[Record] = []
        for planned in self._plan.starts:
            record = existing(self._run, planned)
            if record is not None and record.state == "ok":
                self._board.ended(planned, record, kept=True)
            elif planned.skipped is not None:
                self._end(planned, self.record(planned, state="skipped", reason=planned.skipped))
            else:
                shutil.rmtree(folder_of(self._run, planned.cell), ignore_errors=True)
                folder_of(self._run, planned.cell).mkdir(parents=True)
                todo.append(planned)
        waiting: list[Array] = []
        try:
            with self._between_cells():
                for array in arrays(todo):
                    self._submit(array, waiting[-1].job if waiting else None)
                    waiting.append(array)
                while not self._stopped and any(len(one.over) < len(one.starts) for one in waiting):
                    records += self._look(waiting)
                    time.sleep(_TICK)
        finally:
            self._cancel([one.job for one in waiting if len(one.over) < len(one.starts)])
            self._jobs.unlink(missing_ok=True)
        if self._stopped:
            for array in waiting:
                for index in sorted(set(array.began) - array.over):
                    text = f"stopped by {signal.Signals.SIGINT.name}"
                    self._end(
                        array.starts[index],
                        self.record(array.starts[index], state="interrupted", reason=text),
                    )
            return 130
        return int(any(record.state == "failed" for record in records))

    def _submit(self, array: Array, after: str | None) -> None:
        folder = self._run / "slurm"
        folder.mkdir(exist_ok=True)
        words = [program(one.cell, self._run.absolute()) for one in array.starts]
        (folder / f"{array.name}.json").write_text(json.dumps(words), encoding="utf-8")
        for old in folder.glob(f"{array.name}-*.out"):
            old.unlink()  # the scripts append
        variables, command = sbatch(array, self._run, self._plan.preset.time_limit, after)
        answer = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60
        )
        if answer.returncode != 0:
            raise RunError(f"sbatch refused {array.name}: {answer.stderr.strip()}")
        array.job = answer.stdout.strip().partition(";")[0]
        with self._jobs.open("a", encoding="utf-8") as jobs:
            jobs.write(f"{array.job}\n")

    @property
    def _jobs(self) -> Path:
        return self._run / "slurm" / "jobs"

    def _cancel(self, jobs: Sequence[str]) -> None:
        if jobs:
            subprocess.run(["scancel", *jobs], capture_output=True, timeout=60)

    def _look(self, waiting: Sequence[Array]) -> list[Record]:
        """Look at the queue once; the records of the cells that have ended since the last look."""
        states = queue([one.job for one in waiting if len(one.over) < len(one.starts)])
        if states is None:
            return []
        found = []
        for array in waiting:
            for index, planned in enumerate(array.starts):
                if index in array.over:
                    continue
                state, began = states.get((array.job, index), ("gone", None))
                if began is not None and index not in array.began:
                    array.began[index] = began
                    self._board.started(planned)
                if state in ("gone", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"):
                    array.over.add(index)
                    found.append(self._finished(array, index, planned))
        return found

    def _finished(self, array: Array, index: int, planned: Planned) -> Record:
        output = self._run / "slurm" / f"{array.name}-{index}.out"
        logs = folder_of(self._run, planned.cell) / "logs"
        limit = self._plan.preset.time_limit
        record = self.of_result(planned, result_of(output, logs, array.began.get(index), limit))
        self._end(planned, record)
        return record

    def _end(self, planned: Planned, record: Record) -> None:
        write_record(folder_of(self._run, planned.cell), record)
        self._board.ended(planned, record, kept=False)


def queue(jobs: Sequence[str]) -> dict[tuple[str, int], tuple[str, float | None]] | None:
    """State and start of each cell that the queue knows, by array and index; None when Slurm does not answer."""
    command = [
        "squeue",
        "--noheader",
        "--array",
        "--states=all",
        "--format=%F %K %T %S",
        f"--jobs={','.join(jobs)}",
    ]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except subprocess.TimeoutExpired:
        return None
    if answer.returncode != 0 and "Invalid job id" not in answer.stderr:
        return None
    found: dict[tuple[str, int], tuple[str, float | None]] = {}
    for line in answer.stdout.splitlines():
        job, index, state, start = line.split()
        if index.isdigit():
            began = (
                datetime.fromisoformat(start).timestamp()
                if state != "PENDING" and start[0].isdigit()
                else None
            )
            found[job, int(index)] = state, began
    return found


def run(folder: Path, plan: Plan, board: Board) -> int:
    """Run a plan under Slurm; returns as `Runner.run`."""
    return SlurmRunner(folder, plan, board, Machine("slurm")).run()
