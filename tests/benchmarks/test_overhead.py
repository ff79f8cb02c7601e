"""The benchmark of idist's overhead: a trial of it, and that it notices another training."""

import math

import pytest

from benchmarks import overhead as benchmark
from benchmarks.results import ResultError
from benchmarks.starting import Bench

STEPS = 1438 // 64


@pytest.mark.slow
def test_rows_of_a_trial(tmp_path):
    blocks, row = benchmark.measure(Bench(folder=tmp_path, repeats=1, quick=True))
    assert (row.unit, row.what, row.than) == ("steps/s", "idist", "torch.distributed")
    assert (blocks.at_least, row.at_least) == (0.99, None)
    assert blocks.turns and [len(start) for start in blocks.ours] == [2] == [
        len(start) for start in blocks.theirs
    ]
    assert all(value > 0 for side in (blocks.ours, blocks.theirs) for value in side[0])
    for side in (row.ours, row.theirs):
        assert [len(start) for start in side] == [STEPS - 10]
        assert all(math.isfinite(value) and value > 0 for value in side[0])


def test_another_curve_is_an_error():
    benchmark.check_same([0.5, 0.25], [0.5, 0.25], "same")
    with pytest.raises(ResultError, match=r"the loss of step 2 is 0\.25"):
        benchmark.check_same([0.5, 0.25], [0.5, math.nextafter(0.25, 1)], "one bit")
    with pytest.raises(ResultError, match="1 steps instead of 2"):
        benchmark.check_same([0.5], [0.5, 0.25], "shorter")
