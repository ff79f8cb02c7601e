"""The benchmark of an extra evaluation of the training set."""

import math

import pytest

from benchmarks import evaluation as benchmark
from benchmarks.starting import Bench


@pytest.mark.slow
def test_rows_of_a_trial(tmp_path):
    whole, image = benchmark.measure(Bench(folder=tmp_path, repeats=1, quick=True))
    assert (whole.what, whole.than) == ("--train_metrics=full", "--train_metrics=running")
    assert [len(start) for start in image.ours] == [2]  # one an epoch
    for row in (whole, image):
        assert row.unit == "s"
        for side in (row.ours, row.theirs):
            assert len(side) == 1
            assert all(math.isfinite(value) and value > 0 for value in side[0])


def test_seconds_come_from_the_log():
    log = (
        "2026-01-01 CIFAR10-Training INFO: Epoch 1 - train metrics: accuracy 0.1, loss 2.3\n"
        "2026-01-01 CIFAR10-Training INFO: Epoch 1 - val metrics (0.52 s): accuracy 0.1, loss 2.3\n"
        "2026-01-01 CIFAR10-Training INFO: Epoch 2 - train metrics (12.30 s): accuracy 0.1, loss 2.3\n"
        "2026-01-01 CIFAR10-Training INFO: Epoch 2 - val metrics (0.48 s): accuracy 0.1, loss 2.3\n"
    )
    assert benchmark.evaluation_seconds(log) == {"train": [12.3], "val": [0.52, 0.48]}
