"""Runs of several machines: put together, or refused with the names of what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.collect import CollectError, collect
from experiments.records import Git, Host, Record, RecordError, read_records, write_record
from tests.experiments import made


def run_of(folder: Path, name: str, *records: Record) -> Path:
    for record in records:
        write_record(folder / name / "cells" / record.cell.name, record)
        (folder / name / "cells" / record.cell.name / "logs").mkdir()
        (folder / name / "cells" / record.cell.name / "logs" / "here-rank-0.log").write_text("a line\n")
    return folder / name


def on(host: str, **changes: Any) -> Record:
    return made.record(host=Host.model_validate({**made.HOST, "name": host}), **changes)


def test_runs_are_put_together(tmp_path: Path) -> None:
    one = run_of(tmp_path, "one", on("a"), on("a", of=made.cell(repeat=2)))
    two = run_of(tmp_path, "two", on("b"))
    records = collect([one, two], tmp_path / "all")
    assert sorted((record.host.name, record.cell.repeat) for record in records) == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
    ]
    assert [record.order for record in read_records(tmp_path / "all")] == [1, 2, 3]
    assert len(list((tmp_path / "all").glob("cells/*/logs/*.log"))) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"git": Git(revision="1" * 40, dirty=False)}, "other revision of the code"),
        ({"git": Git(revision="0" * 40, dirty=True)}, "its code had changes that are in no revision"),
        (
            {"measured": made.measured([0.1], versions={"torch": "1.0"})},
            "other torch on the same backend (2.0, 1.0)",
        ),
        (
            {"measured": made.measured([0.1], data={**made.measured([0.1])["data"], "checksum": "sha256:2"})},
            "other data of the same name (sha256:1, sha256:2)",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    runs = [run_of(tmp_path, "one", on("a")), run_of(tmp_path, "two", on("b", **changes))]
    with pytest.raises(CollectError) as error:
        collect(runs, tmp_path / "all")
    assert message in str(error.value) and str(runs[1]) in str(error.value)
    assert not (tmp_path / "all").exists()


def test_the_same_cell_twice_and_a_full_target_are_refused(tmp_path: Path) -> None:
    one, two = run_of(tmp_path, "one", on("a")), run_of(tmp_path, "two", on("a"))
    with pytest.raises(CollectError, match="the same cell of the same machine"):
        collect([one, two], tmp_path / "all")
    with pytest.raises(CollectError, match="is there already"):
        collect([one], two)
    with pytest.raises(RecordError, match="holds no records"):
        collect([tmp_path / "nothing"], tmp_path / "all")
