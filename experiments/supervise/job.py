"""What the supervisor is asked to run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RANK_PROGRAM = Path(__file__).with_name("rank.py")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command and how long it may take. All times in seconds; None is no limit.

    If the command goes through a script in a folder `launchers`, each process that the launcher starts is labelled and
    watched (`rank.py`).
    """

    command: Sequence[str]
    log_dir: Path
    """Gets a file for each rank, `launcher.log` and `result.json`; made if it is not there."""
    startup_timeout: float | None = None
    """From the start until all ranks have met; only for programs that tell (`reference.idist.progress`)."""
    silence_timeout: float | None = None
    """Without a line or an event from any rank."""
    timeout: float | None = None
    """For one attempt as a whole."""
    grace: float = 60.0
    """From the signal that asks the job to end until everything is killed: time for a checkpoint."""
    restarts: int = 0
    """How often a failed job is started again."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the supervisor's own environment."""


def labelled(command: Sequence[str]) -> list[str]:
    """The command with `rank.py` between the launcher and the program; as it is where there is no launcher.

    The path is relative where it can be, so that it is right on other hosts and in a container, too.
    """
    for place, word in enumerate(command, start=1):
        if Path(word).suffix == ".sh" and Path(word).parent.name == "launchers":
            relative = os.path.relpath(RANK_PROGRAM)
            program = str(RANK_PROGRAM) if relative.startswith("..") else relative
            return [*command[:place], program, *command[place:]]
    return list(command)
