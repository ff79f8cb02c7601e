"""The matrix on a real Slurm cluster of two hosts: job arrays, records, logs of the ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from experiments.records import read_records
from tests.cluster.hosts import ROOT, Cluster, until

MATRIX = """\
presets:
  own:
    about: for a test
    repeats: 1
    time_limit: 200
    settings: {dataset: digits, max_train_samples: 256, threads: 1}
    axes:
      program: [idist]
      backend: [gloo]
      launcher: [slurm, slurm_torchrun]
      processes: [2]
      nodes: [2]
    include:
      - {program: native_ddp, backend: gloo, launcher: slurm_torchrun, processes: 2, nodes: 2}
      - {program: idist, backend: gloo, launcher: torchrun, processes: 2}
      - {program: idist, backend: gloo, launcher: slurm, processes: 2, nodes: 2, model: no_such_model}
"""


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_matrix_as_job_arrays(cluster: Cluster, tmp_path: Path) -> None:
    until("both nodes are up", 60, cluster.up)
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    run = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "experiments",
        "run",
        "--preset=own",
        f"--matrix={tmp_path / 'matrix.yaml'}",
    ]
    home = os.environ.get("VENV_HOME", str(Path(sys.prefix).parent))
    answer = cluster.run(
        "login", *command, f"--output={run}", folder=ROOT, seconds=450, VENV_HOME=home, SCHEDULER="slurm"
    )
    assert answer.returncode == 1, answer.stdout
    records = {(r.cell.program, r.cell.launcher, r.cell.settings.model): r for r in read_records(run)}
    good = [records["idist", name, "small"] for name in ("slurm", "slurm_torchrun")]
    good.append(records["native_ddp", "slurm_torchrun", "small"])
    for record in good:
        assert record.state == "ok", (record.reason, answer.stdout)
        assert record.measured is not None and record.measured.world_size == 4
        assert record.measured.losses == pytest.approx(good[0].measured.losses, rel=2e-6)
        assert "logs/node1-rank-0.log" in record.logs and "logs/launcher.log" in record.logs
        assert record.hosts == ["node1", "node1", "node2", "node2"]
        times = record.times
        assert times.rendezvous_s is not None and times.first_step_s is not None and times.wall_s is not None
        assert 0 < times.rendezvous_s < times.first_step_s < times.wall_s
    local = records["idist", "torchrun", "small"]
    assert local.state == "skipped" and "SCHEDULER=slurm" in local.reason
    failed = records["idist", "slurm", "no_such_model"]
    assert failed.state == "failed" and failed.exit_code, failed.reason
    assert failed.failed is not None and failed.failed.log in failed.logs
    folder = run / "cells" / failed.cell.name
    assert any("no_such_model" in (folder / log).read_text() for log in failed.logs)
