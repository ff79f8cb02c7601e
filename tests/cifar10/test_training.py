"""Whole runs in this process: what they leave, how they stop, resume and fail."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from reference.cifar10 import model
from reference.cifar10 import trainer as trainer_module
from reference.cifar10.config import Config, make_config
from reference.cifar10.datasets.base import CLASSES
from reference.cifar10.launch import launch
from reference.cifar10.options import OptionError
from reference.cifar10.summary import rows
from reference.cifar10.trainer import training
from reference.handlers import load_checkpoint

# Batch norm and dropout, and yet only a few milliseconds an image.
TINY = Config(
    model="mobilenet_v3_small", dataset="digits", batch_size=16, max_train_samples=64, max_eval_samples=37, num_epochs=3,
    learning_rate=0.05, threads=1, log_every_iters=1, checkpoint_every=3, validate_every=2, with_tensorboard=False,
)  # fmt: skip
TIMES = {"images/s", "throughput", "throughput/step_p50", "throughput/step_p95"}


@pytest.fixture(autouse=True)
def _restore_torch() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def run(output_path: Path, **changes: Any) -> dict[str, Any]:
    return training(0, dataclasses.replace(TINY, output_path=str(output_path), **changes))


def events(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of events.jsonl without anything that depends on time."""
    lines = []
    for text in (Path(result["run_directory"]) / "events.jsonl").read_text().splitlines():
        line = json.loads(text)
        del line["time"]
        line["metrics"] = {name: value for name, value in line["metrics"].items() if name not in TIMES}
        lines.append(line)
    return lines


def final(result: dict[str, Any]) -> dict[str, Any]:
    return load_checkpoint(Path(result["run_directory"]) / result["checkpoint"])


def assert_identical(a: Any, b: Any, where: str = "") -> None:
    """Equal bit for bit, through dicts and lists."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert list(a) == list(b), where
        for name in a:
            assert_identical(a[name], b[name], f"{where}.{name}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for index, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_identical(x, y, f"{where}[{index}]")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    else:
        assert a == b, where


def assert_same_state(a: dict[str, Any], b: dict[str, Any], ignore: frozenset[str] = frozenset()) -> None:
    states = [final(a), final(b)]
    for state in states:
        for name in TIMES | ignore:
            state["trainer"]["metrics"].pop(name, None)
    for name in ("trainer", "model", "optimizer", "lr_scheduler", "random", "train_accuracy", "train_loss"):
        assert_identical(states[0][name], states[1][name], name)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run of 12 iterations from start to end."""
    return run(tmp_path_factory.mktemp("whole"), with_tensorboard=True)


