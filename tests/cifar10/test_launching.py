"""The trainer started in each of the ways a user starts it, with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import torch

from reference.handlers import load_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
TRAIN = [
    "reference.cifar10", "run", "--model=mobilenet_v3_small", "--dataset=digits", "--batch_size=16",
    "--max_train_samples=64", "--max_eval_samples=37", "--num_epochs=2", "--learning_rate=0.05", "--threads=1",
    "--log_every_iters=1", "--with_tensorboard=false", "--timeout=60",
]  # fmt: skip
SPAWN = [sys.executable, "-m", *TRAIN, "--backend=gloo", "--nproc_per_node=2"]
LIMIT = (
    300  # seconds for one command; processes that start at once on a busy machine take long to import torch
)


class Run(NamedTuple):
    """A finished command and the run directory that it left."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / "result.json").read_text())

    @property
    def losses(self) -> list[float]:
        lines = map(json.loads, (self.folder / "events.jsonl").read_text().splitlines())
        return [line["metrics"]["batch loss"] for line in lines if line["event"] == "training"]

    @property
    def state(self) -> dict[str, Any]:
        return load_checkpoint(self.folder / self.result["checkpoint"])


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def start(command: list[str], output_path: Path, *more: str, **variables: str) -> Run:
    command = [*command, f"--output_path={output_path}", *more]
    env = {**environment(), **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, env=env, cwd=output_path)
    return Run(done.returncode, done.stdout, done.stderr, newest(output_path))


def newest(output_path: Path) -> Path:
    folders = [path for path in output_path.iterdir() if path.is_dir() and "_backend-" in path.name]
    return max(folders, key=lambda path: path.stat().st_mtime_ns, default=output_path)


