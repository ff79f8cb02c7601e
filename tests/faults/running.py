"""A training on two processes, under the supervisor on one host, that a test breaks."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.faults.records import Record

ROOT = Path(__file__).parents[2]
TRAINER = "tests/faults/trainer.py"
LIMIT = 300.0  # seconds; a hang, not a slow machine
OPTIONS = shlex.split(
    "--dataset=digits --model=mobilenet_v3_small --max_train_samples=64 --max_eval_samples=32 --batch_size=16 --learning_rate=0.01 "
    "--checkpoint_every=20 --log_every_iters=1 --with_tensorboard=false --threads=1 --timeout=15"
)
ENDLESS = ("--num_epochs=100000", "--validate_every=100000")
SUPERVISED = ("--startup-timeout=200", "--silence-timeout=100", "--grace=40")


def backend(launcher: str) -> str:
    return "horovod" if launcher == "horovodrun" else "gloo"


def until(what: str, condition: Callable[[], Any], still: Callable[[], bool], seconds: float = LIMIT) -> Any:
    """Wait until the condition gives something, as long as `still` holds."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert still() and time.monotonic() < deadline, (
            f"not within {seconds:g} s, or it ended before: {what}"
        )
        time.sleep(0.1)
    return value


def begun(output: Path) -> bool:
    """Whether a training that writes there has made steps."""
    return any('"training"' in file.read_text() for file in output.glob("*/events.jsonl"))


class Training:
    """A supervised training in the background.

    Args:
        folder: for its output (`out`) and logs.
        launcher: name of the script.
        options: of the trainer.
        supervised: options of the supervisor.
        prefix: a command that runs the whole.
        variables: of its environment.
    """

    def __init__(
        self, folder: Path, launcher: str, *options: str, supervised: Sequence[str] = SUPERVISED,
        prefix: Sequence[str] = (), **variables: str,
    ) -> None:  # fmt: skip
        self.launcher, self.output, self.logs = launcher, folder / "out", folder / "logs"
        self.started = time.monotonic()
        command = [
            f"launchers/{launcher}.sh",
            TRAINER,
            "run",
            *OPTIONS,
            f"--output_path={self.output}",
            *options,
        ]
        if not any(option.startswith("--backend=") for option in options):
            command.append(f"--backend={backend(launcher)}")
        env = {**os.environ, "NP": "2", "PYTHONPATH": str(ROOT), **variables}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "experiments.supervise", f"--log-dir={self.logs}", *supervised, "--", *command],
            cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.printed = ""

    def wait_for_steps(self) -> list[psutil.Process]:
        """Wait until it trains; the processes of its ranks, by rank."""
        until(
            "the training makes steps",
            lambda: begun(self.output),
            lambda: self.process.poll() is None or not self.end(),
        )
        ranks = sorted(filter(_is_rank, self._below()), key=lambda process: process.create_time())
        if self.launcher == "spawn":
            return ranks  # they are started in this order
        of_rank: dict[int, psutil.Process] = {}
        for process in ranks:  # a rank's own children look like it, and are younger
            of_rank.setdefault(_rank(process), process)
        return [of_rank[0], of_rank[1]]

    def _below(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> int:
        """Wait for the end; the exit code."""
        try:
            self.printed += self.process.communicate(timeout=LIMIT)[0] or ""
        finally:
            self.process.kill()
        return self.process.returncode

    def record(self, fault: str, since: float | None = None) -> Record:
        """Wait for the end and take it down; `since` is when the fault happened (`time.monotonic`)."""
        code = self.end()
        seconds = time.monotonic() - (self.started if since is None else since)
        result = json.loads((self.logs / "result.json").read_text())
        assert result["exit_code"] == code, self.printed
        record = Record(
            fault=fault, launcher=self.launcher, ended=without_paths(result["reason"], self.output.parent), exit_code=code,
            seconds=seconds, left=left(str(self.output)),
        )  # fmt: skip
        record.save()
        return record

    def checkpoints(self) -> list[Path]:
        return list(self.output.glob("*/checkpoints/training_checkpoint_*.pt"))


def without_paths(text: str, folder: Path) -> str:
    """The same on every machine."""
    text = text.replace(str(folder), "…").replace(os.uname().nodename.split(".")[0], "localhost")
    return re.sub(r"\b[0-9a-f]{12,}\b|0x[0-9a-f]+", "…", text)


def _is_rank(process: psutil.Process) -> bool:
    line = " ".join(process.cmdline())
    return "rank.py" not in line and (
        "spawn_main" in line or (process.cmdline()[1:2] == [TRAINER] and _rank(process) >= 0)
    )


def _rank(process: psutil.Process) -> int:
    environment = process.environ()
    names = ("RANK", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK")
    return next((int(environment[name]) for name in names if name in environment), -1)


def left(marker: str) -> list[str]:
    """What still runs with `marker` in its command line, after a moment for the kernel."""
    for _ in range(100):
        found = []
        for process in psutil.process_iter():
            try:
                line = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if marker in line and process.pid != os.getpid() and "pytest" not in line:
                found.append(line)
        if not found:
            break
        time.sleep(0.1)
    return found
