"""Starts the programs that are measured, through the launchers and under the supervisor: none hangs, none is left behind."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.results import ResultError

ROOT = Path(__file__).resolve().parents[1]
T = TypeVar("T")
TRAINER = ("-m", "reference.cifar10", "run", "--threads=1", "--with_tensorboard=false")


@dataclass
class Bench:
    """How a benchmark is run, and what it starts programs with.

    Args:
        folder: for all files of the programs.
        repeats: starts of each side.
        quick: a trial: as little as shows that it works.
        data_path: folder with train/<class>/* and test/<class>/*; None: the embedded digits take the images' place.
        say: shows a line to whoever waits.
    """

    folder: Path
    repeats: int = 3
    quick: bool = False
    data_path: Path | None = None
    say: Callable[[str], None] = print
    _count: int = field(default=0, init=False)

    @property
    def dataset(self) -> list[str]:
        """The data set, as options of the trainer and of the programs."""
        if self.data_path is None:
            return ["--dataset=digits"]
        return ["--dataset=images", f"--data_path={self.data_path}"]

    def new_folder(self, name: str) -> Path:
        """A folder of its own for one start."""
        self._count += 1
        path = self.folder / f"{self._count:03d}-{name}"
        path.mkdir(parents=True)
        return path

    def in_turns(self, *sides: Callable[[], T]) -> list[list[T]]:
        """Call every side `repeats` times, in the order A B, B A, A B, ...: what drifts meanwhile hits all alike.

        Returns:
            For each side, what its calls returned.
        """
        found: list[list[T]] = [[] for _ in sides]
        for repeat in range(self.repeats):
            numbers = range(len(sides)) if repeat % 2 == 0 else reversed(range(len(sides)))
            for number in numbers:
                found[number].append(sides[number]())
        return found

    def start(
        self,
        launcher: str,
        processes: int,
        *program: str,
        env: Mapping[str, str] | None = None,
        timeout: float = 900.0,
        name: str = "start",
    ) -> Start:
        """Run a program to its end.

        Args:
            launcher: `plain`, `torchrun`, `horovodrun`, ...: launchers/<launcher>.sh.
            processes: on this machine.
            program: and its arguments, as they would follow `python`: "-m", "reference.programs.idist", ...
            env: added to the environment.
            timeout: seconds.
            name: of its folder.

        Raises:
            ResultError: it failed; with its last lines.
        """
        folder = self.new_folder(name)
        command = [
            sys.executable, "-m", "experiments.supervise", f"--log-dir={folder / 'logs'}", f"--timeout={timeout}",
            "--grace=10", "--", f"launchers/{launcher}.sh", *program,
        ]  # fmt: skip
        variables = {**os.environ, "NP": str(processes), **(env or {})}
        begin = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        seconds = time.perf_counter() - begin
        (folder / "output.log").write_text(done.stdout, encoding="utf-8")
        if done.returncode:
            tail = "\n".join(done.stdout.splitlines()[-15:])
            raise ResultError(f"{' '.join(command[7:])} failed with {done.returncode}: {tail}")
        return Start(folder=folder, seconds=seconds)

    def train(self, processes: int, *options: str) -> Start:
        """`start` the CIFAR-10 trainer under torchrun, with one thread a process; `Start.result` is what it measured."""
        folder = self.new_folder("trainer-runs")
        program = [*TRAINER, f"--output_path={folder}", *options]
        started = self.start("torchrun", processes, *program, name="trainer")
        (path,) = folder.glob("*/result.json")
        return dataclasses.replace(started, result=json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True, kw_only=True)
class Start:
    """One run of a program.

    Args:
        folder: its own, with `logs/result.json` of the supervisor.
        seconds: from the start of its launcher to the end of its last process.
        result: of the trainer, its result.json.
    """

    folder: Path
    seconds: float
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def times(self) -> dict[str, Any]:
        """The supervisor's result.json: `rendezvous_s`, `first_step_s`, ..."""
        content: dict[str, Any] = json.loads(
            (self.folder / "logs" / "result.json").read_text(encoding="utf-8")
        )
        return content


def shown(launcher: str, processes: int, *program: str) -> str:
    """The command of `Bench.start`, for people: on their machine the data are elsewhere."""
    words = ["--data_path=data" if word.startswith("--data_path=") else word for word in program]
    return " ".join([f"NP={processes}", f"launchers/{launcher}.sh", *words])
