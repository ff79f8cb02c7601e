"""The doctor on this machine, as a command: what it tells must be what other programs tell."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.doctor.running import DEADLINE, MARK, NO_XLA, PYTHON, ROOT, call, doctor, environment, left


def said(*command: str) -> str:
    """What another program says."""
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--jsno",), "error: unknown option --jsno; did you mean --json?"),
        (("--no_alreduce",), "error: unknown option --no_alreduce; did you mean --no-allreduce?"),
        (("all",), "error: 'all' is not an option: write --name=value"),
        (("--timeout=0",), "error: argument --timeout: '0': give seconds above 0"),
        (("--timeout=soon",), "error: argument --timeout: 'soon': give seconds above 0"),
        (("--json", "--issue"), "error: --json and --issue: give one of them"),
    ],
)
def test_a_wrong_command_is_one_line_and_code_2(arguments: tuple[str, ...], line: str) -> None:
    answer = doctor(*arguments)
    assert (answer.code, answer.out, answer.err) == (2, "", f"{line}\n")


def test_the_json_agrees_with_other_programs() -> None:
    answer = doctor("--json", "--no-allreduce", NO_XLA)
    report = answer.json
    assert answer.code == (1 if report["worst"] == "problem" else 0)
    assert report["schema"] == 1 and report["world"] is None and report["tables"] == []
    assert all(
        set(found) == {"section", "name", "value", "text", "level", "shared", "odd"}
        for found in report["findings"]
    )
    assert all("\n" not in found["text"] for found in report["findings"])
    keys = [(found["section"], found["name"]) for found in report["findings"]]
    assert len(keys) == len(set(keys))

    assert answer.finding("host")["value"] == said("uname", "-n")
    assert answer.finding("cores")["text"].startswith(f"{said('env', '-u', 'OMP_NUM_THREADS', 'nproc')} of ")
    assert answer.finding("ulimit -n")["value"] == int(said("bash", "-c", "ulimit -Sn"))
    shm = int(said("df", "-B1", "--output=size", "/dev/shm").split()[-1])
    assert answer.finding("/dev/shm")["text"].startswith(
        f"{shm / 2**20:.3g} MiB" if shm < 2**30 else f"{shm / 2**30:.1f} GiB"
    )
    addresses = dict.fromkeys(
        line.split()[0] for line in said("getent", "ahosts", socket.gethostname()).splitlines()
    )
    assert answer.finding("own name")["value"] == {"name": socket.gethostname(), "addresses": list(addresses)}
    interface = answer.finding("interface")["value"]
    assert interface is None or Path("/sys/class/net", interface).exists()

    torch, numpy = (importlib.metadata.version(name) for name in ("torch", "numpy"))
    assert answer.finding("torch")["value"] == torch and answer.finding("numpy")["value"] == numpy
    assert answer.finding("backend gloo")["value"] is True
    assert answer.finding("backend horovod")["value"] is (importlib.util.find_spec("horovod") is not None)
    assert answer.finding("backend nccl")["value"] is Path("/dev/nvidiactl").exists()


def test_the_text_has_a_table_of_two_processes() -> None:
    answer = doctor("--backend=gloo", NO_XLA)
    lines = answer.out.splitlines()
    assert lines[0] == "What one process finds here" and "\x1b" not in answer.out
    headings = [line.partition(":")[0] for line in lines if line and line[0].islower()]
    assert headings == ["machine", "launcher and settings", "network", "software", "programs", "all-reduce"]
    start = next(number for number, line in enumerate(lines) if line.startswith("all-reduce"))
    assert lines[start + 1].split() == ["gloo,", "2", "processes"]
    rows = [line.split() for line in lines[start + 2 : start + 9]]
    assert [" ".join(row[:2]) for row in rows] == [
        "8 B",
        "128 B",
        "2 KiB",
        "32 KiB",
        "512 KiB",
        "8 MiB",
        "64 MiB",
    ]
    assert all(row[3] in ("µs", "ms", "s") and row[5] in ("kB/s", "MB/s", "GB/s") for row in rows)


def test_every_backend_that_is_ready_is_measured() -> None:
    answer = doctor("--json", NO_XLA)
    ready = [name for name in ("gloo", "nccl", "horovod") if answer.finding(f"backend {name}")["value"]]
    tables = answer.json["tables"]
    assert [table["backend"] for table in tables] == ready
    for table in tables:
        assert table["failed"] is None
        n = table["world_size"]
        assert n == 2 or table["backend"] == "nccl"
        assert [row["bytes"] for row in table["rows"]][::6] == [8, 64 * 2**20]
        for row in table["rows"]:
            assert row["rounds"] >= 3
            expected = row["bytes"] / row["seconds"] * 2 * (n - 1) / n
            assert row["bus_bandwidth"] == pytest.approx(expected)


def test_xla_is_measured_in_its_own_environment() -> None:
    python = Path(os.environ.get("VENV_HOME", ROOT), ".venv-xla", "bin", "python")
    if not python.is_file():
        pytest.skip("there is no XLA environment: make env BACKEND=xla-tpu")
    answer = doctor("--json", "--backend=xla-tpu", f"--xla-python={python}", PJRT_DEVICE="CPU")
    (table,) = answer.json["tables"]
    assert (table["backend"], table["failed"], table["world_size"]) == ("xla-tpu", None, 2)
    assert len(table["rows"]) == 7 and "simulation" in table["remark"]
    version = said(str(python), "-c", "from importlib.metadata import version; print(version('torch_xla'))")
    assert f"torch_xla {version} " in answer.finding("backend xla-tpu")["text"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo first; echo 'no torch' >&2; exit 3", "exit code 3: no torch"),
        ("kill -SEGV $$", "killed by SIGSEGV"),
    ],
)
def test_an_xla_environment_that_is_broken_is_a_note(tmp_path: Path, script: str, reason: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nulimit -c 0\n{script}\n")
    python.chmod(0o755)
    found = doctor("--json", "--no-allreduce", f"--xla-python={python}").finding("backend xla-tpu")
    assert (found["level"], found["value"]) == ("note", False)
    assert f"({reason}): make env BACKEND=xla-tpu" in found["text"]


def test_a_block_for_an_issue() -> None:
    lines = doctor("--issue", "--no-allreduce", NO_XLA).out.splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("```text", "What one process finds here", "```")
    assert lines.count("```") == 1


def test_a_contradiction_is_a_problem_and_starts_nothing() -> None:
    answer = doctor("--json", NO_XLA, RANK="3", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    found = answer.finding("layout")
    assert answer.code == 1 and found["level"] == "problem"
    assert found["text"].startswith("contradiction: RANK=3 must be less than WORLD_SIZE=2; ")
    assert answer.json["tables"] == []


def test_a_launcher_that_is_not_read() -> None:
    found = doctor("--json", "--no-allreduce", NO_XLA, PMI_RANK="1").finding("layout")
    assert found["level"] == "note" and "every process would train alone" in found["text"]


def test_a_busy_port() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", 29500))
            other.listen()
        except OSError:
            pass  # somebody else's, and busy all the same
        found = doctor("--json", "--no-allreduce", NO_XLA).finding("port 29500")
    assert (found["value"], found["level"]) == ("busy", "note")
    port = int(found["text"].rpartition("=")[2])
    assert 1024 <= port <= 65535 and port != 29500


def test_the_port_of_a_world_by_hand_is_busy() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        world = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        answer = doctor("--json", "--no-allreduce", NO_XLA, **world)
    assert answer.code == 1 and answer.finding(f"port {port}")["level"] == "problem"


def test_a_backend_that_cannot_start_has_its_reason() -> None:
    answer = doctor("--json", "--backend=gloo", NO_XLA, GLOO_SOCKET_IFNAME="nosuch0")
    assert answer.code == 1
    assert "no interface nosuch0 is up: use one of " in answer.finding("GLOO_SOCKET_IFNAME")["text"]
    (table,) = answer.json["tables"]
    assert table["rows"] == [] and "nosuch0" in table["failed"]
    assert answer.finding("gloo")["level"] == "problem"


def test_a_backend_that_is_not_here_but_asked_for() -> None:
    if importlib.util.find_spec("torch_xla") is not None:
        pytest.skip("torch_xla is here")
    answer = doctor("--json", "--backend=xla-tpu", NO_XLA)
    assert answer.code == 1 and "make env BACKEND=xla-tpu" in answer.finding("xla-tpu")["text"]


def test_a_backend_that_hangs_ends_at_its_deadline() -> None:
    answer = doctor("--json", "--backend=gloo", "--timeout=0.5", NO_XLA)
    (table,) = answer.json["tables"]
    assert answer.code == 1 and table["failed"].startswith("no end within 0.5 s")


def test_sigterm_ends_the_processes_under_way() -> None:
    environ = environment()
    process = subprocess.Popen(
        [*PYTHON, "--backend=gloo", NO_XLA], env=environ, cwd=ROOT, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + DEADLINE
        while not any("reference.doctor.probe" in line for line in left(environ[MARK])):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.terminate()
        assert process.wait(DEADLINE) == 128 + signal.SIGTERM
        while left(environ[MARK]):
            assert time.monotonic() < deadline, left(environ[MARK])
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()


def test_a_nameless_user_and_nothing_writable() -> None:
    """As in a container with --read-only and --user."""
    nobody = [
        "unshare",
        "--mount",
        "bash",
        "-c",
        'mount -o remount,ro,bind / && exec unshare --user --map-user=12345 "$@"',
        "-",
    ]
    attempt = subprocess.run([*nobody, "true"], capture_output=True, text=True, timeout=30)
    outside = {part.mountpoint for part in psutil.disk_partitions(all=True)} & {"/tmp", "/var/tmp"}
    if attempt.returncode or outside:
        pytest.skip(f"can't be made here: {attempt.stderr.strip() or outside}")
    environ = environment(HOME="/nonexistent", TMPDIR="")
    for name in ("USER", "LOGNAME", "USERNAME", "LNAME"):
        environ.pop(name, None)
    answer = call([*nobody, *PYTHON, "--json", "--backend=gloo", NO_XLA], environ)
    assert answer.finding("user")["level"] == "note" and answer.finding("user")["value"] == 12345
    assert answer.finding("temporary files")["level"] == "problem"
    assert answer.json["tables"][0]["failed"] is None, answer.err


def test_without_torch_it_says_so() -> None:
    answer = call([sys.executable, "-S", "-m", "reference.doctor"], environment(PYTHONPATH=""))
    assert answer.code == 1
    assert (
        answer.err
        == "problem: torch does not load here (No module named 'torch'): make env, then make doctor\n"
    )
