"""The benchmark of growth: what is compared with what, and that the memory it sees is that of the arrays."""

import math

import pytest
import torch

from benchmarks import growth as benchmark
from benchmarks.starting import Bench
from benchmarks.worlds import long_run


def test_rows_of_a_trial(tmp_path):
    rows = benchmark.measure(Bench(folder=tmp_path, repeats=1, quick=True))
    assert [(row.name.partition(":")[0], row.unit, row.than) for row in rows] == [
        ("2 gloo processes", "MiB", "1 process"),
        ("2 gloo processes", "s", "1 process"),
        ("training on 1,024 images", "MiB", "128 of them"),
        ("a data set of 58,203 images more", "MiB", "their pixels"),
        ("400 steps", "ms", "first fifth"),
        ("400 steps", "MiB", "first fifth"),
    ]
    for row in rows:
        assert row.command
        assert all(
            math.isfinite(v) and v > 0 for side in (row.ours, row.theirs) for start in side for v in start
        )
    memory = {row.name: row for row in rows if row.unit == "MiB"}
    pixels = memory["a data set of 58,203 images more: more memory"]
    assert pixels.theirs == [[58_203 * 3072 / 2**20]]
    assert 0.7 < pixels.ratio.value < 2  # the array is held, and not several times
    assert all(row.ours[0][0] > 100 for name, row in memory.items() if "more" not in name)  # torch is in it
    assert [len(side[0]) for side in (rows[-1].ours, rows[-1].theirs)] == [19, 19]


def test_the_fifths_of_a_run():
    assert benchmark.fifths(range(100)) == (list(range(5, 24)), list(range(81, 100)))
    assert benchmark.fifths(range(20)) == ([1, 2, 3], [17, 18, 19])


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_long_run_has_a_hundred_blocks_of_all_its_steps(tmp_path, threads):
    found = long_run.long_run(tmp_path, 200)
    assert {name: len(values) for name, values in found.items()} == {"step_ms": 100, "resident_mib": 100}
    assert all(value > 0 for values in found.values() for value in values)
    (log,) = tmp_path.glob("*/logs/rank-0.log")
    assert f"Epoch[{long_run.EPOCHS}] Complete" in log.read_text()
    with pytest.raises(ValueError, match="no multiple of 100"):
        long_run.long_run(tmp_path / "wrong", 150)
