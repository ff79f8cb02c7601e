"""Both batch scripts on a real Slurm cluster of two hosts."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

import reference.idist as idist
from tests.cluster.hosts import ROOT, Cluster, Job, check_places, until

pytestmark = pytest.mark.timeout(400)

HERE = Path(__file__).parent
PLACE, PLAIN, CUT, HELD = (
    str(HERE / f"{name}.py") for name in ("place_program", "plain_program", "cut_program", "held_trainer")
)
SCRIPTS = ("slurm.sbatch", "slurm_torchrun.sbatch")
AWKWARD = ["two words", "it's", '"quoted" $HOME *', ""]
START = 150.0  # seconds in which processes that import torch have started, also on a busy machine
TRAINING = (
    "--backend=gloo", "--dataset=digits", "--max_train_samples=256", "--max_eval_samples=64", "--batch_size=64",
    "--num_epochs=2", "--validate_every=2", "--threads=1", "--with_tensorboard=false", "--resume_from=auto",
)  # fmt: skip


@pytest.fixture(autouse=True)
def free_nodes(cluster: Cluster) -> None:
    """Each test finds both nodes up and free."""
    until("both nodes are idle", 60, cluster.idle)


def left(folder: Path, pattern: str) -> list[str]:
    """The names of the files that the processes have left."""
    return sorted(file.name for file in folder.glob(pattern))


@pytest.mark.parametrize("script", SCRIPTS)
def test_ranks_know_their_place_and_arguments_survive(cluster: Cluster, tmp_path: Path, script: str) -> None:
    # without scontrol the processes expand Slurm's list of hosts themselves
    program = (PLACE, "--backend=gloo", f"--out={tmp_path}/places-%j", "--path=/nowhere", "--", *AWKWARD)
    job = cluster.submit(tmp_path, script, *program)
    assert job.end(START) == ("COMPLETED", 0), job.text()
    ranks = json.loads((tmp_path / f"places-{job.number}").read_text())
    check_places(ranks)
    assert {rank["scontrol"] for rank in ranks} == {None}
    assert all(rank["words"] == AWKWARD for rank in ranks)


def test_horovod(cluster: Cluster, tmp_path: Path) -> None:
    if "horovod" not in idist.available_backends():
        pytest.skip("Horovod is not installed in this environment: make env BACKEND=horovod")
    job = cluster.submit(tmp_path, "slurm.sbatch", PLACE, "--backend=horovod", f"--out={tmp_path}/places")
    assert job.end(START) == ("COMPLETED", 0), job.text()
    ranks = json.loads((tmp_path / "places").read_text())
    check_places(ranks)
    assert {rank["backend"] for rank in ranks} == {"horovod"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_failing_rank_ends_the_job_and_is_shown_last(cluster: Cluster, tmp_path: Path, script: str) -> None:
    began = time.monotonic()
    job = cluster.submit(tmp_path, script, PLAIN, "fail")
    assert job.end(START) == ("FAILED", 7)
    assert time.monotonic() - began < 200, "the others sleep for 300 seconds"
    summary = job.text().split(".sbatch: the last lines of ")[1]
    assert "ArithmeticError: seven is too much" in summary
    assert summary.endswith(f"{script}: job {job.number} ends with exit code 7\n")
    assert cluster.processes(PLAIN) == []


def result(job: Job, output: Path) -> tuple[dict[str, object], dict[str, torch.Tensor]]:
    """result.json of a training that has finished, and the model in its last checkpoint."""
    assert job.end(START * 2) == ("COMPLETED", 0), job.text()
    files = [file for file in output.glob("*/result.json") if '"exit_reason": "finished"' in file.read_text()]
    assert len(files) == 1, job.text()
    facts = json.loads(files[0].read_text())
    checkpoint = torch.load(files[0].parent / facts["checkpoint"], weights_only=True)
    return facts, checkpoint["model"]


def test_time_limit_then_checkpoint_then_requeue_gives_the_uninterrupted_result(
    cluster: Cluster, tmp_path: Path
) -> None:
    whole = cluster.submit(
        tmp_path, "slurm.sbatch", "-m", "reference.cifar10", "run", "--output_path=whole", *TRAINING
    )
    limit = ("--time=1", "--signal=USR2@10")  # Slurm sends it between 20 and 50 seconds after the start
    cut = cluster.submit(tmp_path, "slurm_torchrun.sbatch", HELD, "cut", *TRAINING, options=limit)
    expected, model = result(whole, tmp_path / "whole")
    got, resumed_model = result(cut, tmp_path / "cut")

    assert int(cut.facts()["Restarts"]) >= 1
    assert "after iteration 5" in cut.text() and "Resumed from" in cut.text()
    for name in ("iteration", "epoch", "val_metrics", "n_evaluated", "world_size"):
        assert got[name] == expected[name], name
    assert expected["iteration"] == 8 and expected["n_evaluated"] == 64
    assert resumed_model.keys() == model.keys()
    for name, tensor in model.items():
        assert torch.equal(resumed_model[name], tensor), name


def test_signal_is_passed_on_and_the_job_requeued(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(tmp_path, "slurm.sbatch", PLAIN, "signalled", str(tmp_path))
    until("all four processes run", 30, lambda: len(left(tmp_path, "signalled-*")) == 4)
    cluster.run("login", "scancel", "--signal=USR2", str(job.number))
    assert job.end(90) == ("COMPLETED", 0), job.text()
    assert len(left(tmp_path, "signalled-*-again")) == 4
    assert "ends with exit code 140" in job.text()


@pytest.mark.parametrize("script", SCRIPTS)
def test_scancel_leaves_nothing(cluster: Cluster, tmp_path: Path, script: str) -> None:
    job = cluster.submit(tmp_path, script, PLAIN, "sleep", str(tmp_path))
    until("all four processes run", START, lambda: len(left(tmp_path, "sleep-*")) == 4)
    assert len(cluster.processes(PLAIN)) >= 4
    cluster.run("login", "scancel", str(job.number))
    assert job.end(60)[0] == "CANCELLED"
    until("the nodes are free", 60, cluster.idle)
    assert cluster.processes(PLAIN) == []


def test_cells_of_a_job_array_get_their_index(cluster: Cluster, tmp_path: Path) -> None:
    options = ("--array=3,5", "--nodes=1", "--ntasks-per-node=1")
    job = cluster.submit(tmp_path, "slurm.sbatch", PLAIN, "tell", str(tmp_path), "--seed=%a", options=options)
    until("both cells have ended", 60, lambda: len(left(tmp_path, "tell-*")) == 2 and cluster.idle())
    cells = [json.loads((tmp_path / name).read_text()) for name in left(tmp_path, "tell-*")]
    assert sorted(cell["SLURM_ARRAY_TASK_ID"] for cell in cells) == ["3", "5"]
    assert all(cell["words"] == [f"--seed={cell['SLURM_ARRAY_TASK_ID']}"] for cell in cells)
    assert job.facts()["JobState"] == "COMPLETED"


def test_every_task_sees_a_gpu_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(
        tmp_path, "slurm.sbatch", PLAIN, "tell", str(tmp_path), options=("--gpus-per-task=1",)
    )
    assert job.end(60) == ("COMPLETED", 0), job.text()
    tasks = [json.loads((tmp_path / name).read_text()) for name in left(tmp_path, "tell-*")]
    seen = {(task["SLURMD_NODENAME"], task["CUDA_VISIBLE_DEVICES"]) for task in tasks}
    assert seen == {("node1", "0"), ("node1", "1"), ("node2", "0"), ("node2", "1")}


def test_dry_run_inside_of_a_job_starts_nothing(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(tmp_path, "slurm.sbatch", PLAIN, "tell", str(tmp_path), DRY_RUN="1")
    assert job.end(60) == ("COMPLETED", 0)
    assert left(tmp_path, "tell-*") == []
    assert (
        f"srun --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --cpu-bind=none --label --kill-on-bad-exit=1 python {PLAIN} tell"
        in job.text()
    )


def test_script_submits_itself(cluster: Cluster, tmp_path: Path) -> None:
    script = str(ROOT / "launchers" / "slurm.sbatch")
    answer = cluster.run("login", script, PLAIN, "tell", str(tmp_path), folder=tmp_path, NP="1", NNODES="2")
    assert "Submitted batch job" in answer.stdout
    job = Job(cluster=cluster, number=int(answer.stdout.split()[-1]), output=tmp_path / "slurm.out")
    assert job.end(60) == ("COMPLETED", 0)
    hosts = [
        json.loads((tmp_path / name).read_text())["SLURMD_NODENAME"] for name in left(tmp_path, "tell-*")
    ]
    assert sorted(hosts) == ["node1", "node2"]


def test_time_out_ends_the_processes(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(tmp_path, "slurm.sbatch", PLAIN, "sleep", TIMEOUT="2")
    assert job.end(60) == ("FAILED", 124), job.text()
    assert cluster.processes(PLAIN) == []


def test_a_crashed_node_makes_the_job_start_again(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(tmp_path, "slurm.sbatch", PLAIN, "fragile", str(tmp_path))
    until("all four processes run", 30, lambda: len(left(tmp_path, "fragile-*")) == 4)
    cluster.do("crash", "node2")
    try:
        until("Slurm has noticed", 120, lambda: job.facts()["Restarts"] == "1")
    finally:
        cluster.do("boot", "node2")
    assert job.end(90) == ("COMPLETED", 0), job.text()
    assert len(left(tmp_path, "fragile-*-again")) == 4
    assert cluster.processes(PLAIN) == []


def test_a_cut_cable_ends_the_job_within_the_deadline(cluster: Cluster, tmp_path: Path) -> None:
    job = cluster.submit(tmp_path, "slurm.sbatch", CUT, str(tmp_path), options=("--no-requeue",))
    until("all four processes reduce", START, lambda: len(left(tmp_path, "began-*")) == 4)
    cluster.do("cut", "node2")
    try:
        # the ranks' deadline is 8 seconds, Slurm's 10
        until("both ranks of node1 have an error", 60, lambda: len(left(tmp_path, "error-node1-*")) == 2)
        state, code = job.end(90)
    finally:
        cluster.do("heal", "node2")
    assert (state, code) != ("COMPLETED", 0) and state in ("FAILED", "NODE_FAIL")
    for name in left(tmp_path, "error-node1-*"):
        assert (tmp_path / name).read_text().startswith("CollectiveError: gloo: all_reduce failed")
    until("nothing is left on the nodes", 60, lambda: cluster.processes(CUT) == [])
