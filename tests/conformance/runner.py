"""One world: start it, run checks in all of its ranks, write down what each rank found.

    python -m tests.conformance.runner --backend gloo --world 2 --out results.json [--only PATTERN ...]

The ranks agree on each check's outcome through files, not through idist. When they differ (one failed, another did not),
or a deadline passed, the next collective could hang or lie, so the world ends there and the rest is "not reached".
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import reference.idist as idist
from tests.conformance import registry
from tests.conformance.expectations import SERIAL, Refusal, expected
from tests.conformance.world import World, wait_for

COLLECTIVE_TIMEOUT = 60.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every rank of the world gets."""

    backend: str  # "serial" or a name of idist
    world: int
    folder: str
    checks: tuple[str, ...]


class WorldBroken(RuntimeError):
    """The ranks no longer agree, so nothing more can be found out in this world."""


class Ledger:
    """The outcomes of one rank, a line each, where the other ranks and the caller read them."""

    def __init__(self, folder: Path, rank: int, size: int) -> None:
        self._files = [folder / f"rank-{each}.jsonl" for each in range(size)]
        self._own = self._files[rank]
        self._count = 0

    def post(self, outcome: dict[str, Any]) -> None:
        """Write this rank's next outcome down."""
        with open(self._own, "a") as file:
            file.write(json.dumps(outcome) + "\n")
        self._count += 1

    def agree(self, name: str, limit: float) -> None:
        """Wait until every rank has posted as much as this one. WorldBroken if they differ in the last outcome."""
        wait_for(
            lambda: all(self._lines(file) >= self._count for file in self._files),
            limit,
            f"{name}: not every rank came to an end",
        )
        last = [json.loads(file.read_text().splitlines()[self._count - 1]) for file in self._files]
        if len({outcome["status"] for outcome in last}) > 1 or any(outcome["broken"] for outcome in last):
            raise WorldBroken(f"stopped after {name}: the ranks ended it as {[o['status'] for o in last]}")

    @staticmethod
    def _lines(file: Path) -> int:
        return file.read_bytes().count(b"\n") if file.exists() else 0


def run_rank(local_rank: int, job: Job) -> dict[str, Any]:
    """All checks of the job, on one rank."""
    torch.set_num_threads(1)
    folder = Path(job.folder)
    ledger = Ledger(folder, local_rank, job.world)
    checks = registry.load()
    limit = 2 * COLLECTIVE_TIMEOUT
    hardware = hardware_of(job)
    for name in job.checks:
        scratch = folder / "scratch" / name.replace("/", "_")
        scratch.mkdir(parents=True, exist_ok=True)
        backend = None if job.backend == SERIAL else job.backend
        world = World(backend=backend, size=job.world, rank=local_rank, scratch=scratch, limit=limit)
        ledger.post({"check": name, **perform(checks[name], world, expected(job.backend, job.world, name))})
        ledger.agree(name, limit)
    return {"rank": local_rank, "text": f"from rank {local_rank}", "hardware": hardware}


def hardware_of(job: Job) -> str:
    """What this rank computes on."""
    if idist.device().type != "xla":
        return idist.device().type
    from torch_xla import runtime

    kind = str(runtime.device_type())
    return "CPU, replicas simulated in threads" if kind == "CPU" and job.world > 1 else kind


def perform(check: registry.Check, world: World, refusal: Any) -> dict[str, Any]:
    """{"status": passed, refused or failed, "text": the traceback, "seconds": ..., "broken": a deadline passed}."""
    start, text, status = time.monotonic(), "", "passed"
    try:
        check.function(world, **check.parameters)
        if isinstance(refusal, Refusal):
            status, text = (
                "failed",
                f"works, but is declared to be refused with {refusal}: remove the declaration",
            )
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        if isinstance(refusal, Refusal) and refusal.matches(error):
            status = "refused"
        else:
            status, text = "failed", traceback.format_exc()
    seconds = time.monotonic() - start
    broken = status == "failed" and seconds > COLLECTIVE_TIMEOUT / 2  # a deadline passed
    return {"status": status, "text": text, "seconds": round(seconds, 3), "broken": broken}


def collect(job: Job, error: str | None, returned: Any) -> dict[str, Any]:
    """The world's result: for each check, what each rank posted (None: not reached)."""
    found: dict[str, list[Any]] = {name: [None] * job.world for name in job.checks}
    for rank in range(job.world):
        path = Path(job.folder) / f"rank-{rank}.jsonl"
        for line in path.read_text().splitlines() if path.exists() else []:
            outcome = json.loads(line)
            found[outcome.pop("check")][rank] = outcome
    return {
        "backend": job.backend,
        "world": job.world,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "error": error,
        "returned": returned,
        "checks": found,
    }


def run_world(job: Job) -> dict[str, Any]:
    """Start the world, run the job in it and return its result."""
    error = returned = None
    options = {} if job.backend == SERIAL else {"nproc_per_node": job.world, "timeout": COLLECTIVE_TIMEOUT}
    try:
        with idist.Parallel(None if job.backend == SERIAL else job.backend, **options) as parallel:
            returned = parallel.run(run_rank, job)
    except Exception:
        error = traceback.format_exc()
    return collect(job, error, returned)


def choose(backend: str, world: int, patterns: list[str] | None) -> tuple[str, ...]:
    """The checks that this world can run, in order."""
    return tuple(
        name
        for name, check in registry.load().items()
        if check.smallest_world <= world
        and not isinstance(expected(backend, world, name), str)
        and (patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.runner")
    parser.add_argument("--backend", required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", metavar="PATTERN", help="names of checks, with *, ? and []")
    parser.add_argument(
        "--folder", type=Path, help="where the ranks keep their files (default: a temporary one)"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        job = Job(
            backend=options.backend,
            world=options.world,
            folder=str(options.folder or temporary),
            checks=choose(options.backend, options.world, options.only),
        )
        result = run_world(job)
    options.out.write_text(json.dumps(result, indent=1))
    for name, ranks in result["checks"].items():
        for rank, outcome in enumerate(ranks):
            if outcome is not None and outcome["status"] == "failed":
                print(f"{name}, rank {rank}: {outcome['text'].strip().splitlines()[-1]}")
    ends = [end(ranks) for ranks in result["checks"].values()]
    print(f"{job.backend} of {job.world}: " + ", ".join(f"{ends.count(e)} {e}" for e in dict.fromkeys(ends)))
    if result["error"]:
        print(result["error"].strip().splitlines()[-1], file=sys.stderr)
    return 1 if {"failed", "not reached"} & set(ends) or result["error"] else 0


def end(ranks: Sequence[dict[str, Any] | None]) -> str:
    """ "passed", "refused", "failed" or "not reached": the worst of all ranks."""
    statuses = [outcome["status"] if outcome else "not reached" for outcome in ranks]
    return next(status for status in ("failed", "not reached", "refused", "passed") if status in statuses)


if __name__ == "__main__":
    from tests.conformance import (
        runner,
    )  # under its own name, by which other processes find what they are sent

    sys.exit(runner.main())
