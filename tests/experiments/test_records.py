"""Records: complete, versioned, atomic, and refused with the field that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from experiments.records import RECORD, RecordError, read_measured, read_record, read_records, write_record
from tests.experiments import made


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    record = made.record()
    write_record(tmp_path / "cells" / "a", record)
    assert read_record(tmp_path / "cells" / "a" / RECORD) == record
    assert [path.name for path in (tmp_path / "cells" / "a").iterdir()] == [RECORD]  # nothing half-written


def test_records_come_in_the_order_of_their_starts(tmp_path: Path) -> None:
    for order in (2, 10, 1):
        write_record(tmp_path / "cells" / f"c{order}", made.record(order=order))
    assert [record.order for record in read_records(tmp_path)] == [1, 2, 10]
    with pytest.raises(RecordError, match="holds no records"):
        read_records(tmp_path / "elsewhere")


def test_names() -> None:
    one = made.cell(repeat=2)
    assert one.name == f"{one.key}-r2" == f"idist-gloo-torchrun-1x2-digits-small-{one.settings.digest}-r2"
    other = made.cell(settings={"data_path": "/elsewhere"})
    assert one.key == other.key, "where the data lie is another thing on each machine"
    assert one.key != made.cell(settings={"num_epochs": 2}).key


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 99}, "has schema 99, this code reads 1"),
        ({"order": "first"}, "order: "),
        ({"speed": 1}, "speed: Extra inputs"),
        ({"measured": None}, "state is ok, but nothing was measured"),
    ],
)
def test_wrong_records_are_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / RECORD
    path.write_text(json.dumps({**made.record().model_dump(), **change}))
    with pytest.raises(RecordError) as error:
        read_record(path)
    assert message in str(error.value) and str(path) in str(error.value)


def test_broken_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("{")
    (tmp_path / "b").write_text("[]")
    for name, message in (("a", "is not JSON"), ("b", "it holds a list"), ("c", "No such file")):
        with pytest.raises(RecordError, match=message):
            read_measured(tmp_path / name)


def test_lists_have_one_entry_for_each_step_and_rank() -> None:
    with pytest.raises(ValidationError, match="2 step times, 1 losses"):
        made.record(measured=made.measured([0.1, 0.2], losses=[1.0]))
    with pytest.raises(ValidationError, match="0 ranks in a world of 2"):
        made.record(measured=made.measured([0.1], ranks=[]))
