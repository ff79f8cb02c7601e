"""The cells of a run in TensorBoard and in ClearML's offline mode, read back from what they wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.report.trackers import numbers, parameters
from experiments.rules import ROOT
from tests.experiments import made_runs
from tests.experiments.made_runs import LOSSES, failed, starts


def test_parameters_and_numbers() -> None:
    (record,) = starts(0.5, repeats=1, first_step_s=9.0)
    assert parameters(record)["program"] == "idist" and parameters(record)["batch_size"] == 64
    assert record.measured is not None
    found = numbers(record, record.measured)
    assert found == {"accuracy": 0.5, "memory_MiB": 1.0, "images_per_s": 128.0, "first_step_s": 9.0}


def test_tensorboard(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = made_runs.write(tmp_path / "run", *starts(0.5, repeats=2), failed(processes=1))
    assert main(["report", str(run), f"--tensorboard={tmp_path / 'tb'}"]) == 0
    folders = sorted((tmp_path / "tb").iterdir())
    assert [folder.name[-2:] for folder in folders] == ["r1", "r2"]
    events = EventAccumulator(str(folders[0]))
    events.Reload()
    assert [event.value for event in events.Scalars("training/loss")] == pytest.approx(LOSSES)
    assert events.Scalars("result/images_per_s")[0].value == pytest.approx(128.0)
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_clearml_offline(tmp_path: Path) -> None:
    run = made_runs.write(tmp_path / "run", *starts(0.5, repeats=2), failed(processes=1))
    environment = {
        **os.environ,
        "CLEARML_OFFLINE_MODE": "1",
        "CLEARML_CACHE_DIR": str(tmp_path / "clearml"),
    }
    command = [sys.executable, "-m", "experiments", "report", str(run), "--clearml=matrix"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=120)
    sessions = sorted((tmp_path / "clearml").rglob("*.zip"))
    assert len(sessions) == 2
    names = set()
    for session in sessions:
        with zipfile.ZipFile(session) as archive:
            task = json.loads(archive.read("task.json"))
            metrics = archive.read("metrics.jsonl").decode()
        names.add(task["name"])
        assert task["hyperparams"]["cell"]["backend"]["value"] == "gloo"
        assert metrics.count('"variant": "loss"') == len(LOSSES)
        assert "first_step_s" in metrics
    assert {name[-2:] for name in names} == {"r1", "r2"}
