"""Calls of the doctor as users make them, with a deadline, and a look at what they leave."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
DEADLINE = 150.0  # seconds; a test that waits for more is broken
MARK = "DOCTOR_TEST"
PYTHON = [sys.executable, "-m", "reference.doctor"]
NO_XLA = "--xla-python=/nowhere"
# What starts processes, or tells how they were started, must come from the test alone.
_LAUNCHER = (
    "SLURM_",
    "OMPI_",
    "HOROVOD_",
    "TORCHELASTIC_",
    "GLOO_",
    "NCCL_",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_",
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a call printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The report of --json."""
        report: dict[str, Any] = json.loads(self.out)
        return report

    def finding(self, name: str) -> dict[str, Any]:
        """The only finding of that name."""
        (found,) = [finding for finding in self.json["findings"] if finding["name"] == name]
        return found


def environment(**variables: str) -> dict[str, str]:
    """The environment of a call: ours without a launcher's variables, with ``variables`` and a mark of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER)}
    home = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": home, MARK: uuid.uuid4().hex, **variables}


def call(command: list[str], environ: dict[str, str]) -> Answer:
    """Run a command from the root of the clone to its end; nothing of it may be left."""
    process = subprocess.run(
        command,
        env=environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        stdin=subprocess.DEVNULL,
    )
    assert left(environ[MARK]) == []
    return Answer(code=process.returncode, out=process.stdout, err=process.stderr)


def doctor(*arguments: str, **variables: str) -> Answer:
    """Run the doctor with these arguments and environment variables."""
    return call([*PYTHON, *arguments], environment(**variables))


def left(mark: str) -> list[str]:
    """The command lines of processes that carry a mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.append(" ".join(process.cmdline()))
    return found
