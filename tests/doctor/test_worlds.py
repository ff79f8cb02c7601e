"""The doctor as the ranks of a launcher: what is equal stands once, and the odd one out is named."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from pathlib import Path

import pytest

import reference.idist as idist
from tests.doctor.running import ROOT, Answer, call, doctor, environment

HERE = Path(__file__).parent
TORCHRUN = [
    sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d",
    "--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1",
]  # fmt: skip


def test_two_ranks_that_differ() -> None:
    answer = call(
        [*TORCHRUN, "--no-python", str(HERE / "planted.sh"), "--json", "--timeout=100"],
        environment(OMP_NUM_THREADS="1"),
    )
    report, label = answer.json, f"[{socket.gethostname()}:1]"
    assert {found["name"] for found in report["findings"] if found["odd"]} == {
        "OMP_NUM_THREADS",
        "NCCL_ALGO",
        "ulimit -n",
    }
    assert answer.finding("OMP_NUM_THREADS")["text"].startswith(f"3 on {label}, but 1 on the other: ")
    assert answer.finding("NCCL_ALGO")["text"].startswith(f"Ring on {label}, but not there on the other: ")
    assert answer.finding("ulimit -n")["value"]["1"] == 555
    world = report["world"]
    assert (world["backend"], world["launcher"], world["world_size"], world["nnodes"]) == (
        "gloo",
        "torchrun",
        2,
        1,
    )
    assert [(rank["rank"], rank["layout"]["local_rank"]) for rank in world["ranks"]] == [(0, 0), (1, 1)]
    assert world["ranks"][1]["variables"]["RANK"] == "1"
    assert answer.finding("clocks")["level"] == "ok"
    (table,) = report["tables"]
    assert (table["world_size"], table["failed"], len(table["rows"])) == (2, None, 7)
    assert answer.code == (1 if report["worst"] == "problem" else 0)


def test_the_text_of_a_world() -> None:
    answer = call([*TORCHRUN, "-m", "reference.doctor", "--no-allreduce"], environment(OMP_NUM_THREADS="1"))
    first = answer.out.splitlines()[0]
    assert first.startswith(f"2 ranks of torchrun have met by gloo ({socket.gethostname()}: 0 1)")
    assert answer.out.count("\nmachine\n") == 1


def test_horovodrun() -> None:
    if "horovod" not in idist.available_backends():
        pytest.skip("Horovod is not installed in this environment: make env BACKEND=horovod")
    answer = call(["horovodrun", "-np", "2", *sys_doctor("--issue")], environment())
    assert "2 ranks of horovod have met by horovod" in answer.out
    assert "horovod, 2 processes" in answer.out


def test_mpirun() -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed")
    world = [
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "-np",
        "2",
        "-x",
        "MASTER_ADDR",
        "-x",
        "MASTER_PORT",
    ]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    answer = call(
        [*world, *sys_doctor("--json", "--no-allreduce")],
        environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
    )
    assert answer.json["world"]["launcher"] == "openmpi" and answer.json["world"]["nnodes"] == 1


def sys_doctor(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "reference.doctor", *arguments]


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_never_comes(rank: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    answer: Answer = doctor("--json", "--timeout=3", **world)
    assert answer.code == 1
    # by gloo's own error, or by the doctor's watch where gloo takes longer than that
    told = answer.finding("world")["text"] if rank == "0" else answer.err
    assert f"the ranks did not get through: gloo: rank {rank} of 2 " in told
    assert f" meet the others at 127.0.0.1:{port}" in told and " within " in told
    if rank == "1":
        assert answer.out == "" and told.startswith(f"[{socket.gethostname()}:1] world: ")


def test_clocks_that_are_apart() -> None:
    environ = environment(OMP_NUM_THREADS="1", PYTHONPATH=str(ROOT))
    answer = call([*TORCHRUN, str(HERE / "skewed_program.py"), "5"], environ)
    first, second = json.loads(answer.out)
    assert (first["seconds"], first["uncertainty"]) == (0.0, 0.0)
    assert abs(second["seconds"] - 5) <= second["uncertainty"] + 1e-6
