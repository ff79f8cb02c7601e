"""The report, and how it is made: of one process, or of all ranks of a world."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import reference.idist as idist
from reference.doctor import allreduce, clocks, launch, machine, network, probe, programs, software
from reference.doctor.compare import Rank, compare, judge_clocks
from reference.doctor.finding import NOTE, OK, PROBLEM, Finding
from reference.idist.backends.base import unless_within
from reference.idist.environment import Layout

SECTION = "all-reduce"
_GRACE = (
    3.0  # seconds for a library to keep its own deadline; less than idist's watchdog, which knows no report
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is asked for."""

    timeout: float  # seconds for the all-reduce of a backend, and for a world to meet
    allreduce: bool
    backend: str | None  # only this one; in a world the one to meet by
    xla_python: Path


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found."""

    findings: list[Finding]
    tables: list[dict[str, Any]] = field(default_factory=list)  # of allreduce.Table
    world: dict[str, Any] | None = None  # None: of one process


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that a process finds by itself."""

    machine: machine.Machine
    launch: launch.Launch
    network: network.Network
    software: software.Software

    def judge(self, *, met: bool = False) -> list[Finding]:
        """The findings; ``met``: the ranks of this world have met already."""
        return [
            *machine.judge(self.machine),
            *launch.judge(self.launch),
            *network.judge(self.network, met=met),
            *software.judge(self.software),
        ]


def look(environ: Mapping[str, str]) -> Facts:
    """What this process finds by itself, and in its environment."""
    here = machine.look(environ)
    started = launch.look(environ, machine.effective_cores(here))
    return Facts(
        machine=here,
        launch=started,
        network=network.look(environ, started.layout),
        software=software.look(environ, started.layout),
    )


def of_this_process(facts: Facts, options: Options, tell: Callable[[str], None]) -> Report:
    """The report without a world: two processes on each backend, one backend after the other.

    Args:
        facts: of `look`.
        options: what is asked for.
        tell: is called with a line before what takes long.
    """
    findings = [*facts.judge(), *programs.judge(programs.look())]
    environ = {key: value for key, value in os.environ.items() if key not in facts.launch.variables}
    # what contradicts itself may be one of many ranks, and they would all start processes
    measures = options.allreduce and facts.launch.contradiction is None
    tables = []
    for backend in probe.BACKENDS:
        missing = facts.software.missing[backend]
        apart = backend == "xla-tpu" and missing is not None and options.xla_python.is_file()
        asked = measures and options.backend in (None, backend)
        python = options.xla_python if apart else Path(sys.executable)
        if apart:
            answer = probe.run(python, backend, 0, options.timeout, environ)
            findings = _with_xla(findings, answer, python)
            missing = answer["failed"]
        if asked and missing is None:
            processes = min(probe.PROCESSES, facts.software.visible_gpus or 1)
            processes = processes if backend == "nccl" else probe.PROCESSES
            tell(f"{backend}: {processes} processes")
            tables.append(probe.run(python, backend, processes, options.timeout, environ))
            if reason := tables[-1]["failed"]:
                again = f"{python} -m reference.doctor.probe {backend} {processes} 120"
                findings.append(_failed(backend, f"failed: {reason}: for more run: {again}"))
        elif asked and options.backend is not None:
            findings.append(_failed(backend, f"not here: {missing}"))
    return Report(findings=findings, tables=tables)


def _with_xla(findings: list[Finding], answer: Mapping[str, Any], python: Path) -> list[Finding]:
    """The findings with what the XLA environment says about its backend, instead of what this one says."""
    versions, folder = answer["versions"], python.absolute().parents[1]
    text = f"ready: torch_xla {versions.get('torch_xla')} with torch {versions.get('torch')} in {folder}"
    if answer["failed"]:
        text = f"not ready: the environment {folder} fails ({answer['failed']}): make env BACKEND=xla-tpu"
    ours = Finding(
        section=software.SECTION,
        name="backend xla-tpu",
        value=not answer["failed"],
        text=text,
        level=NOTE if answer["failed"] else OK,
    )
    return [ours if finding.name == ours.name else finding for finding in findings]


