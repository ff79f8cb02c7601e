"""Worlds for pytest: each one is started once, in a process of its own with a deadline, and answers for its checks."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from reference.idist.backends import backend_class
from reference.idist.context import available_backends
from tests.conformance import runner
from tests.conformance.expectations import BACKENDS, SERIAL, deadline, world_sizes

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).parent / ".results"  # of complete worlds, from which the capability table is written


def backends_here() -> tuple[str, ...]:
    """The backends to check: those of the variable BACKEND (with commas), else all that this interpreter has."""
    asked = os.environ.get("BACKEND")
    if not asked:
        return tuple(name for name in (SERIAL, *available_backends()) if world_sizes(name))
    for name in asked.split(","):
        if name not in BACKENDS:
            raise ValueError(f"BACKEND={asked}: {name!r} is unknown: use {', '.join(BACKENDS)}")
        missing = None if name == SERIAL else backend_class(name).missing(name)
        if missing or not world_sizes(name):
            raise ValueError(f"BACKEND={asked}: {missing or 'no world of it can be started here'}")
    return tuple(asked.split(","))


class Worlds:
    """The results of worlds, run when first asked for.

    Args:
        selected: which checks each (backend, world size) is to run.
        folder: for the worlds' files.
    """

    def __init__(self, selected: Mapping[tuple[str, int], Iterable[str]], folder: Path) -> None:
        self._selected = {key: set(names) for key, names in selected.items()}
        self._folder = folder
        self._results: dict[tuple[str, int], dict[str, Any]] = {}

    def result(self, backend: str, world: int) -> dict[str, Any]:
        """The world's result, as `runner.collect` makes it."""
        key = backend, world
        if key not in self._results:
            every = runner.choose(backend, world, None)
            names = [name for name in every if name in self._selected[key]]
            folder = self._folder / f"{backend}-{world}"
            folder.mkdir()
            self._results[key] = run_world(backend, world, names, folder, deadline(backend))
            if len(names) == len(every):
                save(self._results[key])
        return self._results[key]

    def verdict(self, backend: str, world: int, name: str) -> tuple[str, str]:
        """(end, text) of one check, where end is "passed", "refused", "failed" or "not reached"."""
        result = self.result(backend, world)
        ranks = result["checks"][name]
        end = runner.end(ranks)
        if end == "not reached":
            ends = {other: runner.end(outcomes) for other, outcomes in result["checks"].items()}
            first = next(other for other in ends if ends[other] == "not reached")
            if first == name and "failed" not in ends.values():
                end = "failed"  # the world died here, or never came up
            return end, f"not reached in the world of {world}: {result['error']}\n{result['log']}"
        texts = [f"rank {rank}: {outcome['text']}" for rank, outcome in enumerate(ranks) if outcome["text"]]
        return end, "\n".join(texts)


def run_world(backend: str, world: int, names: Iterable[str], folder: Path, limit: float) -> dict[str, Any]:
    """Run checks in a new world, for at most ``limit`` seconds."""
    names, ranks, out, log = list(names), folder / "ranks", folder / "result.json", folder / "log"
    ranks.mkdir()
    command = [sys.executable, "-m", "tests.conformance.runner", "--backend", backend, "--world", str(world)]
    command += ["--out", str(out), "--folder", str(ranks), "--only", *map(glob.escape, names)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    error = None
    with open(log, "w") as stream:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=stream, stderr=stream, start_new_session=True
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            error = f"the world did not end within {limit:g} s and was killed"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if error is None and out.exists():
        result = json.loads(out.read_text())
    else:
        job = runner.Job(backend=backend, world=world, folder=str(ranks), checks=tuple(names))
        result = runner.collect(job, error or f"the world ended with code {process.returncode}", None)
    return {**result, "log": log.read_text()[-4000:]}


def save(result: Mapping[str, Any]) -> None:
    """Keep a complete world's result for the capability table."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / ".gitignore").write_text("*\n")
    text = json.dumps({**result, "sources": sources()}, indent=1)
    (RESULTS / f"{result['backend']}-{result['world']}.json").write_text(text)


def load(backend: str) -> dict[int, dict[str, Any]]:
    """The kept results of a backend, by world size; only those that these very sources gave."""
    found = {}
    for path in RESULTS.glob(f"{backend}-*.json"):
        result = json.loads(path.read_text())
        if result["sources"] == sources():
            found[result["world"]] = result
    return found


def sources() -> str:
    """A fingerprint of what the results depend on."""
    files = [*ROOT.glob("reference/idist/**/*.py"), *ROOT.glob("reference/metrics/*.py")]
    files += Path(__file__).parent.glob("**/*.py")
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()
