"""What only a GPU can tell, on one page and in under six minutes: `benchmarks/gpu.sh`, which installs and builds nothing.

    benchmarks/gpu.sh                          one GPU, plain python3 with a CUDA build of torch
    DATA=cifar10-jpeg.tar.xz benchmarks/gpu.sh a folder train/<class>/*, test/<class>/*, or a tar archive of one
    benchmarks/gpu.sh --device=cpu --quick     everything around the GPU, for trying this program

Every part is a process with a time limit. One that fails or takes too long leaves the rows that it had and a row that says so;
the others go on. Exit codes: 0 all parts done, 1 a check failed or a part did, 2 something is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from benchmarks.on_gpu.rows import Row, read
from reference.markdown import table

ROOT = Path(__file__).resolve().parents[1]
ARCHIVE = ROOT / "shared" / "data" / "cifar10-jpeg.tar.xz"
NEEDED = {"torch": "torch", "numpy": "numpy", "psutil": "psutil", "rich": "rich"}
TOTAL = 345.0  # seconds for all parts together


class Part(NamedTuple):
    """A module of `benchmarks.on_gpu`, and the most seconds that it may take."""

    module: str
    limit: float


PARTS = (
    Part("numerics", 40),
    Part("fast94", 150),
    Part("speed", 75),
    Part("collectives", 25),
    Part("amp", 90),
)
DATA_LIMIT = 60.0


class Data(NamedTuple):
    """The images, as options of the trainer."""

    dataset: str
    data_path: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; its exit code."""
    given = _parser().parse_args(arguments)
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        print(f"error: {sys.executable} lacks {', '.join(missing)}", file=sys.stderr)
        return 2
    import torch

    if given.device == "cuda" and not torch.cuda.is_available():
        print(
            f"error: torch {torch.__version__} sees no GPU (--device=cpu --quick tries everything else)",
            file=sys.stderr,
        )
        return 2
    if given.data is not None:
        given.data = given.relative_to / given.data.expanduser()
    with tempfile.TemporaryDirectory(prefix="gpu-benchmark-") as name:
        rows = run(given, Path(name))
    page = markdown(rows, given.device, quick=given.quick)
    print(page)
    if given.output is not None:
        (given.relative_to / given.output.expanduser()).write_text(page, encoding="utf-8")
    return exit_code(rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a trial: as little as shows that it works")
    parser.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("DATA") or None,
        help="folder of images or tar archive (DATA)",
    )
    parser.add_argument(
        "--only",
        type=_parts,
        default=PARTS,
        metavar="A,B",
        help=f"some of {', '.join(part.module for part in PARTS)}",
    )
    parser.add_argument("--output", type=Path, help="write the table there as well")
    parser.add_argument("--relative_to", type=Path, default=Path.cwd(), help="where relative paths start")
    return parser


def _parts(text: str) -> tuple[Part, ...]:
    names = text.split(",")
    unknown = set(names) - {part.module for part in PARTS}
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown part {min(unknown)!r}")
    return tuple(part for part in PARTS if part.module in names)


def run(given: argparse.Namespace, folder: Path) -> list[Row]:
    """Prepare the images, then run the parts one after the other; what all of them found."""
    end = time.monotonic() + TOTAL
    rows: list[Row] = []
    data, row = images(given.data, folder)
    rows.append(row)
    for part in given.only:
        begin = time.monotonic()
        rows += run_part(part, given, data, folder, min(part.limit, end - begin))
        print(f"-- {part.module}: {time.monotonic() - begin:.0f} s", flush=True)
    return rows


def images(given: Path | None, folder: Path) -> tuple[Data, Row]:
    """The images to train on: those that were named, else the archive beside this project, else random ones."""
    source = given or (ARCHIVE if ARCHIVE.is_file() else None)
    if source is None:
        note = "no DATA was given: nothing can be learned from them"
        return Data("fake", "data"), Row(part="data", what="images", result="random", note=note)
    begin = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.on_gpu.images", str(source), str(folder)]
    code, said, reason = run_limited(command, dict(os.environ), folder / "images.log", DATA_LIMIT)
    if code:
        note = f"{reason}: {said}; random ones instead"
        return Data("fake", "data"), Row(
            part="data", what=f"images of {source}", result="failed", note=note, ok=False
        )
    took = f"unpacked and decoded in {time.monotonic() - begin:.0f} s"
    return Data("images", said), Row(part="data", what="images", result=source.name, note=took)


def run_part(part: Part, given: argparse.Namespace, data: Data, folder: Path, limit: float) -> list[Row]:
    """Run one part; its rows, and one more if it failed or was stopped."""
    own = folder / part.module
    own.mkdir()
    if limit < 5:
        return [Row(part=part.module, what="not started", result="failed", note="no time was left", ok=False)]
    command = [
        *(
            sys.executable,
            "-m",
            f"benchmarks.on_gpu.{part.module}",
            f"--device={given.device}",
            f"--folder={own}",
        ),
        *(
            f"--dataset={data.dataset}",
            f"--data_path={data.data_path}",
            *(["--quick"] if given.quick else []),
        ),
    ]
    environment = dict(os.environ)
    if given.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    code, said, reason = run_limited(command, environment, own / "log", limit)
    rows = read(own)
    if code:
        note = f"{reason}: {said}"
        rows.append(Row(part=part.module, what="the rest of this part", result="failed", note=note, ok=False))
    return rows


def run_limited(
    command: Sequence[str], environment: dict[str, str], log: Path, limit: float
) -> tuple[int, str, str]:
    """Run a program for `limit` seconds at most, with its output in `log`; nothing that it started is left.

    Returns:
        Its exit code (1 if it was stopped), the last line of its output, and how it ended, for people.
    """
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(timeout=limit)
            reason = f"exit code {code}"
        except subprocess.TimeoutExpired:
            code, reason = 1, f"stopped after {limit:.0f} s"
        finally:
            _end(process)
    lines = [
        line.strip()
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    return code, lines[-1][:300] if lines else "it said nothing", reason


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the part and what it has started."""
    with contextlib.suppress(ProcessLookupError):  # all of them have ended
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def exit_code(rows: Sequence[Row]) -> int:
    """1 when a check failed, or a part."""
    return int(any(row.ok is False for row in rows))


def markdown(rows: Sequence[Row], device: str, *, quick: bool) -> str:
    """The page: what it was measured on, and a table."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    now = datetime.now(timezone.utc)
    head = (
        f"{now:%Y-%m-%d %H:%M} UTC, {name}, driver {_driver() if device == 'cuda' else 'none'}, torch {torch.__version__}, "
        f"CUDA {torch.version.cuda if device == 'cuda' else 'not used'}, Python {sys.version.split()[0]}"
    )
    if quick:
        head += ". A trial (--quick): its numbers mean nothing"
    mark = {None: "", True: "ok", False: "FAILED"}
    lines = [[row.part, row.what, row.result, mark[row.ok], row.note] for row in rows]
    shown = table(("part", "what", "result", "", "notes"), lines, right={"result"})
    return f"\n{head}\n\n{shown}\n"


def _driver() -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return next(iter(done.stdout.split()), "unknown")


if __name__ == "__main__":
    sys.exit(main())
