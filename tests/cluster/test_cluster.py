"""The throw-away cluster itself: hosts of their own, and nothing left of them."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from tests.cluster.hosts import SCRIPT, Cluster, until


def test_hosts_have_names_processes_and_networks_of_their_own(cluster: Cluster) -> None:
    for host, address in (("login", "10.77.0.1"), ("node1", "10.77.0.11"), ("node2", "10.77.0.12")):
        assert cluster.run(host, "hostname").stdout.strip() == host
        assert address in cluster.run(host, "ip", "-brief", "address").stdout
        assert cluster.run(host, "pgrep", "-x", "pytest").returncode == 1
        shared_memory = Path("/dev/shm", f"of-{os.getpid()}")
        cluster.run(host, "touch", str(shared_memory))
        assert not shared_memory.exists()
    assert "10.77.0" not in subprocess.run(["ip", "-brief", "address"], capture_output=True, text=True).stdout
    assert socket.gethostname() not in ("login", "node1", "node2")
    assert cluster.run("node1", "ssh", "node2", "hostname").stdout.strip() == "node2"


def test_a_cluster_ends_with_its_owner(cluster: Cluster, tmp_path: Path) -> None:
    owner = subprocess.Popen(["sleep", "300"])
    root = cluster.root / "second"
    root.mkdir()
    environment = {**cluster.environment, "CLUSTER_ROOT": str(root), "CLUSTER_OWNER": str(owner.pid)}
    environment["SLURM_CONF"] = str(root / "etc" / "slurm.conf")
    subprocess.run([SCRIPT, "start"], env=environment, check=True, timeout=120)
    running = [int(file.read_text()) for file in (root / "hosts").glob("*.pid")]
    assert len(running) == 3 and all(Path(f"/proc/{pid}").exists() for pid in running)
    owner.kill()
    owner.wait()
    until("all hosts are gone", 60, lambda: not any(Path(f"/proc/{pid}").exists() for pid in running))
    until("munge is gone", 60, lambda: not (root / "run" / "munge").exists())
