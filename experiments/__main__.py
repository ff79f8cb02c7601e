"""The comparison matrix: backend, launcher, program, processes, nodes.

    python -m experiments plan --preset=smoke          what would be run, and what would not
    python -m experiments run --preset=smoke           run it; output-matrix/<preset>-<time>/ gets a record of each cell
    python -m experiments run --preset=smoke --resume  go on: what is missing or failed
    python -m experiments status                       how far the newest run is
    python -m experiments collect DIR... --output=DIR  put runs of several machines together
    python -m experiments report [RUN]                 what a run says: RUN/report/report.html and report.md
    python -m experiments compare A B                  what changed from run A to run B; a gate against regressions

Exit codes: 0 all cells are ok or skipped, 1 a cell failed or a regression, 2 the command is wrong, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from experiments import matrix, runner
from experiments.board import LiveBoard, title
from experiments.collect import CollectError, collect
from experiments.matrix import MatrixError
from experiments.plan import Plan, make
from experiments.records import RecordError, read_records
from experiments.rules import Machine
from experiments.runner import RunError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; its exit code."""
    given = _parser().parse_args(arguments)
    try:
        code: int = given.command(given)
    except (MatrixError, RunError, RecordError, CollectError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    for name, command, text in (
        ("plan", plan, "show what would be run"),
        ("run", run, "run a preset"),
    ):
        sub = commands.add_parser(name, help=text, allow_abbrev=False)
        sub.set_defaults(command=command)
        sub.add_argument("--preset", default="smoke", help="of the matrix file (%(default)s)")
        sub.add_argument("--matrix", type=Path, default=matrix.FILE, help="another matrix file")
        sub.add_argument("--output", type=Path, help="folder of the run (output-matrix/<preset>-<time>)")
        sub.add_argument("--data_path", help="folder with the data set, instead of the preset's")
        sub.add_argument(
            "--scheduler",
            choices=("local", "slurm"),
            default=os.environ.get("SCHEDULER") or "local",
            help="local: one cell after another, here; slurm: as job arrays (SCHEDULER, else local)",
        )
        if name == "run":
            sub.add_argument(
                "--resume", action="store_true", help="go on with --output, or the newest run of the preset"
            )
    sub = commands.add_parser("status", help="how far a run is", allow_abbrev=False)
    sub.set_defaults(command=status)
    sub.add_argument("run", type=Path, nargs="?", help="its folder (the newest)")
    sub = commands.add_parser("collect", help="put runs of several machines together", allow_abbrev=False)
    sub.set_defaults(command=merge)
    sub.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="folder of a run")
    sub.add_argument("--output", type=Path, required=True, help="new folder for all cells")
    sub = commands.add_parser("report", help="write what a run says", allow_abbrev=False)
    sub.set_defaults(command=report)
    sub.add_argument("run", type=Path, nargs="?", help="its folder (the newest)")
    where = sub.add_mutually_exclusive_group()
    where.add_argument("--output", type=Path, help="folder for the report (RUN/report)")
    where.add_argument(
        "--example", action="store_true", help="write docs/example-report and the README's part of it"
    )
    sub.add_argument("--tensorboard", type=Path, metavar="DIR", help="write the cells for TensorBoard too")
    sub.add_argument("--clearml", metavar="PROJECT", help="make a ClearML task of each start too")
    sub = commands.add_parser("compare", help="what changed from one run to another", allow_abbrev=False)
    sub.set_defaults(command=compare)
    sub.add_argument("before", type=Path, metavar="A", help="folder of a run")
    sub.add_argument("after", type=Path, metavar="B", help="folder of a later run")
    sub.add_argument("--threshold", type=_share, default=0.05, help="of a regression (%(default)s)")
    sub.add_argument("--all", action="store_true", help="show what stayed the same too")
    return parser


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no share: 0.05 is 5 %")
    return value


