"""The supervisor on real launchers: what it shows and records, and that it leaves no process whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from experiments.supervise import Job, supervise
from experiments.supervise.attempt import Attempt
from experiments.supervise.lines import Speaker, Transcript, parse
from experiments.supervise.rank import label

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("program.py")
LIMIT = 150  # seconds; a hang, not a slow machine


class Run:
    """A supervisor that runs in the background."""

    def __init__(
        self, folder: Path, what: str, *options: str, launcher: str = "torchrun", **variables: str
    ) -> None:
        self.folder, self.logs = folder, folder / "logs"
        command = [f"launchers/{launcher}.sh", str(PROGRAM), what, str(folder)]
        env = {**os.environ, "NP": "2", "PYTHONPATH": str(ROOT), **variables}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "experiments.supervise", f"--log-dir={self.logs}", *options, "--", *command],
            cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.output = ""

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.end()
            time.sleep(0.1)

    def wait_until_ready(self) -> None:
        self.wait_for(lambda: len(list(self.folder.glob("ready-*"))) == 2)

    def wait_for_end(self) -> None:
        """Without reading what it prints."""
        self.process.wait(timeout=LIMIT)

    def end(self) -> int:
        """Wait for its end; its exit code."""
        try:
            self.output = self.process.communicate(timeout=LIMIT)[0]
        finally:
            self.process.kill()
        return self.process.returncode

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.logs / "result.json").read_text())

    def left(self) -> list[int]:
        """Processes of the job that still run, after a moment for the kernel."""
        for _ in range(100):
            left = [pid for file in self.folder.glob("pid-*") if runs(pid := int(file.name[4:]))]
            if not left:
                break
            time.sleep(0.1)
        return left

    def file(self, rank: int) -> str:
        (file,) = self.logs.glob(f"*-rank-{rank}.log")
        return file.read_text()


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_job_that_finishes(launcher: str, tmp_path: Path) -> None:
    run = Run(tmp_path, "nothing", launcher=launcher)
    assert run.end() == 0, run.output
    for rank in (0, 1):
        assert run.file(rank).splitlines() == [f"rank {rank} begins", f"rank {rank} ends"]
        assert f":{rank}] rank {rank} ends\n" in run.output
    result = run.result
    assert (result["reason"], result["exit_code"], result["failed"], result["left_behind"]) == (
        "finished",
        0,
        None,
        [],
    )
    assert 0 < result["rendezvous_s"] <= result["first_step_s"] <= result["wall_s"]
    assert "#supervise" not in run.output
    assert not run.left()


@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_the_cause_is_shown_and_not_what_followed_from_it(launcher: str, tmp_path: Path) -> None:
    run = Run(tmp_path, "slow-to-fall", launcher=launcher)
    assert run.end() == 1, run.output
    assert run.result["failed"]["rank"] == 1 and "KeyError: 'the cause'" in run.result["reason"]
    *_, before, last = run.output.splitlines()
    assert "KeyError: 'the cause'" in last and (
        "KeyError" in before or last.endswith("KeyError: 'the cause'")
    )
    assert not run.left()


def test_ranks_that_do_not_come(tmp_path: Path) -> None:
    run = Run(tmp_path, "late", "--startup-timeout=15", "--grace=5")
    assert run.end() == 124, run.output
    assert run.result["reason"].startswith("the processes have not met after 15 s: ")
    assert run.result["rendezvous_s"] is None
    assert "in hold_on" in run.file(1)  # where it hung
    assert not run.left()


def test_silence(tmp_path: Path) -> None:
    run = Run(tmp_path, "silent", "--silence-timeout=10")
    assert run.end() == 124, run.output
    assert run.result["reason"] == "no line and no progress for 10 s (last: iteration 7 of 1,000)"
    assert all("in hold_on" in run.file(rank) for rank in (0, 1))
    assert not list(ROOT.glob("core*"))
    assert not run.left()


@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_a_signal_is_passed_on_once_and_the_job_may_end_by_itself(launcher: str, tmp_path: Path) -> None:
    run = Run(tmp_path, "wait", launcher=launcher)
    run.wait_until_ready()
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 128 + signal.SIGTERM, run.output
    assert run.result["reason"] == "stopped by SIGTERM"
    assert [(tmp_path / f"signals-{rank}").read_text() for rank in (0, 1)] == ["1", "1"]
    assert not run.left()


def test_the_time_limit_lets_a_job_end_by_itself(tmp_path: Path) -> None:
    run = Run(tmp_path, "wait", "--timeout=20")
    assert run.end() == 124, run.output
    assert run.result["reason"] == "not ready after 20 s (iteration 7 of 1,000)"
    assert [(tmp_path / f"signals-{rank}").read_text() for rank in (0, 1)] == ["1", "1"]


def test_a_job_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    run = Run(tmp_path, "deaf", "--grace=3")
    run.wait_until_ready()
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 128 + signal.SIGINT, run.output
    assert run.result["reason"] == "stopped by SIGINT"
    assert not run.left()


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    run = Run(tmp_path, "deaf", "--grace=10000")
    run.wait_until_ready()
    run.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == 128 + signal.SIGTERM, run.output
    assert not run.left()


@pytest.mark.parametrize(
    ("launcher", "victims"),
    [("torchrun", "supervisor"), ("torchrun", "guard"), ("torchrun", "both"), ("spawn", "both")],
)
def test_nothing_is_left_when_the_supervisor_is_killed(launcher: str, victims: str, tmp_path: Path) -> None:
    run = Run(tmp_path, "deaf", "--grace=3", launcher=launcher)
    run.wait_until_ready()
    (guard,) = psutil.Process(run.process.pid).children()
    below = guard.children(recursive=True)
    for process in {"supervisor": [run.process], "guard": [guard], "both": [run.process, guard]}[victims]:
        process.kill()
    run.end()
    _, alive = psutil.wait_procs([guard, *below], timeout=LIMIT)
    assert len(below) > 4 and not alive and not run.left()
    if victims != "both":
        expected = f"the {victims} was killed"
        assert (run.result["reason"], run.result["exit_code"]) == (expected, 137)


def test_a_reader_that_reads_no_more_does_not_stop_the_supervisor(tmp_path: Path) -> None:
    run = Run(tmp_path, "talk", "--timeout=40", "--grace=3")
    run.wait_until_ready()  # the pipe is full long before the time is over
    run.wait_for_end()
    assert run.result["reason"].startswith("not ready after 40 s")
    assert not run.left()
    run.end()


def test_a_reader_that_goes_away_ends_the_job(tmp_path: Path) -> None:
    run = Run(tmp_path, "talk", "--grace=3")
    run.wait_until_ready()
    assert run.process.stdout is not None
    run.process.stdout.close()
    run.wait_for_end()
    assert run.result["reason"] == "stopped by SIGHUP"
    assert not run.left()


def test_what_a_program_leaves_behind_is_killed_and_named(tmp_path: Path) -> None:
    run = Run(tmp_path, "orphan")
    assert run.end() == 0, run.output
    assert run.result["left_behind"] == ["sleep 1000"]
    assert not run.left()


def test_a_failed_job_starts_again(tmp_path: Path) -> None:
    run = Run(tmp_path, "once", "--restarts=2")
    assert run.end() == 0, run.output
    assert (run.result["restarts"], run.result["reason"]) == (1, "finished")
    assert "KeyError: 'only at the first start'" in run.output


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_full_disk_for_the_logs_does_not_end_the_job(tmp_path: Path) -> None:
    small = tmp_path / "logs"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", small], check=True)
    try:
        (small / "filler").write_bytes(b"x" * 4096)
        run = Run(tmp_path, "nothing")
        assert run.end() == 0, run.output
        assert ":1] rank 1 ends" in run.output
    finally:
        subprocess.run(["umount", small], check=True)


def test_a_launcher_that_is_not_there(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "experiments.supervise",
        f"--log-dir={tmp_path}",
        "--",
        "./no-such-launcher",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 127
    assert "the launcher did not start: ./no-such-launcher: No such file or directory" in done.stdout


@pytest.mark.parametrize(
    "options", [["--timeout=-1", "--", "x"], ["--time=3", "--", "x"], ["--restarts=no", "--", "x"], []]
)
def test_wrong_options(options: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments.supervise", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert done.returncode == 2 and "error: " in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("line", "speaker", "text"),
    [
        ("[node1:3] loss 0.5", Speaker("node1", 3), "loss 0.5"),
        ("[node1] begins", Speaker("node1", None), "begins"),
        ("[1]<stderr>:[node1:1] x", Speaker("node1", 1), "x"),  # horovodrun
        ("[1,0]<stdout>:[node1:0] x", Speaker("node1", 0), "x"),  # mpirun --tag-output
        ("12: [node4:12] x", Speaker("node4", 12), "x"),  # srun --label
        (
            "[vm:1] [rank1]: Traceback (most recent call last):",
            Speaker("vm", 1),
            "Traceback (most recent call last):",
        ),
        ("W1130 launcher's own", None, "W1130 launcher's own"),
        ("[node1:0] ", Speaker("node1", 0), ""),
    ],
)
def test_whose_line_it_is(line: str, speaker: Speaker | None, text: str) -> None:
    assert parse(line) == (speaker, text)


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"RANK": "3"}, ":3"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, ":0"),
        ({"HOROVOD_RANK": "1", "SLURM_PROCID": "0"}, ":1"),
        ({"SLURM_PROCID": "5"}, ":5"),
        ({}, ""),
    ],
)
def test_the_label_of_a_rank(variables: dict[str, str], rank: str) -> None:
    host = os.uname().nodename.split(".")[0]
    assert label(variables) == host + rank


def test_the_first_failure_is_the_first_that_is_no_consequence(tmp_path: Path) -> None:
    attempt, transcript = Attempt(), Transcript(tmp_path)
    said = {0: "RuntimeError: Connection closed by peer", 1: "ValueError: bad", 2: "KeyError: worse"}
    for when, rank in enumerate((0, 2, 1)):
        speaker = Speaker("h", rank)
        for text in ("Traceback (most recent call last):", said[rank]):
            transcript.add(speaker, text)
        attempt.event(speaker, {"event": "exit", "returncode": 1, "time": float(when)})
    words = {Speaker("h", rank): transcript.end(Speaker("h", rank)) for rank in said}
    first = attempt.first_failure(words)
    assert first is not None and first.speaker.rank == 2


def test_what_the_launcher_ends_with_sigterm_is_not_the_first_failure() -> None:
    attempt = Attempt()
    attempt.event(Speaker("h", 0), {"event": "exit", "returncode": -signal.SIGTERM, "time": 1.0})
    attempt.event(Speaker("h", 1), {"event": "exit", "returncode": -signal.SIGKILL, "time": 2.0})
    first = attempt.first_failure({})
    assert first is not None and (first.speaker.rank, first.code) == (1, 137)


def test_a_chain_of_exceptions_is_shown_whole(tmp_path: Path) -> None:
    chain = [
        "Traceback (most recent call last):", "KeyError: 1", "",
        "During handling of the above exception, another exception occurred:", "", "Traceback (most recent call last):", "ValueError: 2",
    ]  # fmt: skip
    transcript = Transcript(tmp_path)
    for text in ["before", *chain]:
        transcript.add(None, text)
    assert transcript.end(None) == chain


def test_a_clock_that_is_set_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, begin = time.time, time.monotonic()
    monkeypatch.setattr(time, "time", lambda: real() + 7200 * (time.monotonic() > begin + 0.5))
    job = Job(
        command=(sys.executable, "-c", "import time; time.sleep(1.5)"), log_dir=tmp_path, timeout=600,
        startup_timeout=600, silence_timeout=600,
    )  # fmt: skip
    result = supervise(job)
    assert result["reason"] == "finished" and 1.5 <= result["wall_s"] < 600


def test_times_are_those_of_the_supervisor_whatever_the_clocks_of_hosts_say() -> None:
    attempt, begin = Attempt(), time.monotonic()
    for rank, clock in ((0, 10.0), (1, time.time() + 7200)):
        speaker = Speaker(f"host{rank}", rank)
        attempt.event(speaker, {"event": "rendezvous", "rank": rank, "world_size": 2, "time": clock})
        attempt.event(speaker, {"event": "first_step", "rank": rank, "time": clock})
    assert attempt.rendezvous is not None and attempt.first_step is not None
    assert begin <= attempt.first_step <= attempt.rendezvous <= time.monotonic()
