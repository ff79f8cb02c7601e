"""The programs are one training: in real processes of every API, the same curve, and a complete result."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.records import Measured, read_measured
from reference.idist.backends import backend_class
from reference.programs.equivalence.running import ROOT, run_command

DEADLINE = 150.0  # seconds for a program
STEPS = 8
# the sums of 32 images a rank and of two ranks, in another order: a handful of roundings of 6e-8 in each of eight steps
CLOSE = 2e-6


def run(folder: Path, program: str, launcher: str, backend: str, *options: str, np: int = 2) -> Measured:
    """Run a program to its end; what it measured."""
    chosen = [] if backend == "none" else [f"--backend={backend}"]
    out = folder / f"{program}-{launcher}-{backend}"
    command = [
        *(f"launchers/{launcher}.sh", "-m", f"reference.programs.{program}", *chosen, f"--output_path={out}"),
        *(f"--max_train_samples={64 * STEPS}", *options),
    ]
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    log = folder / f"{out.name}.log"
    code = run_command(command, {"NP": str(np), "OMP_NUM_THREADS": "1", "PATH": path}, log, DEADLINE)
    assert code == 0, log.read_text(errors="replace")
    return read_measured(out / "result.json")


@pytest.fixture(scope="module")
def reference_run(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return run(tmp_path_factory.mktemp("reference"), "idist", "torchrun", "gloo")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("program", "launcher", "backend"),
    [
        ("idist", "spawn", "gloo"),
        ("native_ddp", "torchrun", "gloo"),
        ("native_ddp", "spawn", "gloo"),
        ("ignite", "torchrun", "gloo"),
        ("idist", "horovodrun", "horovod"),
        ("horovod_native", "horovodrun", "horovod"),
        ("idist", "spawn", "xla-tpu"),
        ("xla_native", "spawn", "xla-tpu"),
    ],
)
def test_every_program_has_the_same_curve(
    program: str, launcher: str, backend: str, reference_run: Measured, tmp_path: Path
) -> None:
    missing = backend_class(backend).missing(backend)
    if program == "ignite" and importlib.util.find_spec("ignite") is None:
        missing = "pytorch-ignite is not installed"
    if missing is not None:
        pytest.skip(missing)
    found = run(tmp_path, program, launcher, backend)
    assert found.losses == pytest.approx(reference_run.losses, rel=CLOSE)
    assert found.accuracy == pytest.approx(reference_run.accuracy, abs=1 / found.n_evaluated)
    assert found.n_evaluated == reference_run.n_evaluated == found.data.test_images == 359
    assert (found.program, found.backend, found.world_size) == (program, backend, 2)
    assert found.data == reference_run.data
    assert found.communication == reference_run.communication
    assert found.replicas_equal
    if (program, backend) in (("native_ddp", "gloo"), ("idist", "gloo")):
        assert found.losses == reference_run.losses  # the same arithmetic


def test_what_a_result_holds(reference_run: Measured) -> None:
    found = reference_run
    assert len(found.losses) == len(found.step_s) == STEPS == found.steps_per_epoch
    assert found.losses[-1] < found.losses[0]
    assert sum(found.step_s) >= found.train_s > 0  # the slowest rank of each step, and the slowest rank
    assert [rank.rank for rank in found.ranks] == [0, 1]
    for rank in found.ranks:
        assert rank.threads == 1
        assert rank.peak_memory_bytes > 50 * 2**20  # torch alone is more
        assert rank.cpu_s > 0
        assert rank.peak_device_memory_bytes is None
    assert found.communication.bytes_per_step == 4 * found.parameters
    assert found.communication.total_bytes == STEPS * found.communication.bytes_per_step


@pytest.mark.timeout(300)
def test_one_process_has_nothing_to_reduce(tmp_path: Path) -> None:
    found = run(tmp_path, "idist", "plain", "none", "--num_epochs=2", "--max_eval_samples=30", np=1)
    assert len(found.losses) == 2 * STEPS
    assert found.communication.total_bytes == 0
    assert found.n_evaluated == 30
    events = (tmp_path / "idist-plain-none" / "events.jsonl").read_text().splitlines()
    assert '"iteration": 1,' in events[0] and '"iteration": 16,' in events[-1]


@pytest.mark.parametrize(
    ("program", "arguments", "message"),
    [
        ("native_ddp", ["--learningrate=1"], "unknown option learningrate; did you mean learning_rate?"),
        (
            "native_ddp",
            ["--batch_size=0"],
            "batch_size must be a whole number of at least 1 (images), got '0'",
        ),
        (
            "native_ddp",
            ["--backend=horovod"],
            "native_ddp does not know backend horovod: it takes gloo, nccl",
        ),
        ("native_ddp", ["digits"], "'digits' is not an option: write --name=value"),
        (
            "native_ddp",
            ["--nproc_per_node=3"],
            "batch_size 64 cannot be shared out over 3 processes: take 63 or 66",
        ),
        ("idist", ["--max_eval_samples=400"], "max_eval_samples (400) is more than the 359 images"),
        ("idist", ["--dataset=cifar10", "--data_path=/nowhere"], "/nowhere"),
    ],
)
def test_wrong_options_are_one_line(program: str, arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", f"reference.programs.{program}", *arguments]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert found.returncode == 2, found.stderr
    assert message in found.stderr
    assert len(found.stderr.splitlines()) == 1 and found.stderr.startswith("error: ")
