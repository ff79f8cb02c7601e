"""Whatever goes wrong on one rank: the job ends, says why, and leaves no process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("fault_program.py")
ROOT = Path(__file__).parents[2]
LIMIT = 120  # seconds; a hang, not a slow machine


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def command(launcher: str, fault: str, pids: Path, nproc: int) -> list[str]:
    if launcher == "spawn":
        return [sys.executable, str(PROGRAM), fault, str(pids), str(nproc)]
    module = {"torchrun": "torch.distributed.run", "launch": "torch.distributed.launch"}[launcher]
    where = [f"--nproc-per-node={nproc}", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    return [sys.executable, "-m", module, *where, str(PROGRAM), fault, str(pids)]


def start(launcher: str, fault: str, pids: Path, nproc: int = 2) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command(launcher, fault, pids, nproc),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ranks_left(pids: Path) -> list[int]:
    """The ranks that still run; a moment is given for the kernel to take down what was killed."""
    for _ in range(100):
        left = [int(p.name) for p in pids.iterdir() if p.name.isdigit() and runs(int(p.name))]
        if not left:
            break
        time.sleep(0.1)
    return left


def runs(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def end(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=LIMIT)[0]
    finally:
        process.kill()


@pytest.mark.parametrize("launcher", ["spawn", "torchrun"])
@pytest.mark.parametrize(
    ("fault", "last"),
    [
        ("raise", "KeyError: 'rank one broke'"),
        ("wrong-type", "TypeError: all_reduce takes a tensor or a number, not str"),
        ("leader", "OSError: no such data"),
    ],
)
def test_the_first_failing_ranks_error_is_shown_last(
    launcher: str, fault: str, last: str, tmp_path: Path
) -> None:
    process = start(launcher, fault, tmp_path)
    output = end(process)
    assert process.returncode != 0
    assert output.rstrip().rstrip("= \n").endswith(last), output[-1500:]
    assert len(list(tmp_path.iterdir())) == 2
    assert not ranks_left(tmp_path)


@pytest.mark.parametrize("launcher", ["spawn", "torchrun"])
@pytest.mark.parametrize(("fault", "sign"), [("kill", "SIGKILL"), ("exit", "7")])
def test_a_rank_that_vanishes(launcher: str, fault: str, sign: str, tmp_path: Path) -> None:
    process = start(launcher, fault, tmp_path)
    output = end(process)
    assert process.returncode != 0
    assert sign in output[output.rindex("rank") :] if launcher == "spawn" else sign in output
    assert not ranks_left(tmp_path)


@pytest.mark.parametrize("fault", ["stop", "absent"])
def test_the_deadline_names_operation_and_missing_rank(fault: str, tmp_path: Path) -> None:
    process = start("spawn", fault, tmp_path, nproc=3)
    output = end(process)
    assert process.returncode != 0
    assert "gloo: all_reduce failed on rank" in output
    assert output.rstrip().endswith("(no word from rank 1)"), output[-1500:]
    assert not ranks_left(tmp_path)


def test_killing_the_parent_takes_the_ranks_along(tmp_path: Path) -> None:
    process = start("spawn", "wait", tmp_path)
    for _ in range(LIMIT * 10):
        if (tmp_path / "ready").exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    assert process.poll() is None
    process.kill()
    end(process)
    assert not ranks_left(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_parent_ends_everything(number: signal.Signals, tmp_path: Path) -> None:
    process = start("spawn", "wait", tmp_path)
    for _ in range(LIMIT * 10):
        if (tmp_path / "ready").exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(number)
    end(process)
    assert process.returncode != 0
    assert not ranks_left(tmp_path)


def test_a_busy_port_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        code = (
            "import reference.idist as idist\n"
            f"with idist.Parallel('gloo', nproc_per_node=2, master_port={port}) as parallel: parallel.run(print)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT
        )
    assert done.returncode != 0
    assert f"master_port={port}: the port is busy: choose a port that is free on 127.0.0.1" in done.stderr


def test_a_wrong_master_address_ends_at_the_deadline(tmp_path: Path) -> None:
    env = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    code = "import reference.idist as idist; idist.initialize('gloo', timeout=3)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode != 0
    assert "gloo: rank 1 of 2 could not meet the others at 127.0.0.1:1 within 3 s" in done.stderr