class TestRecords:
    def test_result(self, whole: dict[str, Any]) -> None:
        folder = Path(whole["run_directory"])
        assert json.loads((folder / "result.json").read_text()) == whole
        assert whole["exit_reason"] == "finished"
        assert (whole["epoch"], whole["iteration"], whole["evaluated_epoch"]) == (3, 12, 3)
        assert (whole["backend"], whole["world_size"], whole["n_evaluated"]) == (None, 1, 37)
        assert 0 <= whole["val_metrics"]["Accuracy"] <= 1 and math.isfinite(whole["val_metrics"]["Loss"])
        assert whole["val_metrics"]["Accuracy"] * 37 == pytest.approx(
            round(whole["val_metrics"]["Accuracy"] * 37)
        )
        assert 0 < whole["input_share"] < 1
        assert 0 < whole["train_time_s"] < whole["wall_time_s"]
        assert 0 < whole["step_p50_s"] <= whole["step_p95_s"] < whole["wall_time_s"]
        assert (
            0 < whole["time_to_first_step_s"] < whole["wall_time_s"] and whole["throughput_images_per_s"] > 0
        )

    def test_folder(self, whole: dict[str, Any]) -> None:
        folder = Path(whole["run_directory"])
        assert folder.name.startswith("mobilenet_v3_small_backend-None-1_20")
        assert whole["checkpoint"] == "checkpoints/training_checkpoint_12.pt"
        assert sorted(file.name for file in (folder / "checkpoints").glob("training*")) == [
            "training_checkpoint_12.pt", "training_checkpoint_9.pt",
        ]  # fmt: skip
        assert len(whole["best_models"]) in (1, 2) and all(
            (folder / name).is_file() for name in whole["best_models"]
        )
        assert list((folder / "tb").iterdir())
        assert json.loads((folder / "config.json").read_text())["batch_size"] == 16
        log = (folder / "logs" / "rank-0.log").read_text()
        assert (
            "PyTorch version" in log
            and "Epoch[3] Complete" in log
            and "val metrics" in log
            and "batch_size: 16" in log
        )
        assert not list(folder.rglob("*.unfinished")) and not list(folder.rglob("*.tmp"))

    def test_manifest(self, whole: dict[str, Any]) -> None:
        manifest = json.loads((Path(whole["run_directory"]) / "manifest.json").read_text())
        assert manifest["versions"]["torch"].startswith(torch.__version__.split("+")[0])
        assert manifest["launcher"]["name"] == "none" and manifest["distributed"]["world_size"] == 1
        assert manifest["distributed"]["ranks"][0]["threads"] == 1
        assert manifest["data"]["checksum"].startswith("sha256:")
        assert "--batch_size=16" in manifest["command"] and "--dataset=digits" in manifest["command"]
        assert set(manifest["git"]) == {"revision", "dirty"}

    def test_events(self, whole: dict[str, Any]) -> None:
        lines = events(whole)
        steps = [line for line in lines if line["event"] == "training"]
        assert [line["step"] for line in steps] == list(range(1, 13))
        assert steps[0]["metrics"]["lr"] == 0.0 and steps[4]["metrics"]["lr"] == pytest.approx(0.05)
        assert [line["step"] for line in lines if line["event"] == "train"] == [1, 2, 3]
        assert [line["step"] for line in lines if line["event"] == "val"] == [2, 3]

    def test_running_loss_is_the_mean_of_the_batches(self, whole: dict[str, Any]) -> None:
        lines = events(whole)
        losses = [line["metrics"]["batch loss"] for line in lines if line["event"] == "training"]
        means = [line["metrics"]["Loss"] for line in lines if line["event"] == "train"]
        assert means == pytest.approx([np.mean(losses[k : k + 4]) for k in (0, 4, 8)], rel=1e-12)

    def test_validation_against_a_loop_of_ones_own(self, whole: dict[str, Any]) -> None:
        from reference.cifar10 import datasets
        from reference.cifar10.augment import MEAN, STD
        from reference.cifar10.data import evenly_spread
        from reference.cifar10.model import build

        test = datasets.load("digits", Path("unused")).test
        chosen = evenly_spread(359, 37)
        model = build("mobilenet_v3_small")
        model.load_state_dict(final(whole)["model"])
        model.eval()
        x = (torch.from_numpy(test.images[chosen]).float() / 255 - torch.tensor(MEAN)) / torch.tensor(STD)
        with torch.no_grad():
            logits = model(x.permute(0, 3, 1, 2))
        y = torch.from_numpy(test.labels[chosen])
        assert whole["val_metrics"]["Accuracy"] == (logits.argmax(1) == y).double().mean().item()
        loss = torch.nn.functional.cross_entropy(logits, y).item()
        assert whole["val_metrics"]["Loss"] == pytest.approx(loss, rel=1e-4)

    def test_summary_fits_a_screen_and_says_where_everything_is(self, whole: dict[str, Any]) -> None:
        lines = dict(rows(whole))
        assert len(lines) < 20
        assert f"{whole['val_metrics']['Accuracy']:.4f} on 37 test images" in lines["accuracy"]
        assert Path(lines["run directory"]).resolve() == Path(whole["run_directory"]).resolve()
        assert "images/s" in lines["speed"] and lines["look at it"].startswith("tensorboard --logdir ")


class TestSameSeed:
    def test_two_runs_are_bit_identical(self, whole: dict[str, Any], tmp_path: Path) -> None:
        again = run(tmp_path)
        assert events(again) == events(whole)
        assert_same_state(again, whole)

    def test_another_seed_is_another_run(self, whole: dict[str, Any], tmp_path: Path) -> None:
        other = run(tmp_path, seed=544, stop_iteration=1)
        assert events(other)[0]["metrics"]["batch loss"] != events(whole)[0]["metrics"]["batch loss"]

    def test_logging_and_checkpoints_change_nothing(self, whole: dict[str, Any], tmp_path: Path) -> None:
        quiet = run(tmp_path, log_every_iters=0, checkpoint_every=100, validate_every=100)
        assert quiet["val_metrics"] == whole["val_metrics"]
        assert_same_state(quiet, whole, ignore=frozenset({"batch loss", "lr"}))


