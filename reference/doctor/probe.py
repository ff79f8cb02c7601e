"""Two processes on a backend, in a process with a deadline, so that one that hangs or crashes is only a line.

python -m reference.doctor.probe BACKEND PROCESSES TIMEOUT    # prints a table as JSON
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reference.doctor.finding import first_line, last_line

BACKENDS = ("gloo", "nccl", "horovod", "xla-tpu")  # that start their processes themselves
PACKAGE_HOME = Path(__file__).resolve().parents[2]  # where the package `reference` is
PROCESSES = 2
_GRACE = 5.0  # seconds between SIGTERM and SIGKILL
_SHARE = 0.75  # of the deadline is the backend's own, which has the better error message


def run(
    python: Path, backend: str, processes: int, timeout: float, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The table of a backend (`allreduce.Table` as a mapping), made by the interpreter ``python``.

    Args:
        processes: 0 only tells versions, and whether the backend is there.
        timeout: seconds until all of it is ended.
        environ: its environment.
    """
    command = [str(python), "-m", "reference.doctor.probe", backend, str(processes), str(timeout)]
    path = os.pathsep.join(filter(None, [str(PACKAGE_HOME), environ.get("PYTHONPATH")]))
    try:
        output, errors, code = _finish(command, {**environ, "PYTHONPATH": path}, timeout)
    except OSError as error:
        return failure(backend, f"{python} does not start: {error.strerror}")
    if code is None:
        return failure(backend, f"no end within {timeout:g} s{_said(errors)}")
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return failure(backend, f"{how}{_said(errors)}")
    return answer


def failure(backend: str, reason: str) -> dict[str, Any]:
    """The table of a backend that gave none."""
    from reference.doctor.allreduce import Table

    return asdict(Table(backend=backend, failed=reason))


def _said(errors: str) -> str:
    line = last_line(errors)
    return f": {line}" if line else ""


def _finish(
    command: Sequence[str], environ: Mapping[str, str], timeout: float
) -> tuple[str, str, int | None]:
    """Output, errors and exit code of a command; no code if it was ended. Nothing of its process group is left."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environ,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=timeout)
        return output, errors, process.returncode
    except subprocess.TimeoutExpired:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
        _signal(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        return output, errors, None
    finally:
        _signal(process.pid, signal.SIGKILL)
        process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def main(backend: str, processes: int, timeout: float) -> dict[str, Any]:
    """Start the processes, and return their table as a mapping."""
    import reference.idist as idist
    from reference.doctor import software
    from reference.doctor.allreduce import Table, measure
    from reference.idist.backends import backend_class

    versions = software.versions()
    failed = backend_class(backend).missing(backend)
    if failed is not None or processes == 0:
        return asdict(Table(backend=backend, failed=failed, versions=versions))
    try:
        with idist.Parallel(backend=backend, nproc_per_node=processes, timeout=timeout * _SHARE) as parallel:
            table: Table = parallel.run(measure)
    except idist.ProcessFailed as error:
        return asdict(Table(backend=backend, failed=first_line(error.cause), versions=versions))
    except (RuntimeError, ValueError, OSError) as error:
        return asdict(Table(backend=backend, failed=first_line(str(error)), versions=versions))
    return {**asdict(table), "versions": versions}


@contextlib.contextmanager
def _only_the_answer_on_stdout() -> Iterator[int]:
    """The file descriptor of stdout, while whatever libraries print goes to stderr."""
    answer = os.dup(1)
    os.dup2(2, 1)
    yield answer
    sys.stdout.flush()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a line of the report, and no file
    signal.alarm(int(float(sys.argv[3])) + 60)  # where the one who waits for us is gone
    with _only_the_answer_on_stdout() as answer:
        result = main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
    os.write(answer, json.dumps(result).encode())
