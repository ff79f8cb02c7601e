"""Runs a job to its end: deadlines, signals, restarts, and the record of how it ended."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.supervise import guard
from experiments.supervise.attempt import Attempt, Failure
from experiments.supervise.job import Job, labelled
from experiments.supervise.lines import KEPT, TRACEBACK, Speaker, Transcript, parse
from experiments.supervise.rank import MARK, Relay

FINISHED = "finished"
TIMED_OUT = 124  # exit code, as that of timeout(1)
_TICK = 0.1
_DRAIN = 5.0  # seconds for what is left in the pipes when all processes are gone
_STACKS = 3.0  # seconds for ranks to say where they hang
Echo = Callable[[str], None]


class Supervisor:
    """One job. `request` may be called from a signal handler or another thread.

    Args:
        job: what to run.
        echo: gets each line, with its label, and must not wait; None shows nothing.
    """

    def __init__(self, job: Job, echo: Echo | None = None) -> None:
        self._job = job
        self._echo = echo or (lambda line: None)
        self._requests: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._result = job.log_dir / "result.json"
        self._transcript = Transcript(job.log_dir)
        self._shown: deque[Speaker | None] = deque(maxlen=KEPT)  # whose lines were shown last
        self._stopped_by: signal.Signals | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def request(self, number: int) -> None:
        """Pass a signal on. SIGINT and SIGTERM ask the job to end, and a second one ends it."""
        self._requests.put(number)

    def run(self) -> dict[str, Any]:
        """Run the job, with its restarts; the content of its result.json.

        Raises:
            OSError: the folder of the logs cannot be made.
        """
        self._job.log_dir.mkdir(parents=True, exist_ok=True)
        self._started, self._begin = time.time(), time.monotonic()  # for people, and for durations
        restarts = 0
        while True:
            attempt = Attempt()
            unfinished = self._record(attempt, restarts, "the supervisor was killed", 137, None, [])
            self._write(unfinished)
            try:
                reason, code, failure, left = self._attempt(attempt, restarts)
            except BaseException as error:  # of `echo`: who listened has gone
                reason = f"the supervisor failed: {type(error).__name__}: {error}"
                self._write(self._record(attempt, restarts, reason, 1, None, []))
                raise
            if code == 0 or self._stopped_by is not None or restarts == self._job.restarts:
                break
            restarts += 1
            self._say(f"{reason}: restart {restarts} of {self._job.restarts}")
        result = self._record(attempt, restarts, reason, code, failure, left)
        self._write(result)
        if code:
            self._say(f"{reason} (exit code {code}; what each rank said: {self._job.log_dir})")
            if failure is not None and self._stopped_by is None:
                self._show(failure)
        return result

    def _attempt(self, attempt: Attempt, restarts: int) -> tuple[str, int, Failure | None, list[str]]:
        relay = Relay()
        ended: dict[str, Any] = {}  # what the guard tells at the end
        self._start(relay, restarts, attempt, ended)
        late: str | None = None
        abandoned = False
        try:
            while not ended and relay.open:
                relay.read(_TICK)
                self._pass_on(attempt)
                if attempt.exits and not abandoned and time.monotonic() > attempt.heard + self._job.grace:
                    abandoned = True
                    self._say(
                        f"the launcher has not ended {self._job.grace:g} s after a rank failed: it is killed"
                    )
                    self._command("kill")
                if late is None and (late := self._overdue(attempt) or self._stuck(attempt)) is not None:
                    self._say(late)
                    if not self._overdue(attempt):
                        self._ask_for_stacks(relay, attempt)
                    self._command("end")
        finally:  # also when `echo` raises
            self._close_guard()
        drained = time.monotonic() + _DRAIN
        while relay.open and time.monotonic() < drained:
            relay.read(_TICK)
        failure = attempt.first_failure({f.told_by: self._transcript.end(f.told_by) for f in attempt.exits})
        if late is not None:
            failure = None  # what ended the ranks was this
        if failure is not None:
            failure = self._with_cause(failure)
        return *self._verdict(ended, late, failure), failure, ended.get("left", [])

    def _start(self, relay: Relay, restarts: int, attempt: Attempt, ended: dict[str, Any]) -> None:
        job = self._job
        out, err = os.pipe(), os.pipe()
        spec = {
            "command": labelled(job.command), "stdout": out[1], "stderr": err[1], "grace": job.grace,
            "result": str(self._result.absolute()),
        }  # fmt: skip
        env = {
            **os.environ, **job.env, "IDIST_STARTED": str(self._started), "IDIST_RESTART_COUNT": str(restarts),
            "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        self._guard = subprocess.Popen(
            [sys.executable, "-S", str(Path(guard.__file__))], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            pass_fds=(out[1], err[1]), env=env, start_new_session=True,
        )  # fmt: skip
        os.close(out[1])
        os.close(err[1])
        assert self._guard.stdout is not None
        for descriptor in (out[0], err[0]):
            relay.add(descriptor, lambda line: self._line(attempt, line.decode(errors="replace")))
        relay.add(os.dup(self._guard.stdout.fileno()), lambda line: ended.update(json.loads(line)))
        self._command(json.dumps(spec))

    def _line(self, attempt: Attempt, line: str) -> None:
        speaker, text = parse(line)
        if speaker is not None and text.startswith(MARK):
            with contextlib.suppress(ValueError):  # a launcher may have cut it
                attempt.event(speaker, json.loads(text.removeprefix(MARK)))
            return
        attempt.line(speaker, text)
        self._transcript.add(speaker, text)
        if speaker is not None:
            self._echo(f"[{speaker}] {text}")
        elif not attempt.exits:  # else it is the launcher's long account of what the rank has said already
            self._echo(text)
        else:
            return
        self._shown.append(speaker)

    def _overdue(self, attempt: Attempt) -> str | None:
        limit = self._job.timeout
        if limit is not None and time.monotonic() > attempt.started + limit:
            return f"not ready after {limit:g} s ({attempt.place})"
        return None

    def _stuck(self, attempt: Attempt) -> str | None:
        job, now = self._job, time.monotonic()
        if attempt.rendezvous is None and job.startup_timeout and now > attempt.started + job.startup_timeout:
            return f"the processes have not met after {job.startup_timeout:g} s: {attempt.missing()}"
        if job.silence_timeout is not None and now > attempt.heard + job.silence_timeout:
            return f"no line and no progress for {job.silence_timeout:g} s (last: {attempt.place})"
        return None

    def _pass_on(self, attempt: Attempt) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                number = self._requests.get_nowait()
                if number not in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    self._signal_ranks(attempt, number)
                elif self._stopped_by is None:
                    self._stopped_by = signal.Signals(number)
                    self._say(
                        f"{self._stopped_by.name} passed on: up to {self._job.grace:g} s to end; a second one ends it at once"
                    )
                    self._command(f"signal {int(number)}")
                    self._command("grace")
                else:
                    self._command("kill")

    def _signal_ranks(self, attempt: Attempt, number: int) -> None:
        """To the ranks of this host, as launchers do not pass every signal on; without any, to the launcher."""
        here = socket.gethostname().partition(".")[0]
        ranks = [process for speaker, process in attempt.processes.items() if speaker.host == here]
        for process in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        if not ranks:
            self._command(f"signal {number}")

    def _ask_for_stacks(self, relay: Relay, attempt: Attempt) -> None:
        """Where each rank hangs is the one thing worth knowing; SIGABRT makes Python print it (PYTHONFAULTHANDLER)."""
        if attempt.processes:
            self._signal_ranks(attempt, signal.SIGABRT)
            enough = time.monotonic() + _STACKS
            while relay.open and time.monotonic() < enough:
                relay.read(_TICK)

    def _verdict(self, ended: dict[str, Any], late: str | None, failure: Failure | None) -> tuple[str, int]:
        if self._stopped_by is not None:
            return f"stopped by {self._stopped_by.name}", 128 + self._stopped_by
        if late is not None:
            return late, TIMED_OUT
        if "error" in ended:
            return f"the launcher did not start: {ended['error']}", 127
        if "exit" not in ended:
            return "the guard was killed", 128 + signal.SIGKILL
        code: int = ended["exit"]
        if code == 0:
            return FINISHED, 0
        if failure is not None:
            return f"{failure.speaker.name} {failure.how}", failure.code
        if code < 0:
            return f"the launcher was killed by {signal.Signals(-code).name}", 128 - code
        words = self._transcript.end(None)
        cause = f": {words[-1]}" if words and words[0].endswith(TRACEBACK) else ""
        return f"the launcher exited with code {code}{cause}", code

    def _with_cause(self, failure: Failure) -> Failure:
        """With the last line of what it said, if that is an error's."""
        words = self._transcript.end(failure.told_by)
        if failure.signal is not None or not words:
            return failure
        if not words[0].endswith(TRACEBACK) and not words[-1].startswith("error: "):
            return failure
        return replace(
            failure, how=f"{failure.how}: {words[-1]}" if "failed: " not in failure.how else failure.how
        )

    def _show(self, failure: Failure) -> None:
        """What it said last, unless that is what was shown last."""
        words = self._transcript.end(failure.told_by)
        if words and list(self._shown)[-len(words) :] != [failure.told_by] * len(words):
            self._say(f"the end of what {failure.told_by} said:")
            for line in words:
                self._echo(line)

    def _say(self, text: str) -> None:
        self._echo(f"supervise: {text}")

    def _command(self, line: str) -> None:
        assert self._guard is not None and self._guard.stdin is not None
        with contextlib.suppress(OSError):
            self._guard.stdin.write(f"{line}\n".encode())
            self._guard.stdin.flush()

    def _close_guard(self) -> None:
        assert self._guard is not None and self._guard.stdin is not None and self._guard.stdout is not None
        self._command("end")
        self._guard.wait()
        with contextlib.suppress(OSError):
            self._guard.stdin.close()
        self._guard.stdout.close()

    def _record(
        self,
        attempt: Attempt,
        restarts: int,
        reason: str,
        code: int,
        failure: Failure | None,
        left: list[str],
    ) -> dict[str, Any]:
        def since(moment: float | None) -> float | None:
            return None if moment is None else moment - self._begin

        return {
            "schema": 1,
            "command": list(self._job.command),
            "reason": reason,
            "exit_code": code,
            "failed": None if failure is None or not code else failure.record(failure.told_by.file),
            "started": self._started,
            "rendezvous_s": since(attempt.rendezvous),
            "first_step_s": since(attempt.first_step),
            "wall_s": time.monotonic() - self._begin,
            "restarts": restarts,
            "logs": self._transcript.files,
            "run_directory": attempt.run_directory,
            "left_behind": left,
            "problem": self._transcript.problem,
        }

    def _write(self, record: dict[str, Any]) -> None:
        try:
            guard.write_atomically(self._result, record)
        except OSError as error:  # a full disk
            self._say(f"{self._result}: {error.strerror}: this is what it would say: {json.dumps(record)}")


def supervise(job: Job, echo: Echo | None = None) -> dict[str, Any]:
    """Run a job; in the main thread, signals that this process gets reach it. The content of its result.json."""
    return run_with_signals(Supervisor(job, echo))


def run_with_signals(supervisor: Supervisor) -> dict[str, Any]:
    """`supervisor.run()`, with the signals that this process gets passed on."""
    with _signals_go_to(supervisor):
        return supervisor.run()


@contextlib.contextmanager
def _signals_go_to(supervisor: Supervisor) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
    previous = {n: signal.signal(n, lambda number, _: supervisor.request(number)) for n in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