class TestResume:
    @pytest.mark.parametrize("at", [2, 4, 7])  # inside the first epoch, at its end, inside the second
    def test_stop_and_go_on_is_bit_identical(self, at: int, whole: dict[str, Any], tmp_path: Path) -> None:
        first = run(tmp_path, stop_iteration=at)
        assert first["exit_reason"] == "stop_iteration" and first["iteration"] == at
        assert first["checkpoint"] == f"checkpoints/training_checkpoint_{at}.pt"
        second = run(tmp_path, resume_from=first["run_directory"])
        assert second["exit_reason"] == "finished" and second["run_directory"] != first["run_directory"]
        assert events(first) + events(second) == events(whole)
        assert (
            second["val_metrics"] == whole["val_metrics"]
            and second["train_metrics"] == whole["train_metrics"]
        )
        assert_same_state(second, whole)

    def test_from_a_checkpoint_in_the_middle_of_a_finished_run(
        self, whole: dict[str, Any], tmp_path: Path
    ) -> None:
        file = Path(whole["run_directory"]) / "checkpoints" / "training_checkpoint_9.pt"
        second = run(tmp_path, resume_from=str(file))
        assert events(second) == events(whole)[-len(events(second)) :]
        assert_same_state(second, whole)
        manifest = json.loads((Path(second["run_directory"]) / "manifest.json").read_text())
        assert manifest["resumed_from"] == str(file)

    def test_auto_takes_the_newest_valid_one(self, tmp_path: Path) -> None:
        new = run(tmp_path, resume_from="auto", stop_iteration=4)  # nothing there yet: it starts anew
        files = sorted((Path(new["run_directory"]) / "checkpoints").glob("training*"))
        assert [file.name for file in files] == ["training_checkpoint_3.pt", "training_checkpoint_4.pt"]
        files[1].write_bytes(files[1].read_bytes()[:1000])
        run(tmp_path, seed=1, stop_iteration=1)  # newer, and of another experiment
        second = run(tmp_path, resume_from="auto", stop_iteration=5)
        assert [line["step"] for line in events(second) if line["event"] == "training"] == [4, 5]

    def test_a_finished_run_is_evaluated_and_done(self, whole: dict[str, Any], tmp_path: Path) -> None:
        again = run(tmp_path, resume_from=whole["run_directory"])
        assert again["exit_reason"] == "finished" and again["iteration"] == 12
        assert again["val_metrics"] == whole["val_metrics"] and again["throughput_images_per_s"] is None

    def test_refusals_name_the_file_and_offer_another(self, tmp_path: Path) -> None:
        first = run(tmp_path, stop_iteration=2)
        good = Path(first["run_directory"]) / first["checkpoint"]
        bad = good.with_name("training_checkpoint_1.pt")
        bad.write_bytes(good.read_bytes()[:2000])
        os.utime(bad, (1, 1))
        model_only = tmp_path / "other.pt"
        torch.save({"schema": 1, "model": {}}, model_only)
        (tmp_path / "empty").mkdir()
        offer = f"the newest valid checkpoint is {good}"
        for resume_from, changes, says in (
            (bad, {}, "training_checkpoint_1.pt' is truncated or not a checkpoint"),
            (tmp_path / "nowhere.pt", {}, "nowhere.pt' does not exist"),
            (tmp_path / "empty", {}, "empty holds no training checkpoint"),
            (model_only, {}, "other.pt' is no training checkpoint"),
        ):
            with pytest.raises(OptionError) as error:
                run(tmp_path, resume_from=str(resume_from), **changes)
            assert says in str(error.value) and offer in str(error.value) and "\n" not in str(error.value)
        with pytest.raises(
            OptionError, match="is of another run: seed is 543 there and 9 here; batch_size is 16 there"
        ):
            run(tmp_path, resume_from=str(good), seed=9, batch_size=8)
        with pytest.raises(ValueError, match=r"stop_iteration \(2\) is not after the 2 of the checkpoint"):
            run(tmp_path, resume_from=str(good), stop_iteration=2)

    def test_other_data_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        first = run(tmp_path, stop_iteration=1)
        from reference.cifar10.datasets import digits

        monkeypatch.setattr(digits, "checksum_of", lambda *_: "sha256:other")
        with pytest.raises(ValueError, match="other data"):
            run(tmp_path, resume_from=first["run_directory"])


