"""The benchmark of the input: a trial of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import input as benchmark
from benchmarks.starting import Bench


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rows_of_a_trial(tmp_path: Path) -> None:
    image, *others = benchmark.measure(Bench(folder=tmp_path, repeats=1, quick=True))
    assert (image.unit, image.what, image.than) == ("us", "in bulk", "torchvision's transforms")
    assert (
        [len(block) for block in image.ours]
        == [benchmark.BATCHES] * 2
        == [len(b) for b in image.theirs or []]
    )
    shares = [row for row in others if row.unit == "%"]
    speeds = [row for row in others if row.unit == "images/s"]
    assert [row.at_most for row in shares] == [3.0, None, None] and len(speeds) == 2
    assert all(0 < row.ours[0][0] < 100 for row in shares)
    assert all(row.ours == speeds[0].ours for row in speeds), "one run is held against both others"
    assert all(row.theirs is not None and row.theirs[0][0] > 0 for row in speeds)
    assert "--data_path" not in shares[0].command and "--pipeline=batched" in shares[0].command
