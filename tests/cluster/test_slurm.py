"""Both batch scripts on a real Slurm cluster of two hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    "--num_epochs=2", "--validate_every=2", "--learning_rate=0.01", "--threads=1", "--with_tensorboard=false", "--resume_from=auto",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def interrupted(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Job | None:
    """A training with a time limit, if its test was asked for. It starts here, since it waits for its signal a while."""
    if not any(item.name.startswith("test_time_limit") for item in request.session.items):
        return None
    # Slurm sends the signal 60 to 120 seconds before the end. A start that takes longer is killed by it, and repeated.
    limit = ("--time=3", "--signal=USR2@60")
    return cluster.submit(
        tmp_path_factory.mktemp("interrupted"), "slurm.sbatch", HELD, "out", *TRAINING, options=limit
    )


@pytest.fixture(autouse=True)
def nodes_up(cluster: Cluster) -> None:
    """Each test finds both nodes up."""
    until("both nodes are up", 60, cluster.up)


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
    job = cluster.submit(tmp_path, script, PLAIN, "fail")
    assert job.end(START) == ("FAILED", 7), "the others would sleep for longer"
    summary = job.text().split(".sbatch: the last lines of ")[1]
    assert "ArithmeticError: seven is too much" in summary
    assert summary.endswith(f"{script}: job {job.number} ends with exit code 7\n")
    assert cluster.processes(PLAIN) == []


def records(job: Job) -> dict[str, tuple[Path, dict[str, Any]]]:
    """The run directories of a training and their result.json, by the reason of their end."""
    assert job.end(START * 3) == ("COMPLETED", 0), job.text()
    files = list(job.output.parent.glob("out/*/result.json"))
    return {
        facts["exit_reason"]: (file.parent, facts)
        for file in files
        for facts in [json.loads(file.read_text())]
    }


def model(folder: Path, facts: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The model in the last checkpoint of a run."""
    state: dict[str, torch.Tensor] = torch.load(folder / facts["checkpoint"], weights_only=True)["model"]
    return state


@pytest.mark.timeout(700)
def test_time_limit_then_checkpoint_then_requeue_gives_the_uninterrupted_result(
    cluster: Cluster, tmp_path: Path, interrupted: Job
) -> None:
    trainer = ("-m", "reference.cifar10", "run", "--output_path=out", *TRAINING)
    whole = cluster.submit(tmp_path, "slurm_torchrun.sbatch", *trainer)
    expected = records(whole)["finished"]
    runs = records(interrupted)
    got, stopped = runs["finished"], runs["stopped by SIGUSR2"]

    assert int(interrupted.facts()["Restarts"]) >= 1
    assert stopped[1]["iteration"] in range(1, 6)
    assert expected[1]["iteration"] == 8 and expected[1]["n_evaluated"] == 64
    for name in ("iteration", "epoch", "val_metrics", "n_evaluated", "world_size"):
        assert got[1][name] == expected[1][name], name
    resumed, uninterrupted = model(*got), model(*expected)
    assert resumed.keys() == uninterrupted.keys()
    for name, tensor in uninterrupted.items():
        assert torch.equal(resumed[name], tensor), name


@pytest.mark.parametrize("script", SCRIPTS)
def test_signal_reaches_the_processes_and_the_job_is_requeued(
    cluster: Cluster, tmp_path: Path, script: str
) -> None:
    job = cluster.submit(tmp_path, script, PLAIN, "signalled", str(tmp_path))
    until("all four processes run", START, lambda: len(left(tmp_path, "signalled-*")) == 4)
    cluster.run("login", "scancel", "--signal=USR2", str(job.number))
    assert job.end(START) == ("COMPLETED", 0), job.text()
    assert len(left(tmp_path, "signalled-*-again")) == 4
    assert "ends with exit code 140" in job.text()


@pytest.mark.parametrize("script", SCRIPTS)
def test_scancel_leaves_nothing(cluster: Cluster, tmp_path: Path, script: str) -> None:
    job = cluster.submit(tmp_path, script, PLAIN, "sleep", str(tmp_path))
    until("all four processes run", START, lambda: len(left(tmp_path, "sleep-*")) == 4)
    assert len(cluster.processes(PLAIN)) >= 4
    cluster.run("login", "scancel", str(job.number))
    assert job.end(60)[0] == "CANCELLED"
    until("nothing is left on the nodes", 30, lambda: cluster.processes(PLAIN) == [])


def test_cells_of_a_job_array_get_their_index(cluster: Cluster, tmp_path: Path) -> None:
    options = ("--array=3,5", "--nodes=1", "--ntasks-per-node=1")
    job = cluster.submit(tmp_path, "slurm.sbatch", PLAIN, "tell", str(tmp_path), "--seed=%a", options=options)
    until("both cells have run", 60, lambda: len(left(tmp_path, "tell-*")) == 2)
    cells = [json.loads((tmp_path / name).read_text()) for name in left(tmp_path, "tell-*")]
    assert sorted(cell["SLURM_ARRAY_TASK_ID"] for cell in cells) == ["3", "5"]
    assert all(cell["words"] == [f"--seed={cell['SLURM_ARRAY_TASK_ID']}"] for cell in cells)
    assert job.end(30) == ("COMPLETED", 0)


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
