"""The launchers that need no batch system, across two hosts."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest

import reference.idist as idist
from tests.cluster.hosts import ROOT, Cluster, check_places

pytestmark = pytest.mark.timeout(300)

PLACE = str(Path(__file__).with_name("place_program.py"))
CUT = Path(__file__).with_name("cut_program.py")
LIMIT = 180.0  # seconds
PORTS = {"torchrun": "29601", "torch_distributed_launch": "29602", "spawn": "29603", "mpirun": "29604"}


def places(processes: list[subprocess.Popen[str]], out: Path) -> list[dict[str, object]]:
    """What place_program.py found out; all processes must end well and in time."""
    deadline = time.monotonic() + LIMIT
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=max(1.0, deadline - time.monotonic()))[0])
    finally:
        for process in processes:
            process.terminate()
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(outputs)
    ranks: list[dict[str, object]] = json.loads(out.read_text())
    return ranks


@pytest.mark.parametrize("launcher", ["torchrun", "torch_distributed_launch", "spawn"])
def test_started_on_every_host(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    out = tmp_path / "places"
    command = (str(ROOT / "launchers" / f"{launcher}.sh"), PLACE, "--backend=gloo", f"--out={out}")
    variables = {"NP": "2", "NNODES": "2", "MASTER_ADDR": "node1", "MASTER_PORT": PORTS[launcher]}
    processes = [
        cluster.start(f"node{node + 1}", *command, NODE_RANK=str(node), OMP_NUM_THREADS="1", **variables)
        for node in (0, 1)
    ]
    check_places(places(processes, out))
    assert cluster.processes(PLACE) == []


def test_names_that_lead_to_loopback_end_at_the_deadline_on_every_host(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Debian's line in /etc/hosts. Gloo's ranks that wait for the others to connect would wait for ever."""
    for node in ("node1", "node2"):
        lines = cluster.run(node, "cat", "/etc/hosts").stdout.splitlines(keepends=True)
        hosts = tmp_path / f"hosts-{node}"
        hosts.write_text(f"127.0.1.1 {node}\n" + "".join(line for line in lines if node not in line))
        cluster.run(node, "mount", "--bind", str(hosts), "/etc/hosts")
    try:
        processes = [
            cluster.start(
                f"node{node + 1}", "python", str(CUT), str(tmp_path), RANK=str(node), LOCAL_RANK="0", WORLD_SIZE="2",
                LOCAL_WORLD_SIZE="1", MASTER_ADDR="10.77.0.11", MASTER_PORT="29605", OMP_NUM_THREADS="1",
            )
            for node in (0, 1)
        ]  # fmt: skip
        printed = [process.communicate(timeout=LIMIT)[0] for process in processes]
    finally:
        for node in ("node1", "node2"):
            cluster.run(node, "umount", "/etc/hosts")
    assert [process.returncode for process in processes] == [1, 1], printed
    for text in printed:
        assert "could not meet the others" in text, text
    assert any("set GLOO_SOCKET_IFNAME" in text for text in printed)


@pytest.mark.parametrize("launcher", ["mpirun", "horovodrun"])
def test_started_once_and_carried_by_ssh(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    if launcher == "horovodrun" and "horovod" not in idist.available_backends():
        pytest.skip("Horovod is not installed in this environment: make env BACKEND=horovod")
    backend = {"mpirun": "gloo", "horovodrun": "horovod"}[launcher]
    out = tmp_path / "places"
    process = cluster.start(
        "node1", str(ROOT / "launchers" / f"{launcher}.sh"), PLACE, f"--backend={backend}", f"--out={out}",
        NP="2", HOSTS="node1:2,node2:2", MASTER_PORT=PORTS["mpirun"], OMP_NUM_THREADS="1",
    )  # fmt: skip
    check_places(places([process], out))
    assert cluster.processes(PLACE) == []
