"""Programs around us: container engines, Slurm, MPI."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

from reference.doctor.finding import NOTE, OK, Finding, ask

SECTION = "programs"
_ANSWER = 10.0  # seconds for a program, and for the daemon behind it
_ENGINES = {
    "docker": "info",
    "podman": "info",
    "apptainer": None,
    "singularity": None,
    "enroot": None,
    "ch-run": None,
}
_MENDS = {"docker": "start its daemon, or join its group", "podman": "run: podman info", "ch-run": "set USER"}
_OTHERS = ("mpirun", "srun", "ssh")


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that is installed."""

    name: str
    version: str
    failed: str | None = None  # why it can't be used


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Nodes of one kind and state in a partition of a Slurm cluster, in Slurm's own words."""

    name: str
    state: str
    nodes: str
    cpus: str
    memory: str
    gres: str
    limit: str


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Facts about other programs."""

    engines: tuple[Program, ...]
    slurm: Program | None
    partitions: tuple[Partition, ...]
    others: tuple[str, ...]  # paths
    gpus: bool  # whether NVIDIA's container toolkit is here


def look() -> Programs:
    """Ask the programs that are on PATH."""
    slurm, partitions = _slurm()
    return Programs(
        engines=tuple(_engine(name, check) for name, check in _ENGINES.items() if shutil.which(name)),
        slurm=slurm,
        partitions=partitions,
        others=tuple(path for name in _OTHERS if (path := shutil.which(name))),
        gpus=shutil.which("nvidia-ctk") is not None or shutil.which("nvidia-container-cli") is not None,
    )


def judge(facts: Programs) -> list[Finding]:
    """One finding for each program."""
    return [*_engines(facts), *_partitions(facts), _others(facts)]


def _finding(name: str, value: object, text: str, level: str = OK) -> Finding:
    return Finding(section=SECTION, name=name, value=value, text=text, level=level, shared=False)


def _engines(facts: Programs) -> Iterator[Finding]:
    if not facts.engines:
        yield _finding("containers", None, f"no engine ({', '.join(_ENGINES)})")
    for engine in facts.engines:
        if engine.failed is None:
            yield _finding(engine.name, engine.version, engine.version)
            continue
        text = f"{engine.version}, but it can't start containers ({engine.failed}): {_MENDS.get(engine.name, 'mend that')}"
        yield _finding(engine.name, engine.version, text, NOTE)
    if os.path.exists("/dev/nvidiactl") and any(e.name == "docker" for e in facts.engines) and not facts.gpus:
        text = "NVIDIA's toolkit is missing: docker run --gpus fails: install nvidia-container-toolkit"
        yield _finding("GPUs in containers", False, text, NOTE)


def _partitions(facts: Programs) -> Iterator[Finding]:
    if facts.slurm is None:
        yield _finding("slurm", None, "not installed")
        return
    if facts.slurm.failed is not None:
        bites = (
            f"{facts.slurm.version}, but no controller answers ({facts.slurm.failed}): sbatch and srun fail"
        )
        text = (
            f"{bites}: look at SLURM_CONF, and in a container mount Slurm's configuration and munge's socket"
        )
        yield _finding("slurm", facts.slurm.version, text, NOTE)
        return
    yield _finding("slurm", facts.slurm.version, facts.slurm.version)
    for name in dict.fromkeys(part.name for part in facts.partitions):
        kinds = [part for part in facts.partitions if part.name == name]
        yield _finding(f"partition {name}", [vars(kind) for kind in kinds], "; ".join(map(_kind, kinds)))


def _kind(part: Partition) -> str:
    gpus = "no GPUs" if part.gres == "(null)" else part.gres
    state = f"{part.nodes} nodes {part.state}"
    return f"{state}, each {part.cpus} CPUs, {part.memory} MB, {gpus}, limit {part.limit}"


def _others(facts: Programs) -> Finding:
    return _finding(
        "also here", list(facts.others), ", ".join(facts.others) or "none of " + ", ".join(_OTHERS)
    )


def _engine(name: str, check: str | None) -> Program:
    answer, failed = ask([name, "version" if name == "enroot" else "--version"], _ANSWER)
    if failed is None and check is not None:
        _, failed = ask([name, check], _ANSWER)
    return Program(name=name, version=_version(answer), failed=failed)


def _version(answer: str) -> str:
    found = re.search(r"\b[0-9]+\.[0-9][0-9a-z.+-]*", answer)
    return found[0] if found else "installed"


def _slurm() -> tuple[Program | None, tuple[Partition, ...]]:
    if shutil.which("sinfo") is None:
        return None, ()
    answer, failed = ask(["sinfo", "--version"], _ANSWER)
    version = _version(answer)
    if failed is None:
        answer, failed = ask(["sinfo", "--noheader", "--format=%P|%T|%D|%c|%m|%G|%l"], _ANSWER)
    if failed is not None:
        return Program(name="slurm", version=version, failed=failed), ()
    rows = [line.split("|") for line in answer.splitlines() if line.count("|") == 6]
    names = ("name", "state", "nodes", "cpus", "memory", "gres", "limit")
    partitions = tuple(Partition(**dict(zip(names, row, strict=True))) for row in rows)
    return Program(name="slurm", version=version), partitions
