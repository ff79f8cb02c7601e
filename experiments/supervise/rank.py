"""Runs the program of one rank, as a launcher would have: `python rank.py PROGRAM [ARGUMENT...]` (`-m module` works).

- Every line that the program prints gets `[host:rank] ` in front of it, also from the ranks that it spawns itself
  (`reference.idist.processes` sends their output to a pipe of their own in the folder IDIST_RANK_OUTPUT).
- Events of the program (`reference.idist.progress`, through the pipe IDIST_EVENTS) and its end become lines for the
  supervisor, which start with `MARK`.
- Signals are passed on. When the launcher is gone, the program is killed. This process ends as the program did.

Standard library only, and quick to start: it runs once for every rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MARK = "#supervise "
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "SLURM_PROCID")
EVENTS, OUTPUT = "IDIST_EVENTS", "IDIST_RANK_OUTPUT"
_PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_TICK = 0.1  # seconds between looks at what no file descriptor tells
_DRAIN = 2.0  # seconds in which what is left in the pipes is read after the program's end
_LONGEST = 65536  # bytes of a line; what is longer is cut in pieces


def label(variables: Mapping[str, str]) -> str:
    """`host:rank`, or `host` for a process that is not one rank."""
    host = socket.gethostname().partition(".")[0]
    for name in RANK_VARIABLES:
        if variables.get(name, "").isdigit():
            return f"{host}:{variables[name]}"
    return host


class Relay:
    """Reads pipes to their end and hands on whole lines."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._pending: dict[int, bytes] = {}

    def add(self, descriptor: int, line: Callable[[bytes], None]) -> None:
        """Call `line` with each line (without its end) that comes out of the pipe."""
        os.set_blocking(descriptor, False)
        self._pending[descriptor] = b""
        self._selector.register(descriptor, selectors.EVENT_READ, line)

    @property
    def open(self) -> int:
        """Pipes that have not come to their end."""
        return len(self._pending)

    def read(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for something, and hand on what is there."""
        for key, _ in self._selector.select(timeout):
            try:
                data = os.read(key.fd, _LONGEST)
            except BlockingIOError:
                continue
            *lines, rest = (self._pending[key.fd] + data).split(b"\n")
            if not data or len(rest) >= _LONGEST:
                lines, rest = lines + ([rest] if rest else []), b""
            self._pending[key.fd] = rest
            for line in lines:
                key.data(line)
            if not data:
                self._selector.unregister(key.fd)
                del self._pending[key.fd]
                os.close(key.fd)


def writer(to: int, name: str) -> Callable[[bytes], None]:
    """Writes lines with a label to a file descriptor; a reader that has gone away is no error."""

    def write(line: bytes) -> None:
        data = b"[%s] %s\n" % (name.encode(), line)
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(to, data) :]

    return write


def tell(name: str, event: Mapping[str, Any]) -> None:
    """Tell the supervisor of an event."""
    writer(1, name)(MARK.encode() + json.dumps({"time": time.time(), **event}).encode())


def die_with_parent() -> None:
    """Linux: SIGKILL for this process when its parent is gone, however that happened."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def abort(group: int) -> None:
    """All processes of a group say where they are (PYTHONFAULTHANDLER), and end; without core files, as they don't fail."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(status.read_text().rpartition(")")[2].split()[2]) == group:
                resource.prlimit(int(status.parent.name), resource.RLIMIT_CORE, (0, 0))
    os.killpg(group, signal.SIGABRT)


def main() -> None:
    """Run the program and end as it did."""
    name, launcher = label(os.environ), os.getppid()
    folder = Path(tempfile.mkdtemp(prefix="rank-"))
    try:
        returncode = run(name, folder, launcher)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if returncode >= 0:
        sys.exit(returncode)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left a core, if any
    number = signal.Signals(-returncode)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def run(name: str, folder: Path, launcher: int) -> int:
    """Run the program until it ends; its return code as `subprocess` gives it."""
    events = folder / "events"
    os.mkfifo(events)
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", EVENTS: str(events)}
    if ":" not in name:
        variables[OUTPUT] = str(folder)
    program = subprocess.Popen(
        [sys.executable, *sys.argv[1:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables,
        start_new_session=True, preexec_fn=die_with_parent,
    )  # fmt: skip
    for signal_name in _PASSED_ON:
        signal.signal(getattr(signal, signal_name), lambda number, _: program.send_signal(number))
    signal.signal(signal.SIGABRT, lambda number, _: abort(program.pid))
    assert program.stdout is not None and program.stderr is not None
    relay = Relay()
    relay.add(os.dup(program.stdout.fileno()), writer(1, name))
    relay.add(os.dup(program.stderr.fileno()), writer(2, name))
    program.stdout.close()
    program.stderr.close()
    relay.add(os.open(events, os.O_RDWR), lambda line: tell(name, json.loads(line)))
    tell(name, {"event": "started", "pid": os.getpid()})
    ended: float | None = None
    moment = 0.0
    while ended is None or (relay.open > 1 and time.monotonic() < ended + _DRAIN):
        relay.read(_TICK)
        for pipe in folder.glob("rank-*"):
            rank = pipe.name.split("-")[1]
            to = 1 if pipe.suffix == ".out" else 2
            relay.add(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), writer(to, f"{name}:{rank}"))
            pipe.unlink()
        if os.getppid() != launcher:
            os.killpg(program.pid, signal.SIGKILL)
        if ended is None and program.poll() is not None:
            ended, moment = time.monotonic(), time.time()
    relay.read(0)  # events that came last
    tell(name, {"event": "exit", "returncode": program.returncode, "time": moment})
    return program.returncode


if __name__ == "__main__":
    main()
