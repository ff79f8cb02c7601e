"""The benchmark of the training: a trial of it, in which all sides learn the digits."""

import json
import math

import pytest

from benchmarks import training as benchmark
from benchmarks.results import ResultError
from benchmarks.starting import Bench


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_trial_in_which_all_sides_learn(tmp_path):
    pytest.importorskip("ignite", reason="pytorch-ignite is not installed: docker/locks/peer.txt")
    rows = benchmark.measure(Bench(folder=tmp_path, repeats=1, quick=True))
    by_name = {(row.name, row.than): row for row in rows if row.what == "this trainer"}
    assert len({(row.name, row.what, row.than) for row in rows}) == len(rows)
    shares = [row for row in rows if row.than == "bare steps"]
    assert [row.what for row in shares] == ["this trainer", "pytorch-ignite", "plain PyTorch"]
    for peer in ("pytorch-ignite", "plain PyTorch"):
        speed, accuracy, seconds = (
            by_name[name, peer]
            for name in ("images a second", "accuracy on the test images", "from command to end")
        )
        assert (speed.unit, speed.at_least, speed.at_most) == ("images/s", 1.5, None)
        assert seconds.unit == "s"
        for row in (speed, accuracy, seconds):
            assert row.what == "this trainer"
            for side in (row.ours, row.theirs):
                assert len(side) == 1 and len(side[0]) == 1
                assert math.isfinite(side[0][0]) and side[0][0] > 0
        for side in (accuracy.ours, accuracy.theirs):
            assert 0.25 < side[0][0] <= 1  # a tenth by chance, give or take 0.02
    (extra,) = (row for row in rows if row.name.startswith("evaluation of the training set"))
    assert extra.theirs is None and extra.ours[0][0] > 0
    # the same images, batches and seed on all sides
    settings = {}
    for file in tmp_path.glob("*/result.json"):
        settings[file.parent.name.partition("-")[2]] = json.loads(file.read_text())["settings"]
    for file in tmp_path.glob("*/*/config.json"):
        settings["ours"] = json.loads(file.read_text())
    assert len(settings) == 3
    names = (
        "dataset", "batch_size", "max_train_samples", "max_eval_samples", "num_epochs", "num_warmup_epochs", "learning_rate",
        "momentum", "weight_decay", "seed", "threads", "model", "backend",
    )  # fmt: skip
    for name in names:
        assert len({given[name] for given in settings.values()}) == 1, name


def test_the_full_measurement_has_steps_after_the_warm_up():
    steps = benchmark.TRAIN_IMAGES // benchmark.BATCH_SIZE
    assert steps * benchmark.EPOCHS > min(10, steps)


def test_no_result_is_an_error(tmp_path):
    with pytest.raises(ResultError, match="has 0 result"):
        benchmark.read_result(tmp_path)


def test_a_run_without_measured_steps_is_an_error(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text('{"throughput_images_per_s": null}')
    with pytest.raises(ResultError, match="no step after the warm-up"):
        benchmark.read_result(tmp_path)
