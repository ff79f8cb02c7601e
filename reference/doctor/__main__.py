"""`python -m reference.doctor`: what this machine or world can run, and what will bite.

Exit code 0: it can run; 1: a problem would stop a run; 2: the command is wrong.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from reference.cifar10.options import hint
from reference.doctor.finding import PROBLEM, first_line, worst
from reference.doctor.probe import BACKENDS, PACKAGE_HOME

if TYPE_CHECKING:
    from reference.doctor.report import Report

PROGRAM = "python -m reference.doctor"
_XLA_PYTHON = Path(".venv-xla") / "bin" / "python"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"error: {message}", file=sys.stderr)
        raise SystemExit(2)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, checked. SystemExit with code 2, after one line, for wrong ones."""
    parser = _Parser(
        prog=PROGRAM, description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--issue", action="store_true", help="print a block to paste into an issue")
    parser.add_argument("--no-allreduce", action="store_true", help="start no processes and measure nothing")
    parser.add_argument(
        "--backend", choices=BACKENDS, help="only this one; in a world the one by which ranks meet"
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=120.0,
        metavar="SECONDS",
        help="seconds for the all-reduce of a backend, and for the ranks of a world to meet (%(default)g)",
    )
    parser.add_argument(
        "--xla-python",
        type=Path,
        metavar="FILE",
        default=Path(os.environ.get("VENV_HOME") or PACKAGE_HOME) / _XLA_PYTHON,
        help="interpreter of the XLA environment, which needs another torch (.venv-xla/bin/python)",
    )
    given, unknown = parser.parse_known_args(arguments)
    if unknown:
        typed = unknown[0].partition("=")[0]
        if not typed.startswith("--"):
            parser.error(f"{typed!r} is not an option: write --name=value")
        known = [name.lstrip("-") for action in parser._actions for name in action.option_strings]
        parser.error(f"unknown option {typed}{hint(typed.lstrip('-').replace('_', '-'), known, '--')}")
    if given.json and given.issue:
        parser.error("--json and --issue: give one of them")
    return given


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text!r}: give seconds above 0")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Look, measure, print; the exit code."""
    given = parse(arguments)
    environ = dict(os.environ)
    # the errors of torch's C++ library come as exceptions, too
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        reason = first_line(str(error))
        print(f"problem: torch does not load here ({reason}): make env, then make doctor", file=sys.stderr)
        return 1
    from reference.doctor import report

    options = report.Options(
        timeout=given.timeout,
        allreduce=not given.no_allreduce,
        backend=given.backend,
        xla_python=given.xla_python,
    )
    facts = report.look(environ)
    layout = facts.launch.layout
    if layout is None or layout.world_size == 1:
        return _show(report.of_this_process(facts, options, _tell), given)
    alone = functools.partial(_alone, given=given, rank=layout.rank, host=facts.machine.host)
    try:
        found = report.of_the_world(facts, layout, options, functools.partial(_give_up, alone))
    except (RuntimeError, ValueError) as error:
        return alone(report.without_the_world(facts, first_line(str(error))))
    return 0 if found is None else _show(found, given)


def _alone(found: Report, *, given: argparse.Namespace, rank: int, host: str) -> int:
    """What a rank says when there is no world to tell it to: the others than rank 0 only their problems."""
    if rank == 0:
        return _show(found, given)
    for finding in found.findings:
        if finding.level == PROBLEM:
            print(f"[{host}:{rank}] {finding.name}: {finding.text}", file=sys.stderr)
    return 1


def _give_up(alone: Callable[[Report], int], found: Report) -> NoReturn:
    """End this process although a library still waits."""
    alone(found)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _show(found: Report, given: argparse.Namespace) -> int:
    """Print the report in the form that was asked for; the exit code."""
    from rich.console import Console

    from reference.doctor import text

    if given.json:
        record: dict[str, Any] = {
            "schema": 1,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": shlex.join(sys.argv),
            "worst": worst(found.findings),
            **asdict(found),
        }
        print(json.dumps(record, indent=1))
    elif given.issue:
        print("\n".join(text.issue(found)))
    else:
        text.show(found, Console())
    return int(worst(found.findings) == PROBLEM)


def _tell(line: str) -> None:
    """Where somebody watches: what takes so long."""
    if sys.stderr.isatty():
        print(f"doctor: {line} ...", file=sys.stderr, flush=True)


if __name__ == "__main__":
    # an exception, so that the processes under way are ended
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except BrokenPipeError:  # of head, or of a pager that was left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
