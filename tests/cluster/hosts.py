"""The hosts and jobs of a throw-away cluster (cluster.sh), as the tests see them."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("cluster.sh")
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")


def until(what: str, seconds: float, condition: Callable[[], object], every: float = 0.3) -> None:
    """Wait until the condition holds; fail when it does not within that time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:g} seconds: {what}")
        time.sleep(every)


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job that was submitted."""

    cluster: Cluster
    number: int  # job id
    output: Path

    def facts(self) -> dict[str, str]:
        """What `scontrol show job` says, by name."""
        text = self.cluster.run("login", "scontrol", "--oneliner", "show", "job", str(self.number)).stdout
        return dict(re.findall(r"(\w+)=(\S*)", text))

    def text(self) -> str:
        """What the job has printed."""
        return self.output.read_text() if self.output.exists() else ""

    def end(self, seconds: float) -> tuple[str, int]:
        """Wait for its end: the job's state and exit code."""
        deadline = time.monotonic() + seconds
        while (facts := self.facts())["JobState"] not in ENDED:
            if time.monotonic() > deadline:
                pytest.fail(
                    f"job {self.number} is {facts['JobState']} after {seconds:g} seconds:\n{self.text()}"
                )
            time.sleep(0.3)
        return facts["JobState"], int(facts["ExitCode"].split(":")[0])


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The hosts login, node1 and node2. They share the machine's file system."""

    root: Path
    environment: Mapping[str, str]

    def do(self, *arguments: str) -> None:
        """Call cluster.sh: cut, heal, crash or boot a host."""
        subprocess.run([SCRIPT, *arguments], env=self.environment, check=True, timeout=60)

    def start(
        self, host: str, *command: str, folder: Path | None = None, **variables: str
    ) -> subprocess.Popen[str]:
        """Start a command on a host; its output and errors come as one text."""
        return subprocess.Popen(
            [SCRIPT, "exec", host, *command],
            env={**self.environment, **variables},
            cwd=folder or self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(
        self, host: str, *command: str, folder: Path | None = None, seconds: float = 30, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end."""
        process = self.start(host, *command, folder=folder, **variables)
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            pytest.fail(f"{' '.join(command)} on {host} did not end within {seconds:g} seconds")
        return subprocess.CompletedProcess(command, process.returncode, output)

    def submit(
        self, folder: Path, script: str, *words: str, options: tuple[str, ...] = (), **variables: str
    ) -> Job:
        """Submit one of the launchers with sbatch, one CPU for a task; `words` are the program and its arguments."""
        options = ("--cpus-per-task=1", f"--output={folder}/%j.out", *options)
        answer = self.run(
            "login", "sbatch", "--parsable", *options, str(ROOT / "launchers" / script), *words,
            folder=folder, **variables,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stdout
        number = int(answer.stdout)
        return Job(cluster=self, number=number, output=folder / f"{number}.out")

    def processes(self, marker: str) -> list[str]:
        """The command lines with `marker` in them that run on the nodes."""
        return [
            line
            for host in ("node1", "node2")
            for line in self.run(host, "pgrep", "-af", re.escape(marker)).stdout.splitlines()
            if "pgrep" not in line
        ]

    def up(self) -> bool:
        """Whether both nodes are up, free or not."""
        answer = self.run("login", "sinfo", "--noheader", "--Node", "--format=%T").stdout.split()
        return len(answer) == 2 and set(answer) <= {"idle", "mixed", "allocated"}


def check_places(ranks: Sequence[Mapping[str, object]]) -> None:
    """What place_program.py found out must be: two processes on each of two hosts, which can talk to each other."""
    standing = [(rank["host"], rank["node_rank"], rank["local_rank"]) for rank in ranks]
    assert standing == [("node1", 0, 0), ("node1", 0, 1), ("node2", 1, 0), ("node2", 1, 1)]
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    assert {(rank["nproc_per_node"], rank["nnodes"], rank["world_size"]) for rank in ranks} == {(2, 2, 4)}
    assert all(rank["sum"] == [15.0] for rank in ranks)  # 1 + 2 + 4 + 8
