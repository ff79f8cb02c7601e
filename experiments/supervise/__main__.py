"""Run a launcher under the supervisor: what `make run` does.

    python -m experiments.supervise [OPTION...] -- launchers/torchrun.sh -m reference.cifar10 run --backend=gloo

The exit code is that of the rank that failed first, 124 after a deadline, and 128 + N when signal N stopped the job.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from datetime import datetime
from pathlib import Path

from experiments.supervise.job import Job
from experiments.supervise.printer import Printer
from experiments.supervise.supervisor import Supervisor, run_with_signals


def main() -> None:
    """The command line; SystemExit with the job's exit code."""
    options, job = parse(sys.argv[1:])
    printer = Printer(sys.stdout.fileno(), gone=lambda: supervisor.request(signal.SIGHUP))
    supervisor = Supervisor(job, None if options.quiet else printer)
    try:
        result = run_with_signals(supervisor)
    except OSError as error:
        sys.exit(f"supervise: {job.log_dir}: {error.strerror}")
    printer.close()
    sys.exit(result["exit_code"])


def parse(arguments: list[str]) -> tuple[argparse.Namespace, Job]:
    """The options and the job that they describe; SystemExit 2 for wrong ones."""
    parser = argparse.ArgumentParser(
        prog="supervise", description="Run a launcher, own its processes, and say how it ended.", allow_abbrev=False,
        usage="python -m experiments.supervise [OPTION...] -- launchers/torchrun.sh -m PROGRAM [ARGUMENT...]",
    )  # fmt: skip
    parser.add_argument(
        "--log-dir", type=Path, help="a file for each rank and result.json (default: run-logs/<time>)"
    )
    parser.add_argument(
        "--startup-timeout", type=_seconds, metavar="S", help="seconds until all ranks must have met"
    )
    parser.add_argument(
        "--silence-timeout", type=_seconds, metavar="S", help="seconds without a line or progress"
    )
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="seconds for the whole job")
    parser.add_argument(
        "--grace", type=_seconds, metavar="S", default=60.0, help="seconds from a signal to the end (60)"
    )
    parser.add_argument(
        "--restarts", type=_count, metavar="N", default=0, help="start a failed job again, N times at most"
    )
    parser.add_argument("--quiet", action="store_true", help="write files only")
    parser.add_argument("command", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    values = {name: value for name, value in vars(options).items() if name not in ("quiet", "log_dir")}
    return options, Job(log_dir=options.log_dir or _unused(Path("run-logs")), **values)


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < float("inf"):
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _unused(folder: Path) -> Path:
    """A folder name from the time that no other run has."""
    name = f"{datetime.now():%Y%m%d-%H%M%S}"
    number = 1
    while (path := folder / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return path


if __name__ == "__main__":
    main()
