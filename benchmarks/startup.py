"""From a command to its first step, under every launcher; and what an import takes."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.results import ResultError, Row
from benchmarks.starting import ROOT, Bench, shown

TITLE = "Start-up"
TEXT = (
    "Two processes (`plain`: one) under each launcher, from its start to the moment when the ranks have met, and to the end of the "
    "first step of `reference.programs.idist` (digits, a small model): times of the supervisor's `result.json`. Beside it, under the "
    "same launcher and supervisor, a program that does nothing but import torch, join the world with the library's own call, and "
    "end (`benchmarks/worlds/empty.py`); so the ratio holds what this project's imports, options and data add. Between the meeting "
    "and the first step, torch imports its compiler, as in any program that has an optimizer. Imports are timed from outside, the "
    "start and the end of the interpreter included, in fresh processes that take turns; files are in the page cache."
)
LAUNCHERS = {
    "plain": "none",
    "torchrun": "gloo",
    "torch_distributed_launch": "gloo",
    "spawn": "gloo",
    "horovodrun": "horovod",
    "mpirun": "gloo",
}
"""And the backend under each."""

_QUICK_LAUNCHERS = ("torchrun",)
_STEPS = 4
_BATCH = 64
_IMPORT_ROUNDS = 2  # times `repeats` starts of each
_HELP = ("-m", "reference.cifar10", "run", "--help")
_TORCH = ("-c", "import torch")
_IDIST = ("-c", "import reference.idist")
_TRAINER = ("-c", "import reference.cifar10.trainer")
_IGNITE = ("-c", "import ignite.distributed")


def measure(bench: Bench) -> list[Row]:
    """Imports first, then each launcher's two programs in turns."""
    rows = _imports(bench)
    for launcher in _QUICK_LAUNCHERS if bench.quick else LAUNCHERS:
        missing = absent(launcher)
        if missing is None:
            rows += _launcher(bench, launcher)
        else:
            bench.say(f"{launcher}: {missing} is not installed here: its rows are left out")
    return rows


def absent(launcher: str) -> str | None:
    """What a launcher needs and this machine lacks."""
    if launcher == "horovodrun" and importlib.util.find_spec("horovod") is None:
        return "horovod"
    return launcher if launcher in ("horovodrun", "mpirun") and shutil.which(launcher) is None else None


# ---- launchers


def _launcher(bench: Bench, launcher: str) -> list[Row]:
    backend = LAUNCHERS[launcher]
    processes = 1 if backend == "none" else 2
    chosen = [] if backend == "none" else [f"--backend={backend}"]
    program = [
        "-m",
        "reference.programs.idist",
        *chosen,
        f"--batch_size={_BATCH}",
        f"--max_train_samples={_STEPS * _BATCH}",
    ]
    empty = ["-m", "benchmarks.worlds.empty", *chosen]

    def ours() -> dict[str, Any]:
        out = bench.new_folder(f"{launcher}-output")
        return bench.start(
            launcher, processes, *program, f"--output_path={out}", name=f"{launcher}-idist"
        ).times

    def theirs() -> dict[str, Any]:
        return bench.start(launcher, processes, *empty, name=f"{launcher}-empty").times

    full, bare = bench.in_turns(ours, theirs)
    command = shown(launcher, processes, *program, "--output_path=<folder>")
    return [
        Row(
            name=f"{launcher}, {backend}: command to rendezvous",
            unit="s", ours=_seconds(full, "rendezvous_s"), theirs=_seconds(bare, "rendezvous_s"), what="idist program",
            than="empty program", at_most=1.5, command=command,
        ),
        Row(
            name=f"{launcher}, {backend}: command to first step",
            unit="s", ours=_seconds(full, "first_step_s"), theirs=_seconds(bare, "rendezvous_s"), what="idist program",
            than="empty program's rendezvous", command=command,
        ),
    ]  # fmt: skip


def _seconds(starts: Sequence[dict[str, Any]], name: str) -> list[list[float]]:
    if any(start[name] is None for start in starts):
        raise ResultError(f"a program has not told the supervisor of its {name.removesuffix('_s')}")
    return [[float(start[name])] for start in starts]


# ---- imports


def _imports(bench: Bench) -> list[Row]:
    commands = {"torch": _TORCH, "idist": _IDIST, "trainer": _TRAINER, "help": _HELP}
    if importlib.util.find_spec("ignite") is not None:
        commands["ignite"] = _IGNITE
    if not bench.quick:
        for command in commands.values():
            seconds_of(command)  # brings its files into the page cache; does not count
    sides = [lambda command=command: seconds_of(command) for command in commands.values()]
    turns = [bench.in_turns(*sides) for _ in range(1 if bench.quick else _IMPORT_ROUNDS)]
    found = {
        name: [[seconds] for turn in turns for seconds in turn[place]] for place, name in enumerate(commands)
    }

    def row(name: str, ours: str, theirs: str, what: str, than: str, at_most: float) -> Row:
        command = " ".join(["python", *(f"'{part}'" if " " in part else part for part in commands[ours])])
        return Row(
            name=name,
            unit="s",
            ours=found[ours],
            theirs=found[theirs],
            what=what,
            than=than,
            at_most=at_most,
            command=command,
        )

    rows = [
        row("import reference.idist", "idist", "torch", "reference.idist", "torch alone", 1.15),
        row("import reference.cifar10.trainer", "trainer", "torch", "the trainer", "torch alone", 1.5),
        row(
            "the trainer's --help",
            "help",
            "torch",
            "python -m reference.cifar10 run --help",
            "torch alone",
            0.5,
        ),
    ]
    if "ignite" in found:
        rows.append(
            row("import reference.idist", "idist", "ignite", "reference.idist", "ignite.distributed", 1.0)
        )
    return rows


def seconds_of(arguments: Sequence[str]) -> float:
    """Wall time of a fresh interpreter, from its start to its end.

    Raises:
        ResultError: it failed.
    """
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise ResultError(f"python {' '.join(arguments)} failed: {done.stderr.strip().splitlines()[-1:]}")
    return seconds