def launcher(module: str) -> list[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--nproc_per_node=2", "--master_addr=127.0.0.1", f"--master_port={port}"]
    return [sys.executable, "-m", module, *options, "-m", *TRAIN, "--backend=gloo"]


WAYS: dict[str, Callable[[], list[str]]] = {
    "spawn": lambda: SPAWN,
    "torchrun": lambda: launcher("torch.distributed.run"),
    "torch.distributed.launch": lambda: launcher("torch.distributed.launch"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    return {name: start(command(), tmp_path_factory.mktemp("run")) for name, command in WAYS.items()}


def assert_same_tensors(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("way", list(WAYS))
def test_a_run_and_what_it_prints(way: str, runs: dict[str, Run]) -> None:
    run = runs[way]
    assert run.code == 0, run.err
    lines = run.out.splitlines()
    assert lines[:2] == [
        "Data: the digits that come with scikit-learn.",
        "Training on 64 images in batches of 16, testing on 37.",
    ]
    assert sum("Run summary" in line for line in lines) == 1 and "tensorboard --logdir" in lines[-1]
    assert run.err.count("Epoch 1/2 [1/4] loss") == 1, "only rank 0 speaks"
    result = run.result
    assert (result["exit_reason"], result["iteration"], result["world_size"]) == ("finished", 8, 2)
    assert result["n_evaluated"] == 37, "an odd number over two ranks"
    assert re.fullmatch(r"mobilenet_v3_small_backend-gloo-2_\d{8}-\d{6}", run.folder.name)
    assert sorted(file.name for file in run.folder.glob("logs/*")) == ["rank-0.log", "rank-1.log"]


def test_every_way_gives_the_same_bits(runs: dict[str, Run]) -> None:
    first, *others = runs.values()
    assert len(first.losses) == 8 and len(set(first.losses)) == 8
    for other in others:
        assert other.losses == first.losses
        assert_same_tensors(other.state["model"], first.state["model"])
        for name in ("train_metrics", "val_metrics"):
            assert other.result[name] == first.result[name]


def test_manifests_tell_how_they_were_started(runs: dict[str, Run]) -> None:
    manifests = {name: json.loads((run.folder / "manifest.json").read_text()) for name, run in runs.items()}
    assert manifests["spawn"]["launcher"]["name"] == "spawn"
    for name, module in (
        ("torchrun", "torch.distributed.run"),
        ("torch.distributed.launch", "torch.distributed.launch"),
    ):
        launcher_of_run = manifests[name]["launcher"]
        assert launcher_of_run["name"] == "torchrun" and module in launcher_of_run["command"]
        assert (
            launcher_of_run["layout"]["world_size"] == 2 and launcher_of_run["variables"]["WORLD_SIZE"] == "2"
        )
    for manifest in manifests.values():
        assert [rank["threads"] for rank in manifest["distributed"]["ranks"]] == [1, 1]
        assert "--batch_size=16" in manifest["command"]


def test_stopped_under_one_launcher_and_resumed_under_another(runs: dict[str, Run], tmp_path: Path) -> None:
    whole = runs["spawn"]
    first = start(SPAWN, tmp_path, "--stop_iteration=3")
    assert first.code == 0, first.err
    assert first.result["exit_reason"] == "stop_iteration" and "go on" in first.out
    second = start(launcher("torch.distributed.run"), tmp_path, f"--resume_from={first.folder}")
    assert second.code == 0, second.err
    assert first.losses + second.losses == whole.losses
    assert_same_tensors(second.state["model"], whole.state["model"])
    assert second.result["val_metrics"] == whole.result["val_metrics"]
    assert second.result["train_metrics"] == whole.result["train_metrics"]


def test_a_plain_command_is_one_process(tmp_path: Path) -> None:
    run = start([sys.executable, "-m", *TRAIN], tmp_path, "--stop_iteration=1")
    assert run.code == 0, run.err
    assert (run.result["backend"], run.result["world_size"]) == (None, 1)
    manifest = json.loads((run.folder / "manifest.json").read_text())
    assert manifest["launcher"]["name"] == "none" and manifest["launcher"]["layout"] is None


def test_clearml_offline(tmp_path: Path) -> None:
    clearml = {"CLEARML_OFFLINE_MODE": "1", "CLEARML_CACHE_DIR": str(tmp_path / "clearml")}
    run = start([sys.executable, "-m", *TRAIN], tmp_path, "--with_clearml", "--num_epochs=1", **clearml)
    assert run.code == 0, run.err
    (session,) = (tmp_path / "clearml").rglob("*.zip")
    with zipfile.ZipFile(session) as archive:
        names = archive.namelist()
        task = json.loads(archive.read("task.json"))
        metrics = archive.read("metrics.jsonl").decode()
    assert task["name"] == run.folder.name
    assert any("training_checkpoint_4.pt" in name for name in names)
    assert any("best_model_1" in name for name in names)
    assert "batch loss" in metrics and "Accuracy" in metrics


def test_a_failing_run(tmp_path: Path) -> None:
    run = start(SPAWN, tmp_path, "--learning_rate=1e30", "--num_warmup_epochs=0")
    assert run.code == 1
    assert run.err.rstrip().splitlines()[-1].startswith("FloatingPointError: the loss is NaN or infinite")
    assert run.result["exit_reason"].startswith("error: FloatingPointError: ")
    assert "Run summary" not in run.out
    assert "Traceback" in (run.folder / "logs" / "rank-1.log").read_text()


def test_sigterm_ends_all_ranks_with_a_checkpoint(tmp_path: Path) -> None:
    command = [*SPAWN, "--num_epochs=500", f"--output_path={tmp_path}"]
    with (tmp_path / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment()
        )
    deadline = time.monotonic() + LIMIT
    while not any("training" in file.read_text() for file in tmp_path.glob("*/events.jsonl")):
        assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "stderr").read_text()
        time.sleep(0.1)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=LIMIT)
    assert process.returncode == 128 + signal.SIGTERM, (tmp_path / "stderr").read_text()
    assert not psutil.wait_procs(children, timeout=10)[1]
    run = Run(process.returncode, out, "", newest(tmp_path))
    assert run.result["exit_reason"] == "stopped by SIGTERM" and "stopped by SIGTERM" in out
    assert run.state["trainer"]["iteration"] == run.result["iteration"] == len(run.losses)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ([sys.executable, "-m", *TRAIN, "--nproc_per_node=2"], "backend"),
        ([sys.executable, "-m", *TRAIN, "--backend=gloo", "--nnodes=2"], "nproc_per_node"),
    ],
)
def test_launch_options_that_make_no_world(command: list[str], says: str, tmp_path: Path) -> None:
    run = start(command, tmp_path)
    assert run.code == 2 and run.out == ""
    assert run.err.startswith("error: ") and run.err.count("\n") == 1 and says in run.err


def test_torchrun_without_a_backend_is_refused(tmp_path: Path) -> None:
    run = start([part for part in launcher("torch.distributed.run") if part != "--backend=gloo"], tmp_path)
    assert run.code != 0
    errors = [line for line in run.err.splitlines() if line.startswith("error: ")]
    assert errors and all("backend=None in a world of 2 processes" in line for line in errors)
    assert run.folder == tmp_path
