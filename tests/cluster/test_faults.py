"""Faults of hosts and networks, and faults under Slurm: the job ends, says why, and leaves no process.

One process on each of two hosts. All launchers with FAULTS=all in the environment (`make faults`), else a choice; what Slurm
itself does is in test_slurm.py as well.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

import reference.idist as idist
from tests.cluster.hosts import ROOT, Cluster, Job, until
from tests.faults.records import Record
from tests.faults.running import ENDLESS, OPTIONS, SUPERVISED, TRAINER, backend, begun, without_paths

pytestmark = pytest.mark.timeout(900)
ON_EACH_HOST = ("spawn", "torchrun", "torch_distributed_launch")
SLURM = ("slurm", "slurm_torchrun")
EVERYTHING = os.environ.get("FAULTS") == "all"
LIMIT = 300.0
PORTS = iter(range(23000, 24000))


def launchers(*chosen: str, possible: tuple[str, ...]) -> pytest.MarkDecorator:
    names = possible if EVERYTHING else chosen
    return pytest.mark.parametrize("launcher", names)


class Training(Protocol):
    """A training on node1 and node2 in the background."""

    output: Path

    def ended(self) -> bool: ...

    def end(self) -> tuple[str, int, str]:
        """How it ended, its exit code, and what it printed."""

    def stop(self) -> None: ...


class Supervised:
    """Under one supervisor, or one on each host, according to the launcher."""

    def __init__(self, cluster: Cluster, folder: Path, launcher: str, *options: str) -> None:
        self.output, self._folder, self._cluster = folder / "out", folder, cluster
        command = [
            str(ROOT / "launchers" / f"{launcher}.sh"), TRAINER, "run", *OPTIONS, f"--backend={backend(launcher)}",
            f"--output_path={self.output}", *options,
        ]  # fmt: skip
        variables = {"NP": "1", "MASTER_PORT": str(next(PORTS)), "OMP_NUM_THREADS": "1"}
        if launcher in ON_EACH_HOST:
            places = [{"NNODES": "2", "MASTER_ADDR": "node1", "NODE_RANK": str(node)} for node in (0, 1)]
        else:
            places = [{"HOSTS": "node1:1,node2:1"}]
        self._processes = [
            cluster.start(
                f"node{number}", "python", "-m", "experiments.supervise", f"--log-dir={folder}/logs-{number}", *SUPERVISED,
                "--", *command, folder=ROOT, **variables, **place,
            )
            for number, place in enumerate(places, start=1)
        ]  # fmt: skip

    def ended(self) -> bool:
        return self._processes[0].poll() is not None

    def end(self) -> tuple[str, int, str]:
        printed = self._processes[0].communicate(timeout=LIMIT)[0]
        result = json.loads((self._folder / "logs-1" / "result.json").read_text())
        for process in self._processes[1:]:
            process.communicate(timeout=LIMIT)
        return result["reason"], result["exit_code"], printed

    def stop(self) -> None:
        """To the supervisors themselves: what `cluster.start` has started stands outside of the hosts."""
        for number, process in enumerate(self._processes, start=1):
            if process.poll() is None:
                supervisor = f"experiments.supervise --log-dir={self._folder}/logs-{number} "
                self._cluster.run(f"node{number}", "pkill", "-TERM", "-f", supervisor)


class Submitted:
    """A Slurm job."""

    def __init__(
        self, cluster: Cluster, folder: Path, launcher: str, *options: str, **variables: str
    ) -> None:
        self.output = folder / "out"
        if not any(option.startswith("--backend=") for option in options):
            options = (*options, "--backend=gloo")
        self.job: Job = cluster.submit(
            ROOT, f"{launcher}.sbatch", TRAINER, "run", *OPTIONS, f"--output_path={self.output}", *options,
            options=("--no-requeue", "--ntasks-per-node=1", f"--output={folder}/job.out"),
            LOG_DIR=str(folder / "logs"), **variables,
        )  # fmt: skip
        self._out = folder / "job.out"
        self._cluster = cluster

    def ended(self) -> bool:
        return self.job.facts()["JobState"] not in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")

    def end(self) -> tuple[str, int, str]:
        state, code = self.job.end(LIMIT)
        printed = self._out.read_text() if self._out.exists() else ""
        told = re.findall(r"sbatch: (?:the last lines of (.*?), w|(.*: tasks? \d.*))", printed)
        summary = printed.rpartition("sbatch: the last lines of ")[2]
        causes = re.findall(r"^ *\d+: +(?:\[rank\d+\]: )?((?:[\w.]+Error|error): .*)", summary, re.MULTILINE)
        words = [state, *(first or second for first, second in told[-1:]), *causes[-1:]]
        return ": ".join(words), code, printed

    def stop(self) -> None:
        self._cluster.run("login", "scancel", str(self.job.number))


def start(cluster: Cluster, folder: Path, launcher: str, *options: str, **variables: str) -> Training:
    if launcher == "horovodrun" and "horovod" not in idist.available_backends():
        pytest.skip("Horovod is not installed in this environment: make env BACKEND=horovod")
    until("both nodes are up", 120, cluster.up)
    if launcher in SLURM:
        return Submitted(cluster, folder, launcher, *options, **variables)
    return Supervised(cluster, folder, launcher, *options)


@contextmanager
def training(
    cluster: Cluster, folder: Path, launcher: str, *options: str, **variables: str
) -> Iterator[Training]:
    running = start(cluster, folder, launcher, *options, **variables)
    try:
        yield running
    finally:
        running.stop()


def wait_for_steps(running: Training) -> None:
    def condition() -> bool:
        assert not running.ended(), running.end()
        return begun(running.output)

    until("the training makes steps", LIMIT, condition)


def record(
    cluster: Cluster, running: Training, fault: str, launcher: str, since: float
) -> tuple[Record, str]:
    """Wait for the end, and take it down."""
    reason, code, printed = running.end()
    seconds = time.monotonic() - since
    marker = str(running.output)
    left: list[str] = []
    for _ in range(100):
        if not (left := cluster.processes(marker)):
            break
        time.sleep(0.2)
    found = Record(
        fault=fault, launcher=launcher, ended=without_paths(reason, running.output.parent), exit_code=code,
        seconds=seconds, left=left,
    )  # fmt: skip
    found.save()
    return found, printed


ANY = (*ON_EACH_HOST, "horovodrun", "mpirun", *SLURM)


@launchers("mpirun", possible=ANY)
def test_a_long_cut(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    with training(cluster, tmp_path, launcher, *ENDLESS) as running:
        wait_for_steps(running)
        since = time.monotonic()
        cluster.do("cut", "node2")
        try:
            until("it ends", LIMIT, running.ended)
        finally:
            cluster.do("heal", "node2")
        found, printed = record(cluster, running, "long cut", launcher, since)
    # the ranks give up by themselves; Slurm has no exit code for a job whose node has gone
    assert found.exit_code == (0 if launcher in SLURM else 1), printed
    assert found.ended != "finished" and not found.left, printed


@launchers("torchrun", possible=ANY)
def test_a_host_dies(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    with training(cluster, tmp_path, launcher, *ENDLESS) as running:
        wait_for_steps(running)
        since = time.monotonic()
        cluster.do("crash", "node2")
        try:
            until("it ends", LIMIT, running.ended)
        finally:
            cluster.do("boot", "node2")
        found, printed = record(cluster, running, "crash", launcher, since)
    assert found.ended != "finished" and not found.left, printed


@launchers("torchrun", possible=ANY)
def test_a_short_cut_is_survived(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    def steps() -> int:
        return sum(len(file.read_text().splitlines()) for file in running.output.glob("*/events.jsonl"))

    with training(cluster, tmp_path, launcher, *ENDLESS) as running:
        wait_for_steps(running)
        since = time.monotonic()
        cluster.do("cut", "node2")
        time.sleep(4)
        cluster.do("heal", "node2")
        before = steps()
        until("it trains on", LIMIT, lambda: steps() > before + 5 or running.ended())
        seconds = time.monotonic() - since
        went_on = not running.ended()
        running.stop()
        reason, code, printed = running.end()
    left = cluster.processes(str(running.output))
    ended = "trains on" if went_on else without_paths(reason, tmp_path)
    found = Record(
        fault="short cut",
        launcher=launcher,
        ended=ended,
        exit_code=0 if went_on else code,
        seconds=seconds,
        left=left,
    )
    found.save()
    assert went_on and not left, printed


@launchers("torchrun", possible=ANY)
def test_an_own_name_that_leads_to_loopback(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    hosts = tmp_path / "hosts"
    mine = cluster.run("node1", "cat", "/etc/hosts").stdout
    hosts.write_text(
        "127.0.1.1 node1\n" + "".join(line for line in mine.splitlines(keepends=True) if "node1" not in line)
    )
    cluster.run("node1", "mount", "--bind", str(hosts), "/etc/hosts")
    try:
        since = time.monotonic()
        with training(cluster, tmp_path, launcher, "--num_epochs=2") as running:
            found, printed = record(cluster, running, "loopback name", launcher, since)
    finally:
        cluster.run("node1", "umount", "/etc/hosts")
    assert not found.left, printed
    if found.exit_code != 0:
        assert re.search(r"127\.0\.1\.1|loopback|rendezvous|not met|[Cc]onnect", printed), printed


# -- faults of a rank, under Slurm: without the supervisor, whose tests have them on one host ---------------------------


def under_slurm() -> pytest.MarkDecorator:
    return launchers(possible=SLURM)


@under_slurm()
def test_a_rank_raises(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    since = time.monotonic()
    with training(cluster, tmp_path, launcher, *ENDLESS, FAULT="raise") as running:
        found, printed = record(cluster, running, "raise", launcher, since)
    assert found.exit_code == 1 and "KeyError: 'planted on rank 1'" in printed and not found.left


@under_slurm()
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_a_rank_gets_a_signal(
    cluster: Cluster, tmp_path: Path, launcher: str, number: signal.Signals
) -> None:
    with training(cluster, tmp_path, launcher, *ENDLESS) as running:
        wait_for_steps(running)
        youngest = cluster.run("node2", "pgrep", "--newest", "-f", TRAINER).stdout.split()[0]
        since = time.monotonic()
        cluster.run("node2", "kill", f"-{int(number)}", youngest)
        found, printed = record(cluster, running, number.name, launcher, since)
    assert found.exit_code != 0 and not found.left, printed


@under_slurm()
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
def test_the_job_gets_a_signal(
    cluster: Cluster, tmp_path: Path, launcher: str, number: signal.Signals
) -> None:
    with training(cluster, tmp_path, launcher, *ENDLESS) as running:
        wait_for_steps(running)
        assert isinstance(running, Submitted)
        since = time.monotonic()
        option = [] if number == signal.SIGTERM else ["--signal=USR1"]
        cluster.run("login", "scancel", *option, str(running.job.number))
        found, printed = record(cluster, running, number.name, launcher, since)
    assert found.ended != "COMPLETED" and not found.left, printed


@under_slurm()
def test_a_full_disk(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    disk = tmp_path / "out"
    disk.mkdir()
    cluster.run("node1", "mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk))
    since = time.monotonic()
    try:
        with training(cluster, tmp_path, launcher, *ENDLESS) as running:
            found, printed = record(cluster, running, "full disk", launcher, since)
    finally:
        cluster.run("node1", "umount", str(disk))
    assert found.exit_code == 1 and "No space left on device" in printed and not found.left


@under_slurm()
def test_little_shared_memory(cluster: Cluster, tmp_path: Path, launcher: str) -> None:
    for node in ("node1", "node2"):
        cluster.run(node, "mount", "-o", "remount,size=64m", "/dev/shm")
    since = time.monotonic()
    with training(cluster, tmp_path, launcher, "--num_epochs=2", "--num_workers=1") as running:
        found, printed = record(cluster, running, "small shm", launcher, since)
    assert (found.exit_code, found.ended, found.left) == (0, "COMPLETED", []), printed


@under_slurm()
@pytest.mark.parametrize(
    ("fault", "options", "told"),
    [
        ("missing backend", ("--backend=nccl",), "backend='nccl' can't be used here"),
        ("missing data", ("--dataset=images", "--data_path=/nowhere"), "/nowhere"),
    ],
)
def test_what_is_not_there(
    cluster: Cluster, tmp_path: Path, launcher: str, fault: str, options: tuple[str, ...], told: str
) -> None:
    since = time.monotonic()
    with training(cluster, tmp_path, launcher, *ENDLESS, *options) as running:
        found, printed = record(cluster, running, fault, launcher, since)
    assert found.exit_code == 2 and told in printed and not found.left, printed
