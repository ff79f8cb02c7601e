"""The doctor under srun on two hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.hosts import Cluster, until

pytestmark = pytest.mark.timeout(400)


SRUN = ("srun", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1", "--cpu-bind=none")
DOCTOR = (*SRUN, "python", "-m", "reference.doctor")


def test_the_odd_host_is_named(cluster: Cluster) -> None:
    until("both nodes are up", 60, cluster.up)
    cluster.run("node2", "mount", "-o", "remount,size=32m", "/dev/shm")
    try:
        answer = cluster.run("login", *DOCTOR, "--json", seconds=300)
    finally:
        cluster.run("node2", "mount", "-o", "remount,size=50%", "/dev/shm")
    report = json.loads(answer.stdout[answer.stdout.index("{") :])
    found = {finding["name"]: finding for finding in report["findings"]}
    assert found["/dev/shm"]["odd"] and found["/dev/shm"]["text"].startswith(
        "32 MiB on [node2:2] [node2:3], but "
    )
    assert [finding["name"] for finding in report["findings"] if finding["odd"]] == ["/dev/shm"]
    assert found["interface"]["value"] == "eth0"
    assert found["slurm"]["level"] == "ok" and found["partition debug*"]["value"][0]["nodes"] == "2"
    assert found["clocks"]["level"] == "ok"  # the hosts share the machine's clock
    world = report["world"]
    assert (world["launcher"], world["world_size"], world["nnodes"]) == ("slurm", 4, 2)
    assert [rank["host"] for rank in world["ranks"]] == ["node1", "node1", "node2", "node2"]
    (table,) = report["tables"]
    assert (table["world_size"], table["failed"], len(table["rows"])) == (4, None, 7)
    assert answer.returncode == 0


def test_an_own_name_that_leads_to_loopback_and_its_remedy(cluster: Cluster, tmp_path: Path) -> None:
    """Debian's line in /etc/hosts, on both hosts."""
    until("both nodes are up", 60, cluster.up)
    try:
        for host in ("node1", "node2"):
            file = tmp_path / host
            file.write_text(f"127.0.1.1 {host}\n" + (cluster.root / "etc" / "hosts").read_text())
            cluster.run(host, "mount", "--bind", str(file), "/etc/hosts")
        ill = cluster.run("login", *DOCTOR, "--no-allreduce", "--timeout=10", seconds=300)
        well = cluster.run("login", *DOCTOR, "--no-allreduce", seconds=300, GLOO_SOCKET_IFNAME="eth0")
    finally:
        for host in ("node1", "node2"):
            cluster.run(host, "umount", "/etc/hosts")
    assert ill.returncode == 1, ill.stdout
    assert "the ranks did not get through: gloo: rank 0 " in ill.stdout
    (line,) = {
        line.partition("] ")[2] for line in ill.stdout.splitlines() if "own name: node2 is 127.0.1.1" in line
    }
    assert line.endswith("and they can't connect: set GLOO_SOCKET_IFNAME=eth0")
    assert well.returncode == 0 and "4 ranks of slurm have met by gloo" in well.stdout
