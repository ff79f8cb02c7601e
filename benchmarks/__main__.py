"""Speed beside the peers, as ratios measured in turns in the same run.

    python -m benchmarks run --data_path=data     all of them; output-benchmarks/<time>/<name>.json
    python -m benchmarks run --only=engine,startup
    python -m benchmarks run --output=DIR         go on: what DIR has not yet
    python -m benchmarks report [DIR]             print what was measured (the newest)
    python -m benchmarks report [DIR] --write     and write docs/performance.md

Other work on the machine makes intervals wider, and hits both sides alike. Exit codes: 0 done, 1 a benchmark failed, 2 the
command is wrong.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks import report as reporting
from benchmarks import results
from benchmarks.catalogue import NAMES, chosen, module_of
from benchmarks.results import Result, ResultError
from benchmarks.starting import ROOT, Bench
from reference.files import write_atomically

HOME = Path("output-benchmarks")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; its exit code."""
    given = _parser().parse_args(arguments)
    try:
        code: int = given.command(given)
    except ResultError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    sub = commands.add_parser("run", help="measure", allow_abbrev=False)
    sub.set_defaults(command=run)
    sub.add_argument("--only", metavar="A,B", help=f"some of {', '.join(NAMES)}")
    sub.add_argument(
        "--data_path", type=Path, help="folder with train/<class>/* and test/<class>/* (the embedded digits)"
    )
    sub.add_argument("--repeats", type=_count, help="starts of each side (3; of a trial 1)")
    sub.add_argument("--quick", action="store_true", help="a trial: shows that it works, decides nothing")
    sub.add_argument("--output", type=Path, help="folder of the results (output-benchmarks/<time>)")
    sub = commands.add_parser("report", help="show what was measured", allow_abbrev=False)
    sub.set_defaults(command=report)
    sub.add_argument("run", type=Path, nargs="?", help="folder of the results (the newest)")
    sub.add_argument("--write", action="store_true", help=f"write {reporting.PAGE}")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of starts: use 1, 2, 3, ...")
    return int(text)


def run(given: argparse.Namespace) -> int:
    """Measure what was asked for and is not in the folder yet; a benchmark that fails does not stop the others."""
    from reference.cifar10.manifest import of_this_machine

    names = chosen(given.only)
    data = None if given.data_path is None else given.data_path.expanduser().resolve()
    if data is not None and not (data / "train").is_dir():
        raise ResultError(f"--data_path={given.data_path}: there is no folder train in it")
    folder = given.output or HOME / time.strftime("%Y%m%d-%H%M%S")
    failed = []
    for name in names:
        if (folder / f"{name}.json").is_file():
            print(f"{name}: is in {folder} already")
            continue
        print(f"\n{name}", flush=True)
        files = folder.resolve() / "files" / name
        shutil.rmtree(files, ignore_errors=True)  # of an attempt that failed
        bench = Bench(
            folder=files,
            repeats=given.repeats or (1 if given.quick else 3),
            quick=given.quick,
            data_path=data,
            say=lambda line: print(f"  {line}", flush=True),
        )
        begin = time.perf_counter()
        try:
            module = module_of(name)
            rows = module.measure(bench)
        except Exception as error:
            if not isinstance(error, ResultError):
                traceback.print_exc()
            print(f"error: {name}: {error}", file=sys.stderr)
            failed.append(name)
            continue
        result = Result(
            name=name, title=module.TITLE, text=module.TEXT, rows=rows, date=results.now(), quick=given.quick, machine=of_this_machine()
        )  # fmt: skip
        results.write(result, folder)
        print(reporting.terminal(result), f"  {time.perf_counter() - begin:.0f} s", sep="\n", flush=True)
    print(f"\nresults: {folder}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return int(bool(failed))


def report(given: argparse.Namespace) -> int:
    """Show, and write where asked to, what a folder holds."""
    folder = given.run or _newest()
    found = results.read_all(folder, NAMES)
    for result in found:
        print(reporting.terminal(result))
    if given.write:
        write_atomically(ROOT / reporting.PAGE, reporting.markdown(found))
        print(reporting.PAGE)
    return 0


def _newest() -> Path:
    runs = sorted(path for path in HOME.glob("*") if path.is_dir())
    if not runs:
        raise ResultError(f"there is no run in {HOME}: python -m benchmarks run")
    return runs[-1]


if __name__ == "__main__":
    sys.exit(main())
