"""Faults on one host: whatever goes wrong, the job ends, says why, and leaves no process.

All launchers with FAULTS=all in the environment (`make faults`), else a choice that meets each fault and each launcher.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import reference.idist as idist
from tests.faults.running import ENDLESS, SUPERVISED, Training

pytestmark = pytest.mark.timeout(900)
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
ALL = ("spawn", "torchrun", "torch_distributed_launch", "horovodrun", "mpirun")


def launchers(*chosen: str, possible: tuple[str, ...] = ALL) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("launcher", possible if os.environ.get("FAULTS") == "all" else chosen)


@pytest.fixture(autouse=True)
def launcher_is_there(launcher: str) -> None:
    if launcher == "horovodrun" and "horovod" not in idist.available_backends():
        pytest.skip("Horovod is not installed in this environment: make env BACKEND=horovod")
    if launcher == "mpirun" and shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed (Debian: openmpi-bin)")


Start = Callable[..., Training]


@pytest.fixture
def start(launcher: str, tmp_path: Path) -> Iterator[Start]:
    """Starts trainings that end with the test, whatever becomes of it."""
    running: list[Training] = []

    def start_one(*options: str, **keywords: Any) -> Training:
        running.append(Training(tmp_path, launcher, *options, **keywords))
        return running[-1]

    yield start_one
    for training in running:
        training.process.kill()  # its guard ends the rest
        training.process.wait()


@launchers("torch_distributed_launch", "horovodrun", "mpirun")
def test_a_rank_raises(start: Start) -> None:
    training = start(*ENDLESS, FAULT="raise")
    record = training.record("raise")
    assert record.exit_code == 1 and record.ended.endswith("KeyError: 'planted on rank 1'"), training.printed
    assert "rank 1 on " in record.ended and not record.left
    assert (
        training.printed.rstrip().endswith("KeyError: 'planted on rank 1'")
        or "exit code 1; " in training.printed.splitlines()[-1]
    )


@launchers("spawn", "horovodrun")
def test_a_rank_is_killed(start: Start) -> None:
    training = start(*ENDLESS)
    ranks = training.wait_for_steps()
    since = time.monotonic()
    ranks[1].kill()
    record = training.record("SIGKILL", since)
    assert (record.exit_code, record.left) == (137, []), training.printed
    assert record.ended == "rank 1 on localhost was killed by SIGKILL"


@launchers("torchrun")
def test_a_rank_stops(start: Start) -> None:
    training = start(*ENDLESS)
    ranks = training.wait_for_steps()
    since = time.monotonic()
    ranks[1].suspend()
    record = training.record("SIGSTOP", since)
    assert record.exit_code != 0 and not record.left, training.printed
    assert "CollectiveError: " in record.ended and "(no word from rank 1)" in record.ended


@launchers("torchrun", "mpirun")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_signal_asks_for_the_end(start: Start, number: signal.Signals) -> None:
    training = start(*ENDLESS)
    training.wait_for_steps()
    since = time.monotonic()
    training.process.send_signal(number)
    record = training.record(number.name, since)
    assert (record.exit_code, record.left) == (128 + number, []), training.printed
    assert training.checkpoints(), "the trainer writes a checkpoint when it is asked to end"


@launchers("spawn", possible=("spawn", "torchrun", "torch_distributed_launch", "mpirun"))
def test_a_busy_port(start: Start, launcher: str) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(busy.getsockname()[1])}
        if launcher != "mpirun":
            place |= {"NNODES": "2", "NODE_RANK": "0"}
        training = start(*ENDLESS, **place)
        record = training.record("busy port")
    assert record.exit_code not in (0, 124) and not record.left, training.printed


@launchers("torchrun")
def test_a_wrong_address(start: Start, launcher: str) -> None:
    place = {"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29999"}
    if launcher == "horovodrun":
        place = {"HOSTS": "192.0.2.1:2"}
    elif launcher != "mpirun":
        place |= {"NNODES": "2", "NODE_RANK": "1"}
    supervised = ("--startup-timeout=45", "--grace=10")
    training = start(*ENDLESS, supervised=supervised, **place)
    record = training.record("wrong address")
    assert record.exit_code != 0 and not record.left, training.printed


@ROOT_ONLY
@launchers("torchrun")
def test_a_full_disk(start: Start, tmp_path: Path) -> None:
    disk = tmp_path / "out"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], check=True)
    try:
        training = start(*ENDLESS)
        record = training.record("full disk")
    finally:
        subprocess.run(["umount", disk], check=True)
    assert record.exit_code == 1 and not record.left, training.printed
    assert "rank 0" in record.ended and "No space left on device" in record.ended


@ROOT_ONLY
@launchers("torchrun")
def test_little_shared_memory(start: Start) -> None:
    prefix = ["unshare", "--mount", "sh", "-c", 'mount -o remount,size=64m /dev/shm && exec "$@"', "sh"]
    training = start("--num_epochs=2", "--num_workers=1", prefix=prefix)
    record = training.record("small shm")
    assert (record.exit_code, record.ended, record.left) == (0, "finished", []), training.printed


@launchers("horovodrun")
def test_a_missing_backend(start: Start) -> None:
    if "nccl" in idist.available_backends():
        pytest.skip("nccl is there")
    training = start(*ENDLESS, "--backend=nccl", supervised=SUPERVISED)
    record = training.record("missing backend")
    assert record.exit_code == 2 and not record.left, training.printed
    assert "backend='nccl' can't be used here" in training.printed


@launchers("torchrun")
def test_missing_data(start: Start, tmp_path: Path) -> None:
    training = start(*ENDLESS, "--dataset=images", f"--data_path={tmp_path}/nowhere")
    record = training.record("missing data")
    assert record.exit_code == 2 and not record.left, training.printed
    assert "nowhere" in training.printed
