"""The benchmark of the collectives: that every case is there, and that its two sides have the same result."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from benchmarks import collectives as benchmark
from benchmarks.starting import Bench
from benchmarks.worlds import collectives as world
from benchmarks.worlds.sizes import SIZES


def test_rows_of_a_trial(tmp_path):
    said = []
    bench = Bench(folder=tmp_path, repeats=1, quick=True, say=said.append)
    rows = {row.name: row for row in benchmark.measure(bench)}
    expected = {
        *(
            f"gloo: {kind}, {size}"
            for kind in ("all_reduce", "all_gather", "broadcast")
            for size in world.QUICK_SIZES
        ),
        *(f"gloo: all_gather of strings, {size}" for size in world.TEXTS),
        "gloo: all_reduce of a number",
        "gloo: all_gather of dictionaries",
        "gloo: barrier",
    }
    horovod = {
        f"horovod: {kind}, {size}"
        for kind in ("all_reduce", "all_gather", "broadcast")
        for size in ("8 B", "1 MiB")
    }
    installed = benchmark._has_horovod()
    assert set(rows) == (expected | horovod if installed else expected)
    assert said == ([] if installed else ["horovod is not installed here: its rows are left out"])
    for name, row in rows.items():
        assert row.unit == "us" and row.what == "idist"
        assert row.than == ("torch.distributed" if name.startswith("gloo") else "Horovod")
        for side in (row.ours, row.theirs):
            assert [len(blocks) for blocks in side] == [2]
            assert all(math.isfinite(value) and value > 0 for value in side[0])


def test_only_equal_results_are_measured():
    case = {"name": "made", "calls": 1}
    world.check(world.Case(**case, ours=lambda: torch.ones(2), theirs=lambda: torch.ones(2)))
    world.check(world.Case(**case, ours=lambda: [1, "a"], theirs=lambda: [1, "a"]))
    world.check(world.Case(**case, ours=lambda: None, theirs=lambda: None))
    for other in (
        torch.tensor([1.0, 2.0]),
        torch.ones(3),
        torch.ones(2, dtype=torch.float64).to(torch.int64),
    ):
        with pytest.raises(RuntimeError, match="made: the results differ on rank 0"):
            world.check(world.Case(**case, ours=lambda: torch.ones(2), theirs=lambda x=other: x))
    with pytest.raises(RuntimeError):
        world.check(world.Case(**case, ours=lambda: [1], theirs=lambda: [2]))


def test_every_size_has_its_number_of_calls():
    assert set(world._CALLS) == set(SIZES.values())
    assert set(world.QUICK_SIZES) | set(world.TEXTS) <= set(SIZES)
    for name, size in SIZES.items():
        number, unit = name.split()
        assert size == int(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit]


@pytest.mark.parametrize(
    ("case", "target"),
    [
        ("all_reduce, 64 MiB", 1.1),
        ("all_gather, 1 MiB", 1.1),
        ("broadcast, 4 KiB", 1.5),
        ("all_gather of strings, 1 MiB", 1.1),
        ("all_gather of dictionaries", 1.1),
        ("all_reduce of a number", None),
        ("barrier", None),
    ],
)
def test_targets(case, target):
    assert benchmark._target(case) == target


@pytest.fixture
def made_world(tmp_path, monkeypatch):
    """Starts nothing: two ranks' files are written instead."""
    starts = []

    def start(self, launcher, processes, *program, **kwargs):
        starts.append((launcher, processes, program))
        out = next(part.removeprefix("--output=") for part in program if part.startswith("--output="))
        for rank, numbers in enumerate(([1.0, 5.0], [2.0, 3.0])):
            content = {"barrier": {"ours": numbers, "theirs": numbers}}
            with open(f"{out}/rank-{rank}.json", "w") as file:
                json.dump(content, file)
        return SimpleNamespace()

    monkeypatch.setattr(Bench, "start", start)
    return starts


def test_a_block_takes_what_the_slower_rank_took(tmp_path, monkeypatch, made_world):
    monkeypatch.setattr(benchmark, "_has_horovod", lambda: True)
    rows = benchmark.measure(Bench(folder=tmp_path, repeats=2))
    assert [row.name for row in rows] == ["gloo: barrier", "horovod: barrier"]
    assert rows[0].ours == rows[0].theirs == [[2.0, 5.0], [2.0, 5.0]]
    assert [launcher for launcher, _, _ in made_world] == ["torchrun", "horovodrun", "horovodrun", "torchrun"]
    assert {processes for _, processes, _ in made_world} == {2}


def test_without_horovod_there_is_a_line_and_no_start(tmp_path, monkeypatch, made_world):
    said = []
    monkeypatch.setattr(benchmark, "_has_horovod", lambda: False)
    rows = benchmark.measure(Bench(folder=tmp_path, repeats=1, say=said.append))
    assert [row.name for row in rows] == ["gloo: barrier"]
    assert len(said) == 1 and "horovod is not installed" in said[0]
    assert [launcher for launcher, _, _ in made_world] == ["torchrun"]
