"""What the records say beside numbers: machines, versions, data, faults and their logs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from experiments.records import Record
from experiments.report.groups import Group, Run
from experiments.rules import ROOT

_LOG_BYTES = 64 * 1024  # of the end of each log
# colours and cursor movements of terminals, and other characters that are none
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A line of the description of the environment."""

    name: str
    values: list[str]


@dataclass(frozen=True, kw_only=True)
class Log:
    """The end of a file that a failed start left."""

    name: str
    text: str
    cut: bool


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A start that did not come to its end."""

    group: Group
    record: Record
    rank: str  # the first that failed, "" if it is not known
    logs: list[Log]


def environment(run: Run) -> list[Fact]:
    """Machines, versions, code, data, in the order of importance."""
    records = run.records
    measured = [record.measured for record in records if record.measured is not None]
    hosts = list({record.host.name: record.host for record in records}.values())
    known = [record.started for record in records if record.started is not None]
    found = [
        ("date", _dates(known)),
        ("preset", [f"{name}, {warm} steps of warm-up left out" for name, warm in _presets(records)]),
        (
            "machine",
            [
                f"{host.name}: {host.processor}, {host.cores} cores, {host.memory_bytes / 2**30:.0f} GiB, {host.system}"
                for host in hosts
            ],
        ),
        ("GPUs", [f"{host.name}: {', '.join(host.devices)}" for host in hosts if host.devices]),
        ("device", [f"{m.backend}: {m.device}" for m in measured]),
        ("versions", [f"{m.backend}: {_versions(m.versions)}" for m in measured]),
        ("code", [_revision(record) for record in records]),
        ("image", [str(record.image.get("name", record.image)) for record in records if record.image]),
        (
            "data",
            [
                f"{m.data.title}: {m.data.train_images:,} images to train on, {m.data.test_images:,} to test, {m.data.checksum}"
                for m in measured
            ],
        ),
        (
            "model",
            [f"{r.cell.settings.model}: {r.measured.parameters:,} parameters" for r in records if r.measured],
        ),
        (
            "threads",
            [
                f"{m.backend}, {m.world_size} ranks: {rank.threads} a process"
                for m in measured
                for rank in m.ranks
            ],
        ),
        ("seed", [str(record.cell.settings.seed) for record in records]),
    ]
    return [
        Fact(name=name, values=[scrubbed(one) for one in dict.fromkeys(values)])
        for name, values in found
        if values
    ]


def _dates(known: Sequence[float]) -> list[str]:
    days = sorted({f"{datetime.fromtimestamp(one, timezone.utc):%Y-%m-%d %H:%M} UTC" for one in known})
    return [days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"] if days else []


def _presets(records: Iterable[Record]) -> dict[tuple[str, int], None]:
    return dict.fromkeys((record.preset, record.warmup) for record in records)


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _revision(record: Record) -> str:
    if record.git.revision is None:
        return "unknown"
    return record.git.revision + (" with changes that are in no revision" if record.git.dirty else "")


def faults(run: Run) -> list[Fault]:
    """All starts that failed or were interrupted."""
    found = []
    for group in run.groups:
        for record in group.records:
            if record.state in ("failed", "interrupted"):
                found.append(
                    Fault(group=group, record=record, rank=_rank(record), logs=list(_logs(run, record)))
                )
    return found


def _rank(record: Record) -> str:
    failed = record.failed
    if failed is None:
        return ""
    who = "a process" if failed.rank is None else f"rank {failed.rank}"
    how = f"signal {failed.signal}" if failed.signal else f"exit code {failed.exit_code}"
    return f"{who} on {failed.host}, {how}" if failed.host else f"{who}, {how}"


def _logs(run: Run, record: Record) -> Iterator[Log]:
    """The failing rank's log first; all others too, when it is not known."""
    own = record.failed.log if record.failed else None
    names = [own, *(n for n in record.logs if n.endswith("launcher.log"))] if own else record.logs
    for name in dict.fromkeys(filter(None, names)):
        log = tail(run.folder_of(record) / name, name)
        if log is not None:
            yield log


def tail(path: Path, name: str) -> Log | None:
    """The end of a log, without what only a terminal understands; None: it is not there."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LOG_BYTES))
            content = file.read()
    except OSError:
        return None
    text = content.decode("utf-8", errors="replace").replace("\r\n", "\n")
    return Log(name=name, text=scrubbed(_CONTROL.sub("", text)), cut=size > _LOG_BYTES)


def scrubbed(text: str) -> str:
    """Without where the clone and the home folder are: a report is made to be passed on."""
    for path, short in ((str(ROOT), "."), (str(Path.home()), "~")):
        text = re.sub(rf"{re.escape(path)}(?=[/\s'\":,)]|$)", short, text)
    return text