class TestSignals:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
    def test_a_signal_stops_after_an_iteration_with_a_checkpoint(
        self, number: signal.Signals, whole: dict[str, Any], tmp_path: Path
    ) -> None:
        before = signal.getsignal(number)

        def send() -> None:
            while not any("training" in file.read_text() for file in tmp_path.glob("*/events.jsonl")):
                time.sleep(0.01)
            os.kill(os.getpid(), number)

        thread = threading.Thread(target=send)
        thread.start()
        stopped = run(tmp_path)
        thread.join()
        assert signal.getsignal(number) is before
        assert stopped["exit_reason"] == f"stopped by {number.name}" and 1 <= stopped["iteration"] < 12
        second = run(tmp_path, resume_from="auto")
        assert events(stopped) + events(second) == events(whole)
        assert_same_state(second, whole)

    def test_the_exit_code_tells_the_signal(self) -> None:
        from reference.cifar10.launch import exit_code

        reasons = (
            "finished",
            "stop_iteration",
            "stopped by SIGTERM",
            "stopped by SIGUSR1",
            "stopped by SIGUSR2",
        )
        assert [exit_code({"exit_reason": reason}) for reason in reasons] == [0, 0, 143, 138, 140]


class TestFailures:
    def failed(self, tmp_path: Path) -> dict[str, Any]:
        (file,) = tmp_path.glob("*/result.json")
        return json.loads(file.read_text())

    def test_result_and_log_tell_what_failed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: object) -> None:
            raise KeyError("no such layer")

        monkeypatch.setattr(trainer_module, "get_lr_scheduler", broken)
        with pytest.raises(KeyError, match="no such layer"):
            run(tmp_path)
        result = self.failed(tmp_path)
        assert result["exit_reason"] == "error: KeyError: 'no such layer'"
        assert result["val_metrics"] is None and result["checkpoint"] is None
        log = (Path(result["run_directory"]) / "logs" / "rank-0.log").read_text()
        assert "Traceback" in log and "in broken" in log

    def test_divergence_is_a_failure_and_leaves_no_broken_checkpoint(self, tmp_path: Path) -> None:
        with pytest.raises(
            FloatingPointError, match=r"NaN or infinite at or before iteration .*smaller learning_rate"
        ):
            run(tmp_path, learning_rate=1e30, num_warmup_epochs=0, checkpoint_every=1)
        result = self.failed(tmp_path)
        assert result["exit_reason"].startswith("error: FloatingPointError: ")
        for file in Path(result["run_directory"]).glob("checkpoints/training*"):
            assert load_checkpoint(file)["trainer"]["iteration"] <= 2

    def test_an_evaluation_that_misses_a_sample_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from reference.idist.samplers import EpochSampler

        whole_order = EpochSampler.__iter__

        def one_less(self: EpochSampler) -> Iterator[int]:
            order = list(whole_order(self))
            return iter(order if self.shuffle else order[:-1])

        monkeypatch.setattr(EpochSampler, "__iter__", one_less)
        with pytest.raises(RuntimeError, match="counted 36 samples of 37"):
            run(tmp_path)
        assert "counted 36 samples of 37" in self.failed(tmp_path)["exit_reason"]