def _failed(backend: str, text: str) -> Finding:
    return Finding(section=SECTION, name=backend, value=None, text=text, level=PROBLEM)


def of_the_world(
    facts: Facts, layout: Layout, options: Options, give_up: Callable[[Report], None]
) -> Report | None:
    """The report of a launcher's world; every rank calls this, rank 0 gets the report, the others None.

    Args:
        facts: of `look`.
        layout: of this rank.
        options: what is asked for.
        give_up: is called with this rank's own report where a library does not keep the deadline, and ends the process.

    Raises:
        RuntimeError, ValueError: the ranks did not meet within the deadline, or a collective failed.
    """
    backend = options.backend or ("horovod" if layout.source == "horovod" else "gloo")
    who = f"{backend}: rank {layout.rank} of {layout.world_size}"
    met_nobody = f"{who} did not meet the others"
    if layout.master_addr is not None:
        met_nobody += f" at {layout.master_addr}:{layout.master_port}"
    with ExitStack() as world:
        with _watch(facts, options.timeout + _GRACE, met_nobody, give_up):
            parallel = world.enter_context(idist.Parallel(backend=backend, timeout=options.timeout))
        with _watch(facts, 2 * options.timeout, f"{who} waits for the others", give_up):
            report: Report = parallel.run(_examine, facts, options.allreduce)
    if layout.rank != 0:
        return None
    return replace(report, findings=[*report.findings, *programs.judge(programs.look())])


def without_the_world(facts: Facts, reason: str) -> Report:
    """The report of a rank whose world did not come together: what it finds by itself, and the reason."""
    mend = "compare what the other ranks say; start all of them at the same time, with the same MASTER_ADDR and port"
    text = f"the ranks did not get through: {reason}: {mend}"
    finding = Finding(
        section="other ranks", name="world", value=reason, text=text, level=PROBLEM, shared=False
    )
    return Report(findings=[*facts.judge(), finding])


def _watch(
    facts: Facts, limit: float, what: str, give_up: Callable[[Report], None]
) -> AbstractContextManager[None]:
    """Give up where the body takes more than ``limit`` seconds."""
    report = without_the_world(facts, f"{what}: no end within {limit:g} s")
    return unless_within(limit, lambda: give_up(report))


def _examine(local_rank: int, facts: Facts, measures: bool) -> Report:
    own = Rank(rank=idist.get_rank(), host=idist.hostname(), findings=tuple(facts.judge(met=True)))
    ranks: list[Rank] = idist.all_gather(own)
    launches = idist.all_gather(facts.launch)
    offsets = clocks.measure()
    table = allreduce.measure(local_rank) if measures else None
    if own.rank != 0:
        return Report(findings=[])
    return Report(
        findings=[*compare(ranks), judge_clocks(ranks, offsets), *_next(facts)],
        tables=[asdict(table)] if table else [],
        world={
            "backend": idist.backend(),
            "launcher": facts.launch.layout.source if facts.launch.layout else None,
            "world_size": idist.get_world_size(),
            "nnodes": idist.get_nnodes(),
            "ranks": [
                {
                    "rank": rank.rank,
                    "host": rank.host,
                    "layout": asdict(found.layout) if found.layout else None,
                    "variables": found.variables,
                }
                for rank, found in zip(ranks, launches, strict=True)
            ],
            "clocks": [asdict(offset) for offset in offsets],
        },
    )


def _next(facts: Facts) -> list[Finding]:
    """GPUs deserve a table of their own."""
    if facts.software.missing["nccl"] is not None or idist.backend() == "nccl":
        return []
    text = "measured on the CPU only: for the GPUs run the same again with --backend=nccl"
    return [Finding(section=SECTION, name="nccl", value=None, text=text)]
