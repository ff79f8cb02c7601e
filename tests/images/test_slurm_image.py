"""The gloo image on a Slurm cluster: Charliecloud starts a container for every task."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import cluster
from tests.cluster.hosts import ROOT, Cluster
from tests.images.containers import SMALL, docker

__all__ = ["cluster"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def unpacked(gloo: str, tmp_path: Path) -> Iterator[Path]:
    """The image as a folder."""
    if shutil.which("ch-run") is None:
        pytest.skip("no Charliecloud here (Debian: charliecloud)")
    folder = tmp_path / "image"
    folder.mkdir()
    container = docker("create", "--network=none", gloo).stdout.split()[-1]
    try:
        export = subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE)
        subprocess.run(
            ["tar", "-x", "-C", folder, "--exclude=dev/*"], stdin=export.stdout, check=True, timeout=240
        )
        assert export.wait(timeout=60) == 0
    finally:
        docker("rm", container)
    yield folder
    shutil.rmtree(folder)


def test_a_job_trains_in_the_image(cluster: Cluster, unpacked: Path, tmp_path: Path) -> None:
    program = ("-m", "reference.cifar10", "run", "--backend=gloo", f"--output_path={tmp_path}/runs", *SMALL)
    # the image's python must not be hidden by that of the tests
    path = ":".join(part for part in os.environ["PATH"].split(":") if part.startswith("/usr"))
    job = cluster.submit(
        tmp_path, "slurm.sbatch", *program, options=(f"--chdir={ROOT}",),
        RUNTIME="charliecloud", IMAGE=str(unpacked), LOG_DIR=str(tmp_path / "logs"), USER="root", PATH=f"/usr/local/bin:{path}:/bin",
    )  # fmt: skip
    assert job.end(300) == ("COMPLETED", 0), job.text()
    (run,) = (tmp_path / "runs").iterdir()
    facts = json.loads((run / "manifest.json").read_text())
    assert facts["image"]["family"] == "gloo"
    assert facts["launcher"]["runtime"]["RUNTIME"] == "charliecloud"
    assert facts["launcher"]["name"] == "slurm"
    assert [rank["host"] for rank in facts["distributed"]["ranks"]] == ["node1", "node1", "node2", "node2"]
