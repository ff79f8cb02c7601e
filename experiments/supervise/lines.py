"""What a job prints: whose line it is, a file for each rank, and the end of what a rank said."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path

# what horovodrun ("[1]<stdout>:"), mpirun ("[1,1]<stdout>:") and srun ("1: ") put in front of a line
_LAUNCHER_PREFIX = r"(?:\[\d+(?:,\d+)?\]<std(?:out|err)>:\s?|\s*\d+: )?"
_LABELLED = re.compile(
    _LAUNCHER_PREFIX + r"\[([\w.-]+)(?::(\d+))?\] (?:\[rank\d+\]: )?(.*)", re.DOTALL
)  # torch: "[rank1]: "
TRACEBACK = "Traceback (most recent call last):"
"""How a Python traceback begins; torch puts its own label in front."""
KEPT = 400  # lines of a rank that are kept in memory
_SHOWN = 40


@dataclass(frozen=True)
class Speaker:
    """A process of a host; `rank` is None for one that is not a rank, as the launcher or the parent of spawned ranks."""

    host: str
    rank: int | None

    def __str__(self) -> str:
        return self.host if self.rank is None else f"{self.host}:{self.rank}"

    @property
    def name(self) -> str:
        """For a sentence."""
        return self.host if self.rank is None else f"rank {self.rank} on {self.host}"

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.host}.log" if self.rank is None else f"{self.host}-rank-{self.rank}.log"


def parse(line: str) -> tuple[Speaker | None, str]:
    """Who says what; None for a line without a label: the launcher's own."""
    match = _LABELLED.fullmatch(line)
    if match is None:
        return None, line
    host, rank, text = match.groups()
    return Speaker(host, None if rank is None else int(rank)), text


class Transcript:
    """Files what is said, by speaker, and remembers the last of it.

    A disk that is full must not end the job: files stay behind then, and `problem` says so.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: dict[str, deque[str]] = {}
        self.problem: str | None = None

    @property
    def files(self) -> list[str]:
        """Names of the files, in order of appearance."""
        return list(self._last)

    def add(self, speaker: Speaker | None, text: str) -> None:
        """Take down a line."""
        name = _file(speaker)
        self._last.setdefault(name, deque(maxlen=KEPT)).append(text)
        try:
            with (self._folder / name).open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
        except OSError as error:
            self.problem = f"{self._folder / name}: {error.strerror}"

    def end(self, speaker: Speaker | None) -> list[str]:
        """From its last traceback on, else its last lines."""
        lines = list(self._last.get(_file(speaker), ()))
        # a chain of exceptions ("During handling of ...") is one message
        starts = [n for n, line in enumerate(lines) if line.endswith(TRACEBACK)]
        if not starts:
            return lines[-_SHOWN:]
        start = starts.pop()
        while starts and any(
            line.startswith(("During handling", "The above exc")) for line in lines[starts[-1] : start]
        ):
            start = starts.pop()
        return lines[start:]


def _file(speaker: Speaker | None) -> str:
    return "launcher.log" if speaker is None else speaker.file