def _plan(given: argparse.Namespace, folder: Path) -> Plan:
    presets = matrix.load(given.matrix)
    preset = matrix.choose(presets, given.preset)
    if given.data_path is not None:
        settings = preset.settings.model_copy(update={"data_path": given.data_path})
        preset = preset.model_copy(update={"settings": settings})
    if given.scheduler not in ("local", "slurm"):
        raise RunError(f"SCHEDULER={given.scheduler} is unknown: use local or slurm")
    return make(given.preset, preset, folder, Machine(given.scheduler))


def plan(given: argparse.Namespace) -> int:
    """Print every cell's exact command, and what is skipped or left out and why."""
    found = _plan(given, given.output or runner.HOME / f"{given.preset}-TIME")
    for one in found.starts:
        if one.skipped is None:
            print(f"# {title(one.cell)}\n{one.line}\n")
    for one in found.starts:
        if one.skipped is not None:
            print(f"# skipped: {one.cell.key}: {one.skipped}")
    for key, reason in found.left_out.items():
        print(f"# left out: {key}: {reason}")
    to_run = sum(one.skipped is None for one in found.starts)
    limit = to_run * found.preset.time_limit / 60
    print(
        f"# {to_run} starts ({found.preset.repeats} repeats), {len(found.starts) - to_run} cells skipped, "
        f"{len(found.left_out)} combinations left out; at most {limit:.0f} minutes"
    )
    return 0


def run(given: argparse.Namespace) -> int:
    """Run a preset, or what is missing or failed of it."""
    folder = given.output
    if folder is None:
        folder = runner.newest(given.preset) if given.resume else runner.new_folder(given.preset)
    found = _plan(given, folder)
    runner.prepare(folder, found, resume=given.resume)
    with LiveBoard(found) as board:
        if found.scheduler == "slurm":
            from experiments import slurm

            code = slurm.run(folder, found, board)
        else:
            code = runner.Runner(folder, found, board, Machine(found.scheduler)).run()
    print(f"\n{_counts(folder)}; records: {folder}")
    if code == 130:
        print(
            f"stopped; python -m experiments run --preset={given.preset} --output={folder} --resume goes on"
        )
    return code


def status(given: argparse.Namespace) -> int:
    """Show every start of a run, and what became of it."""
    folder = given.run or runner.newest()
    for planned, record in runner.status(folder):
        text = "not yet" if record is None else record.state
        why = "" if record is None or record.state == "ok" else f": {record.reason}"
        print(f"{planned.order:4d}  {title(planned.cell)}: {text}{why}")
    print(f"\n{_counts(folder)}; records: {folder}")
    return 0


def _counts(folder: Path) -> str:
    states = Counter("not yet" if record is None else record.state for _, record in runner.status(folder))
    return ", ".join(f"{count} {state}" for state, count in sorted(states.items()))


def merge(given: argparse.Namespace) -> int:
    """Merge runs of several machines."""
    records = collect(given.runs, given.output)
    hosts = sorted({record.host.name for record in records})
    print(f"{len(records)} records of {', '.join(hosts)}: {given.output}")
    return 0


def report(given: argparse.Namespace) -> int:
    """Write the report of a run."""
    from experiments.report import example, page

    run = given.run or runner.newest()
    for path in example.write(run) if given.example else page.write(run, given.output):
        print(path)
    if given.tensorboard or given.clearml:
        from experiments.report import trackers

        records = read_records(run)
        if given.tensorboard:
            print(f"{trackers.to_tensorboard(records, given.tensorboard)} starts: {given.tensorboard}")
        if given.clearml:
            print(f"{trackers.to_clearml(records, given.clearml)} starts: ClearML project {given.clearml}")
    return 0


def compare(given: argparse.Namespace) -> int:
    """Show what changed between two runs; 1 if something became worse."""
    from experiments import compare
    from experiments.report import groups

    changes = compare.compare(groups.read(given.before), groups.read(given.after), given.threshold)
    for line in compare.lines(changes, everything=given.all):
        print(line)
    return int(any(change.regression for change in changes))


if __name__ == "__main__":
    sys.exit(main())
