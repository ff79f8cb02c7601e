"""How a training ended under a fault, and the table of all such ends: docs/faults.md.

FAULT_RECORDS=DIR makes the tests write their records there. `python -m tests.faults.records` (`make faults`) runs all tests and
makes the page; with a folder of records as its argument it makes the page only.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
_LONGEST = 260  # characters of a message
LAUNCHERS = (
    "spawn",
    "torchrun",
    "torch_distributed_launch",
    "horovodrun",
    "mpirun",
    "slurm",
    "slurm_torchrun",
)
FAULTS = {
    "raise": "A rank raises an exception in the training",
    "SIGKILL": "A rank gets SIGKILL, as from the kernel when memory runs out",
    "SIGSTOP": "A rank gets SIGSTOP and says nothing any more (the trainer's `--timeout` is 15 s)",
    "SIGTERM": "The job gets SIGTERM (Slurm: `scancel`)",
    "SIGUSR1": "The job gets SIGUSR1 (Slurm: `scancel --signal=USR1`)",
    "busy port": "The port to meet at is in use",
    "wrong address": "The address of node 0 leads nowhere (deadline for the start: 45 s)",
    "full disk": "The disk is full when a checkpoint is written",
    "small shm": "/dev/shm has 64 MB, as in a container by default",
    "missing backend": "The backend is not there (nccl on a machine without a GPU)",
    "missing data": "The folder of the data set is not there",
    "loopback name": "On node 0 its own name leads to 127.0.1.1, as Debian sets it up",
    "short cut": "The cable of a node is out for 4 s",
    "long cut": "The cable of a node is cut",
    "crash": "A host dies",
}


@dataclass(frozen=True, kw_only=True)
class Record:
    """One end. `seconds` are from the fault (from the start, for a fault that is there from the start) to the end."""

    fault: str
    launcher: str
    ended: str
    exit_code: int
    seconds: float
    left: Sequence[str]

    def save(self) -> None:
        """Into the folder that FAULT_RECORDS names, if it does."""
        folder = os.environ.get("FAULT_RECORDS")
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            name = f"{self.fault}--{self.launcher}.json".replace(" ", "-")
            Path(folder, name).write_text(json.dumps(asdict(self)))


def page(records: Sequence[Record]) -> str:
    """The text of docs/faults.md."""
    found = {(record.fault, record.launcher): record for record in records}
    left = [record for record in records if record.left]
    lines = [
        "# What happens when something goes wrong",
        "",
        "Made by `make faults`: each row is a real training of two processes that was broken on purpose, under the supervisor",
        "(`experiments.supervise`) or as a Slurm job, on real processes, a real Slurm cluster and hosts with networks of their own.",
        "",
        f"Made on {date.today():%Y-%m-%d} with torch {version('torch')}, Horovod {version('horovod')}, Python"
        f" {platform.python_version()}, on a small shared machine: times tell orders of magnitude. They are in seconds,"
        " from the fault to the end of the job, or from the start where the fault is there from the start.",
        "",
        f"In {len(records)} runs {'no process was left behind' if not left else f'processes were left behind in {len(left)}'}.",
    ]
    for fault, title in FAULTS.items():
        rows = [found[fault, launcher] for launcher in LAUNCHERS if (fault, launcher) in found]
        if not rows:
            continue
        lines += [
            "",
            f"## {title}",
            "",
            "| launcher | how it ended | exit code | s | left |",
            "| --- | --- | --- | --- | --- |",
        ]
        for row in rows:
            lines.append(
                f"| {row.launcher} | {_short(row.ended)} | {row.exit_code} | {row.seconds:.0f} | {', '.join(row.left) or 'nothing'} |"
            )
    lines += [
        "",
        "## Not in the tables",
        "",
        "horovodrun, torchrun and torch.distributed.launch on one host take a port that is free, so that none can be busy. Under",
        "Slurm the port comes from the job's id, and the address from Slurm.",
        "",
    ]
    return "\n".join(lines)


def _short(text: str) -> str:
    """For a table: without the places in the libraries' sources, and of a long message the beginning."""
    text = re.sub(r"\[/\S+:\d+\] |reference\.idist\.backends\.base\.", "", text)
    text = re.sub(r"\. (?:This is typically|This was caused|GLHF).*?(?= \(no word|$)", "", text).replace(
        "|", "\\|"
    )
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} …"


def main() -> None:
    """Write the page; SystemExit with pytest's exit code where a test fails."""
    failed = 0
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="fault-records-"))
    if len(sys.argv) == 1:
        command = [sys.executable, "-m", "pytest", "tests/faults", "tests/cluster/test_faults.py"]
        failed = subprocess.run(
            command, env={**os.environ, "FAULTS": "all", "FAULT_RECORDS": str(folder)}
        ).returncode
    records = [Record(**json.loads(file.read_text())) for file in sorted(folder.glob("*.json"))]
    PAGE.write_text(page(records))
    print(f"{PAGE}: {len(records)} runs, whose records are in {folder}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
