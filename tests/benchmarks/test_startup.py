"""The benchmark of start-up: its programs really meet under every launcher, and import no more than they claim."""

import math
import subprocess
import sys

import pytest

from benchmarks import startup as benchmark
from benchmarks.results import ResultError
from benchmarks.starting import ROOT, Bench
from experiments.rules import LAUNCHERS


def test_rows_of_a_trial(tmp_path):
    rows = benchmark.measure(Bench(folder=tmp_path, repeats=1, quick=True))
    by_name = {(row.name, row.than): row for row in rows}
    assert len(by_name) == len(rows)
    assert {row.unit for row in rows} == {"s"}
    for row in rows:
        for side in (row.ours, row.theirs):
            assert len(side) == 1 and len(side[0]) == 1
            assert math.isfinite(side[0][0]) and side[0][0] > 0
    met = by_name["torchrun, gloo: command to rendezvous", "empty program"]
    step = by_name["torchrun, gloo: command to first step", "empty program's rendezvous"]
    assert met.ours[0][0] < step.ours[0][0]
    assert met.theirs == step.theirs
    for name in ("import reference.idist", "import reference.cifar10.trainer", "the trainer's --help"):
        assert (name, "torch alone") in by_name


def _imported(*arguments):
    """Modules in the order in which their imports were over."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return [line.rpartition("|")[2].strip() for line in lines]


def test_help_imports_no_torch():
    names = _imported(*benchmark._HELP)
    assert "reference.cifar10.config" in names
    assert not [name for name in names if name.partition(".")[0] in ("torch", "numpy", "horovod", "ignite")]


def test_the_empty_program_imports_nothing_of_ours_before_it_has_met():
    names = _imported("-m", "benchmarks.worlds.empty")
    first = next(index for index, name in enumerate(names) if name.partition(".")[0] == "reference")
    assert names.index("torch") < first


@pytest.mark.parametrize("launcher", [name for name in benchmark.LAUNCHERS if name != "torchrun"])
def test_the_empty_program_meets_under_the_other_launchers(tmp_path, launcher):
    if missing := benchmark.absent(launcher):
        pytest.skip(f"{missing} is not installed")
    backend = benchmark.LAUNCHERS[launcher]
    processes = 1 if backend == "none" else 2
    bench = Bench(folder=tmp_path, repeats=1)
    start = bench.start(
        launcher, processes, "-m", "benchmarks.worlds.empty", f"--backend={backend}", timeout=120
    )
    assert 0 < start.times["rendezvous_s"] < start.seconds
    assert start.times["first_step_s"] is None


def test_the_launchers_can_start_their_backends():
    assert all(launcher in LAUNCHERS[backend] for launcher, backend in benchmark.LAUNCHERS.items())


def test_what_is_not_installed_is_said(tmp_path, monkeypatch):
    said, started = [], []
    monkeypatch.setattr(benchmark.shutil, "which", lambda name: None)
    monkeypatch.setattr(benchmark, "_imports", lambda bench: [])
    monkeypatch.setattr(benchmark, "_launcher", lambda bench, launcher: started.append(launcher) or [])
    assert benchmark.measure(Bench(folder=tmp_path, say=said.append)) == []
    assert started == ["plain", "torchrun", "torch_distributed_launch", "spawn"]
    assert [line.partition(":")[0] for line in said] == ["horovodrun", "mpirun"]


def test_a_command_that_fails_has_no_time():
    with pytest.raises(ResultError, match="no_such_module"):
        benchmark.seconds_of(("-c", "import no_such_module"))
    with pytest.raises(ResultError, match="first_step"):
        benchmark._seconds([{"first_step_s": 1.0}, {"first_step_s": None}], "first_step_s")
