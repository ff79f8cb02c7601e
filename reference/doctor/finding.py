"""A finding: one fact, how good it is, and one line about it."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

OK, NOTE, PROBLEM = LEVELS = ("ok", "note", "problem")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the report."""

    section: str  # heading under which it stands
    name: str  # what was looked at, unique in its section
    value: Any  # what was found, in plain JSON values
    text: str  # the same for people; after a colon what will bite, and what to do
    level: str = OK  # "problem" stops a run, "note" may bite
    shared: bool = True  # whether all ranks of a world are expected to find the same value
    odd: bool = False  # they do not: the value is a mapping from rank to value


def worst(findings: Iterable[Finding]) -> str:
    """The worst level of all; "ok" for none."""
    return max((finding.level for finding in findings), key=LEVELS.index, default=OK)


def size(count: float) -> str:
    """A number of bytes for people: ``size(67108864)`` is "64 MiB"."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def within(seconds: float, function: Callable[[], T]) -> T:
    """What ``function`` returns or raises; TimeoutError after ``seconds``, with the call left behind in a daemon thread."""
    outcome: list[tuple[T | None, Exception | None]] = []

    def call() -> None:
        try:
            outcome.append((function(), None))
        except Exception as error:
            outcome.append((None, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise TimeoutError(f"no answer within {seconds:g} s")
    value, error = outcome[0]
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def ask(command: Sequence[str], seconds: float) -> tuple[str, str | None]:
    """Run a program: what it printed, and why it failed, in one line, or None."""
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer within {seconds:g} s"
    except OSError as error:
        return "", error.strerror or str(error)
    output = (answer.stdout or answer.stderr).strip()
    if answer.returncode:
        reason = re.sub(r"^[\w.-]+(\[\d+\])?: ((error|fatal): )?", "", last_line(answer.stderr))
        return output, reason or f"exit code {answer.returncode}"
    return output, None


def first_line(text: str) -> str:
    """The first line with something on it, without a full stop."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "").removesuffix(".")


def last_line(text: str) -> str:
    """The last line with something on it."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
