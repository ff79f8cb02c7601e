"""A throw-away cluster of two hosts for the tests of this folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.hosts import ROOT, SCRIPT, Cluster

TOOLS = ("sbatch", "slurmctld", "slurmd", "munged", "/usr/sbin/sshd", "ssh-keygen", "ip", "nsenter", "pgrep")


def hindrance() -> str | None:
    """Why no cluster can be started here, or None."""
    if os.geteuid() != 0:
        return "a test cluster needs root"
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    if missing := [tool for tool in TOOLS if shutil.which(tool, path=path) is None]:
        return (
            f"a test cluster needs {', '.join(missing)} (Debian: slurmctld, slurmd, slurm-client, munge, openssh-server,"
            " openssh-client, iproute2, procps)"
        )
    attempt = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True
    )
    return f"a test cluster needs namespaces: {attempt.stderr.strip()}" if attempt.returncode else None


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster, started once; stopped at the end of the session, or when the session is killed."""
    if reason := hindrance():
        pytest.skip(reason)
    root = Path(tempfile.mkdtemp(prefix="cluster-", dir="/tmp"))  # short: paths of sockets may not be long
    bin_folder = Path(sys.executable).parent
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    environment = {
        **kept,
        "PATH": f"{bin_folder}:{os.environ['PATH']}:/usr/sbin:/sbin",
        "PYTHONPATH": str(ROOT),
        "CLUSTER_ROOT": str(root),
        "CLUSTER_CPUS": "8",
        "CLUSTER_OWNER": str(os.getpid()),
        "SLURM_CONF": str(root / "etc" / "slurm.conf"),
    }
    try:
        subprocess.run([SCRIPT, "start"], env=environment, check=True, timeout=120)
        yield Cluster(root=root, environment=environment)
    finally:
        subprocess.run([SCRIPT, "stop"], env=environment, check=True, timeout=60)
        shutil.rmtree(root)
