"""The command line: run all cells, compare, write the report. Exit code 1 if a comparison did not come out as expected."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from reference.programs.equivalence import plots, report
from reference.programs.equivalence.matrix import CELLS, Cell
from reference.programs.equivalence.results import judge_all
from reference.programs.equivalence.running import ROOT, Outcome, Runner


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything; the exit code."""
    given = parse(arguments)
    for folder in (given.output, given.work):
        folder.mkdir(parents=True, exist_ok=True)
    runner = Runner(
        python=Path(sys.executable),
        xla_python=given.xla_python,
        folder=given.work.resolve(),
        deadline=given.deadline,
    )
    outcomes: dict[Cell, Outcome] = {}
    for number, cell in enumerate(CELLS, start=1):
        print(f"[{number}/{len(CELLS)}] {cell.title}", end=" ... ", flush=True)
        outcome = outcomes[cell] = runner.run(cell)
        print(outcome.failed or outcome.skipped or f"{outcome.seconds:.0f} s", flush=True)
    sections = judge_all(outcomes)
    pictures = plots.draw(outcomes, sections, given.output)
    text = report.markdown(outcomes, sections, pictures)
    (given.output / "equivalence.md").write_text(text)
    (given.output / "equivalence.json").write_text(report.as_json(outcomes, sections))
    print()
    for section, rows in sections:
        for row in rows:
            mark = {True: "ok  ", False: "FAIL", None: "skip"}[row.passed]
            print(f"{mark} {section.title}: {row.comparison.title}, {row.precision}: {row.verdict}")
    print(f"\nreport: {given.output / 'equivalence.md'}, logs of the cells: {given.work}")
    return int(any(row.passed is False for _, rows in sections for row in rows))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(
        prog="python -m reference.programs.equivalence",
        description="Train the same network with every launcher, backend and world size, and compare.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--output", type=Path, default=Path("output-equivalence"), help="folder for the report (%(default)s)"
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("output-equivalence/cells"),
        help="folder for the logs and curves of the cells (%(default)s)",
    )
    parser.add_argument(
        "--xla-python",
        type=Path,
        default=Path(os.environ.get("VENV_HOME", ROOT)) / ".venv-xla" / "bin" / "python",
        help="interpreter of the XLA environment (.venv-xla/bin/python, what `make env BACKEND=xla-tpu` makes); "
        "without it the comparisons with XLA are skipped",
    )
    parser.add_argument("--deadline", type=float, default=300.0, help="seconds for a cell (%(default)g)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    # an exception, so that the cell under way is ended
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.exit(main())