class TestOptions:
    def test_full_training_metrics_are_those_of_the_whole_training_set(self, tmp_path: Path) -> None:
        result = run(tmp_path, train_metrics="full", num_epochs=1, max_train_samples=70)
        counted = result["train_metrics"]["Accuracy"] * 70  # 70 samples, though only 64 make whole batches
        assert counted == pytest.approx(round(counted), abs=1e-9)
        assert [line["event"] for line in events(result)][-2:] == ["train_full", "val"]

    @pytest.mark.parametrize(("mode", "scaler"), [("bf16", False), ("auto", False), ("fp16", True)])
    def test_mixed_precision(self, mode: str, scaler: bool, whole: dict[str, Any], tmp_path: Path) -> None:
        result = run(tmp_path, with_amp=mode, stop_iteration=2)
        loss = [line["metrics"]["batch loss"] for line in events(result)]
        exact = [line["metrics"]["batch loss"] for line in events(whole)[:2]]
        assert loss != exact and loss == pytest.approx(exact, rel=0.05)
        assert ("scaler" in final(result)) is scaler

    def test_the_pipeline_of_tutorials(self, whole: dict[str, Any], tmp_path: Path) -> None:
        result = run(tmp_path / "a", pipeline="torchvision", num_workers=1)
        assert result["n_evaluated"] == 37 and 0 < result["input_share"] < 1
        # the same samples in the same order, cropped at other places
        loss, ours = (
            [line["metrics"]["batch loss"] for line in events(r) if line["event"] == "training"]
            for r in (result, whole)
        )
        assert loss != ours and loss[0] == pytest.approx(ours[0], rel=0.1)

    def test_both_pipelines_evaluate_the_same_pixels(self, tmp_path: Path) -> None:
        still = {"learning_rate": 0.0, "num_epochs": 1, "validate_every": 1, "model": "squeezenet1_1"}
        results = [run(tmp_path / name, pipeline=name, **still) for name in ("batched", "torchvision")]
        losses = [result["val_metrics"]["Loss"] for result in results]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)

    def test_label_smoothing_is_in_the_training_loss_only(self, tmp_path: Path) -> None:
        share = 0.3
        still = {"learning_rate": 0.0, "num_epochs": 1, "validate_every": 1, "model": "resnet18_cifar"}
        plain, smooth = (run(tmp_path / str(s), label_smoothing=s, **still) for s in (0.0, share))
        assert smooth["val_metrics"] == plain["val_metrics"]
        assert smooth["train_metrics"]["Accuracy"] == plain["train_metrics"]["Accuracy"]
        assert smooth["train_metrics"]["Loss"] != plain["train_metrics"]["Loss"]

    def test_compiled_steps_train_the_same(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def small(name: str) -> nn.Module:  # compiles in seconds
            return nn.Sequential(
                nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(1800, 10)
            )

        monkeypatch.setattr(model, "build", small)
        short = {"num_epochs": 2, "validate_every": 1}
        eager, compiled = (run(tmp_path / str(flag), compile=flag, **short) for flag in (False, True))
        curves = [
            [line["metrics"]["batch loss"] for line in events(result) if line["event"] == "training"]
            for result in (eager, compiled)
        ]
        assert len(curves[0]) == 8 and curves[1] == pytest.approx(curves[0], rel=1e-4)
        assert final(compiled)["model"]["0.weight"].tolist() != final(eager)["model"]["0.weight"].tolist()
        assert list(final(compiled)["model"]) == list(final(eager)["model"])
        assert compiled["val_metrics"]["Loss"] == pytest.approx(eager["val_metrics"]["Loss"], rel=1e-3)

    def test_the_recipe_of_the_preset_learns(self, tmp_path: Path) -> None:
        # with a model and a precision that are faster on a CPU
        config = make_config({
            "preset": "fast94", "model": "resnet18", "with_amp": None, "threads": 1, "dataset": "digits", "batch_size": 32,
            "max_train_samples": 512, "num_epochs": 4, "learning_rate": 0.05, "num_warmup_epochs": 1, "with_tensorboard": False,
            "output_path": str(tmp_path),
        })  # fmt: skip
        result = training(0, config)
        assert result["exit_reason"] == "finished" and result["evaluated_epoch"] == 4
        assert result["val_metrics"]["Accuracy"] > 0.5  # chance is 0.1

    def test_deterministic(self, whole: dict[str, Any], tmp_path: Path) -> None:
        result = run(tmp_path, deterministic=True, stop_iteration=3)
        assert torch.are_deterministic_algorithms_enabled()
        assert events(result) == events(whole)[:3]

    def test_threads_default_to_the_cores(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
        trainer_module.set_up_process(dataclasses.replace(TINY, threads=None))
        assert torch.get_num_threads() == 3

    def test_no_warm_up_and_warm_up_only(self) -> None:
        def curve(warm: int, epochs: int) -> list[float]:
            config = dataclasses.replace(TINY, num_warmup_epochs=warm, num_epochs=epochs, learning_rate=1.0)
            optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
            schedule = trainer_module.get_lr_scheduler(config, optimizer, 2)
            values = []
            for _ in range(2 * epochs):
                schedule()
                values.append(optimizer.param_groups[0]["lr"])
            return values

        assert curve(0, 2) == [1.0, 0.75, 0.5, 0.25]
        assert curve(1, 2) == [0.0, 0.5, 1.0, 0.5]
        assert curve(1, 1) == [0.0, 0.5]

    def test_run_directories_never_clash(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from reference.cifar10 import rundir

        class Frozen(rundir.datetime):  # type: ignore[misc]
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return cls(2030, 1, 2, 3, 4, 5)

        monkeypatch.setattr(rundir, "datetime", Frozen)
        names = [rundir.RunDirectory.create(tmp_path, "m").path.name for _ in range(3)]
        stem = "m_backend-None-1_20300102-030405"
        assert names == [stem, f"{stem}-2", f"{stem}-3"]

    def test_images(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        random = np.random.default_rng(0)
        for part, count in (("train", 4), ("test", 2)):
            for name in CLASSES:
                (tmp_path / "data" / part / name).mkdir(parents=True)
                for number in range(count):
                    pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(tmp_path / "data" / part / name / f"{number}.png")
        config = dataclasses.replace(
            TINY, dataset="auto", data_path=str(tmp_path / "data"), output_path=str(tmp_path / "out"), num_epochs=1,
            max_train_samples=32, max_eval_samples=None,
        )  # fmt: skip
        assert launch(config) == 0
        (file,) = tmp_path.glob("out/*/result.json")
        assert json.loads(file.read_text())["n_evaluated"] == 20
        output = capsys.readouterr().out
        assert output.splitlines()[0] == f"Data: image files in {tmp_path / 'data'}."
        assert (
            "Training on 32 images in batches of 16, testing on 20." in output
            and "only 2 iterations" in output
        )
        assert "on 20 test images of the image folder" in output and "Run summary" in output


class TestRefusedBeforeTheStart:
    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            ({"nproc_per_node": 2}, "backend"),
            ({"backend": "gloo", "nnodes": 2, "batch_size": 16}, "nproc_per_node"),
            ({"backend": "gloo", "nproc_per_node": 2, "nnodes": 2}, "node_rank"),
            ({"backend": "nccl", "nproc_per_node": 2}, "nccl"),
            (
                {"max_train_samples": None, "batch_size": 2000},
                "batch_size (2000) is more than the 1,438 training images",
            ),
            ({"max_train_samples": 2000}, "max_train_samples (2000) is more than the 1,438 images"),
            ({"max_eval_samples": 400}, "max_eval_samples (400) is more than the 359 images"),
            ({"model": "resnet99"}, "unknown model 'resnet99'; did you mean resnet"),
            ({"model": "alexnet"}, "alexnet does not take images of 32x32 pixels"),
            (
                {"compile": True},
                "--compile needs a C++ compiler on CPUs, and there is no no-such-compiler here",
            ),
            ({"resume_from": "nowhere.pt"}, "'nowhere.pt' does not exist"),
        ],
    )
    def test_one_line(
        self, changes: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CXX", "no-such-compiler")
        if changes.get("backend") == "nccl" and torch.cuda.is_available():
            pytest.skip("nccl works here")
        with pytest.raises(OptionError) as error:
            launch(dataclasses.replace(TINY, output_path=str(tmp_path), **changes))
        assert says in str(error.value) and "\n" not in str(error.value)
        assert list(tmp_path.iterdir()) == []

    def test_a_launchers_world_must_divide_the_batch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                            "MASTER_PORT": "29500"}.items():  # fmt: skip
            monkeypatch.setenv(name, value)
        with pytest.raises(
            OptionError, match="batch_size 16 cannot be shared out over 3 processes: take 15 or 18"
        ):
            launch(dataclasses.replace(TINY, output_path=str(tmp_path), backend="gloo"))
