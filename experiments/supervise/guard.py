"""Owns the processes of a job: the supervisor starts this program, and it starts the launcher.

It ends the job when it is told to, and also when the supervisor is gone: SIGTERM to the launcher, and SIGKILL for everything
that is left after the grace period. Nothing escapes: orphans become its children. If this program itself is killed, the
kernel kills the launcher, and every `rank.py` its program.

Standard input: a line of JSON that says what to start, then commands, one a line: `signal N`, `grace` (kill it when the
grace period is over), `end` (SIGTERM, then the same), `kill`.
Standard output: a line of JSON when all is over.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

_TICK = 0.1
_AFTERWARDS = 3.0  # seconds in which what a launcher has left behind may end by itself


def descendants(ancestor: int) -> list[int]:
    """The processes below a process, from Linux's /proc; zombies are none."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                children.setdefault(int(parent), []).append(int(status.parent.name))
    found, generation = [], [ancestor]
    while generation:
        generation = [child for parent in generation for child in children.get(parent, ())]
        found += generation
    return found


def command_line(process: int) -> str:
    """What was started, for people; empty when it is gone."""
    try:
        return (
            Path(f"/proc/{process}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    except OSError:
        return ""


def write_atomically(path: Path, content: dict[str, Any]) -> None:
    """A file that is either complete or as it was before."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_text(json.dumps(content, indent=2) + "\n")
    unfinished.replace(path)


class Guard:
    """The launcher and all that comes from it.

    Args:
        spec: `command`, `stdout` and `stderr` (file descriptors), `grace` in seconds.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self._grace = spec["grace"]
        self._deadline: float | None = None
        prctl = ctypes.CDLL(None).prctl
        prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans below become children of this process
        self._launcher = subprocess.Popen(
            spec["command"], stdin=subprocess.DEVNULL, stdout=spec["stdout"], stderr=spec["stderr"],
            start_new_session=True, preexec_fn=lambda: prctl(1, signal.SIGKILL, 0, 0, 0),
        )  # fmt: skip
        os.close(spec["stdout"])
        os.close(spec["stderr"])

    def obey(self, command: str) -> None:
        """Carry out a command of the supervisor."""
        verb, _, number = command.partition(" ")
        if verb == "signal":
            self._launcher.send_signal(int(number))
        elif verb in ("end", "grace") and self._deadline is None:
            if verb == "end":
                self._launcher.terminate()
            self._deadline = time.monotonic() + self._grace
        elif verb == "kill":
            self._deadline = time.monotonic()

    @property
    def over(self) -> bool:
        """Whether the launcher has ended, or must."""
        return self._launcher.poll() is not None or (
            self._deadline is not None and time.monotonic() >= self._deadline
        )

    def clear(self) -> dict[str, Any]:
        """Kill what is left; how the launcher ended, and what had to be killed after it."""
        killed = self._launcher.poll() is None
        patience = time.monotonic() + (0 if killed else _AFTERWARDS)
        while descendants(os.getpid()) and time.monotonic() < patience:
            self._reap()
            time.sleep(_TICK)
        left: list[str] = []
        while remaining := descendants(os.getpid()):
            if not killed:
                left += [command_line(process) for process in remaining]
            for process in remaining:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(_TICK / 2)
            self._reap()
        return {
            "exit": self._launcher.wait(),
            "left": sorted({line for line in left if line}),
        }

    def _reap(self) -> None:
        if self._launcher.poll() is None:
            return  # waiting for any child would take the launcher's exit code away
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def main() -> None:
    """Start the launcher and obey until it is over."""
    commands = io.FileIO(0)  # unbuffered, as select() tells of what was not read yet
    spec = json.loads(commands.readline())
    try:
        guard = Guard(spec)
    except OSError as error:
        print(json.dumps({"error": f"{spec['command'][0]}: {error.strerror}"}), flush=True)
        return
    alone = False
    while not guard.over:
        if not select.select([] if alone else [commands], [], [], _TICK)[0]:
            continue
        line = commands.readline().decode().strip()
        if not line:
            alone = True
        guard.obey(line or "end")
    answer = guard.clear()
    alone = alone or (select.select([commands], [], [], 0)[0] != [] and not commands.read(1))
    if alone:
        leave_word(Path(spec["result"]), answer)
    else:
        with contextlib.suppress(OSError):
            print(json.dumps(answer), flush=True)


def leave_word(result: Path, answer: dict[str, Any]) -> None:
    """Nobody else is left to say how the job ended."""
    with contextlib.suppress(OSError, ValueError):
        content = json.loads(result.read_text())
        content |= {
            "reason": "the supervisor was killed",
            "exit_code": 128 + signal.SIGKILL,
            "wall_s": time.time() - content["started"],
            "left_behind": answer["left"],
        }
        write_atomically(result, content)


if __name__ == "__main__":
    main()
