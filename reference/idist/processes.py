"""Start the processes of one node, own them, and say what happened: the basis of every `spawn`.

Whatever happens, no process is left: a failing one takes the others with it, and all of them die with their parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from reference.idist import progress
from reference.idist.backends.base import CollectiveError

_SETTLE = 1.0  # seconds after a failure in which other ranks may still say that they failed, too
_GRACE = 5.0  # seconds between SIGTERM and SIGKILL
_FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class ProcessFailed(RuntimeError):
    """A process failed: the message ends with the traceback of the one that failed first."""

    def __init__(self, message: str, local_rank: int, exitcode: int | None, cause: str) -> None:
        super().__init__(message)
        self.local_rank = local_rank
        self.exitcode = exitcode
        self.cause = cause  # "ValueError: ...", or the signal that ended it


@dataclass(kw_only=True)
class _Failure:
    local_rank: int
    when: float
    cause: str
    detail: str
    consequence: bool  # of another rank's failure: a collective broke
    exitcode: int | None = None


def run(
    target: Callable[..., Any],
    args: Sequence[Any],
    *,
    count: int,
    start_method: str = "spawn",
    first_rank: int = 0,
    keep: Any = None,
) -> Any:
    """Run ``target(local_rank, *args)`` in ``count`` processes and return what local rank 0 returned.

    A value that can't be pickled is returned as None, with a warning. ``first_rank`` is the rank of local rank 0;
    ``keep`` is held until all have ended.

    Raises:
        ValueError: ``target`` or ``args`` can't be sent to a process of this start method.
        ProcessFailed: a process raised or was killed; all others were ended.
    """
    context: Any = multiprocessing.get_context(start_method)
    processes: list[BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for local_rank in range(count):
            receive, send = context.Pipe(duplex=False)
            process = context.Process(
                target=_child,
                args=(send, os.getpid(), start_method, target, local_rank, first_rank, tuple(args)),
                daemon=False,
            )
            try:
                process.start()
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                hint = "pass functions and values that can be pickled (functions of a module), or start_method='fork'"
                raise ValueError(f"start_method={start_method!r}: {error}: {hint}") from error
            send.close()
            processes.append(process)
            pipes.append(receive)
        with _forward_signals(processes):
            return _collect(processes, pipes, first_rank)
    finally:
        _end(processes)
        for pipe in pipes:
            pipe.close()
        del keep


def _child(
    send: Connection,
    parent: int,
    start_method: str,
    target: Callable[..., Any],
    local_rank: int,
    first_rank: int,
    args: Sequence[Any],
) -> None:
    _die_with_parent(parent if start_method != "forkserver" else None)
    _speak_as(first_rank + local_rank)
    multiprocessing.set_start_method(
        None, force=True
    )  # how this was started says nothing about loader workers
    try:
        message: tuple[Any, ...] = ("value", target(local_rank, *args))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)  # the parent got it as well, and reports it
    except Exception as error:
        message = (
            "error",
            time.time(),
            f"{type(error).__name__}: {error}",
            traceback.format_exc(),
            _broken(error),
            getattr(error, "local_rank", local_rank),  # of the replica, where a process holds several
        )
    try:
        payload = pickle.dumps(message)
    except Exception as error:
        payload = pickle.dumps(("unpicklable", f"{type(error).__name__}: {error}"))
    with contextlib.suppress(BrokenPipeError):
        send.send_bytes(payload)
    send.close()
    if message[0] == "error":
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # a broken library must not hold the process in its exit handlers


def _speak_as(rank: int) -> None:
    """Under a supervisor (experiments.supervise): what this process prints goes through pipes of its own, named by rank."""
    folder = os.environ.get("IDIST_RANK_OUTPUT")
    if folder is None:
        return
    for descriptor, stream in ((1, "out"), (2, "err")):
        path = os.path.join(folder, f"rank-{rank}-{os.getpid()}.{stream}")
        os.mkfifo(path)
        pipe = os.open(path, os.O_WRONLY)  # waits until the supervisor reads
        os.dup2(pipe, descriptor)
        os.close(pipe)


def _broken(error: BaseException | None) -> bool:
    """Whether a broken collective caused ``error``, here or on the rank that this one waited for."""
    while error is not None:
        if isinstance(error, CollectiveError):
            return True
        error = error.__cause__
    return False


def _die_with_parent(parent: int | None) -> None:
    """Linux: SIGKILL for this process when its parent is gone, however that happened."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        if parent is not None and os.getppid() != parent:
            os._exit(1)


def _collect(processes: Sequence[BaseProcess], pipes: Sequence[Connection], first_rank: int) -> Any:
    values: dict[int, Any] = {}
    failures: dict[int, _Failure] = {}
    deadline = None
    while len(values) + len(failures) < len(processes):
        open_ranks = [r for r in range(len(processes)) if r not in values and r not in failures]
        wait(
            [pipes[r] for r in open_ranks],
            None if deadline is None else max(0.0, deadline - time.monotonic()),
        )
        for rank in open_ranks:
            if pipes[rank].poll():
                _receive(rank, processes[rank], pipes[rank], values, failures)
        if failures and deadline is None:
            deadline = time.monotonic() + _SETTLE
        if deadline is not None and time.monotonic() >= deadline:
            break
    if failures:
        failed = _report(failures)
        progress.report(
            "failed", rank=first_rank + failed.local_rank, cause=failed.cause, exitcode=failed.exitcode
        )
        raise failed
    for process in processes:
        process.join()
    return values[0]


def _receive(
    rank: int, process: BaseProcess, pipe: Connection, values: dict[int, Any], failures: dict[int, _Failure]
) -> None:
    try:
        message = pickle.loads(pipe.recv_bytes())
    except EOFError:  # it ended without a word
        process.join(_GRACE)
        code = process.exitcode
        cause = (
            f"killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else f"exit code {code}"
        )
        failures[rank] = _Failure(
            local_rank=rank, when=time.time(), cause=cause, detail=cause, consequence=False, exitcode=code
        )
        return
    if message[0] == "error":
        _, when, cause, detail, consequence, local_rank = message
        failures[rank] = _Failure(
            local_rank=local_rank, when=when, cause=cause, detail=detail, consequence=consequence
        )
        return
    if message[0] == "unpicklable" and rank == 0:
        logging.getLogger("reference.idist").warning("the returned value is dropped: %s", message[1])
    values[rank] = message[1] if message[0] == "value" else None


def _report(failures: dict[int, _Failure]) -> ProcessFailed:
    first, *others = sorted(failures.values(), key=lambda f: (f.consequence, f.when))
    lines = [f"local rank {f.local_rank} failed as well: {f.cause.splitlines()[0]}" for f in others]
    lines.append(f"local rank {first.local_rank} failed first: {first.detail.rstrip()}")
    return ProcessFailed("\n".join(lines), first.local_rank, first.exitcode, first.cause)


def _end(processes: Sequence[BaseProcess]) -> None:
    """SIGTERM, and after the grace period SIGKILL, for all that still run."""
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        process.terminate()
    deadline = time.monotonic() + _GRACE
    for process in alive:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


@contextlib.contextmanager
def _forward_signals(processes: Sequence[BaseProcess]) -> Iterator[None]:
    """Pass SIGTERM, SIGUSR1 and SIGUSR2 on, so that the training decides what they mean."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, _frame: Any) -> None:
        for process in processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, number)

    previous = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
