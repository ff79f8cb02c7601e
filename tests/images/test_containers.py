"""Every image that has been built: what it holds, and what runs in a container of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.hosts import until
from tests.images.containers import ROOT, SMALL, START, Run, docker, inspect, manifest, result

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SOMEBODY = "12345:54321"  # a user that the image does not know
LABELS = ("title", "version", "revision", "created", "licenses", "base.name", "base.digest")


def test_without_a_command_it_explains_itself(image: str) -> None:
    answer = docker("run", "--rm", "--network=none", image)
    assert answer.returncode == 0
    assert "selftest" in answer.stdout and "doctor" in answer.stdout


def test_labels_user_and_size(image: str) -> None:
    facts = inspect(image)
    labels = facts["Config"]["Labels"]
    assert [name for name in LABELS if not labels.get(f"org.opencontainers.image.{name}")] == []
    assert labels["org.opencontainers.image.base.digest"].startswith("sha256:")
    assert facts["Config"]["User"] == "1000:1000"
    assert "Healthcheck" not in facts["Config"]
    if image.endswith("gloo"):
        assert facts["Size"] < 1.5e9


def test_selftest_as_any_user_with_nothing_writable(image: str) -> None:
    # the name of a container resolves on a network only, and Horovod asks for its address
    confined = ("--network=host", f"--user={SOMEBODY}", "--read-only", "--cap-drop=ALL", "--shm-size=1g")
    answer = docker("run", "--rm", *confined, image, "selftest", seconds=500)
    assert answer.returncode == 0, answer.stdout
    assert "ok      training" in answer.stdout


def test_bill_of_materials(image: str) -> None:
    answer = docker("run", "--rm", "--network=none", image, "sbom")
    document = json.loads(answer.stdout)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    addresses = [component["purl"] for component in document["components"]]
    assert addresses == sorted(set(addresses))
    assert any(purl.startswith("pkg:pypi/torch@") for purl in addresses)
    assert any(purl.startswith("pkg:deb/debian/tini@") for purl in addresses)


def test_pytest_runs_in_the_image(image: str) -> None:
    answer = docker(
        "run",
        "--rm",
        "--network=none",
        f"--user={SOMEBODY}",
        image,
        "pytest",
        "-q",
        "tests/idist/test_environment.py",
    )
    assert answer.returncode == 0, answer.stdout


def test_an_unknown_command_is_an_error(gloo: str) -> None:
    assert docker("run", "--rm", "--network=none", gloo, "no-such-command").returncode == 127


def test_what_a_container_writes_belongs_to_its_user(gloo: str, tmp_path: Path) -> None:
    uid, gid = map(int, SOMEBODY.split(":"))
    os.chown(tmp_path, uid, gid)
    mount = f"type=bind,source={tmp_path},target=/workspace/runs"
    options = (
        "--network=none",
        f"--user={SOMEBODY}",
        "--read-only",
        f"--mount={mount}",
        "--env=IMAGE_DIGEST=sha256:1",
    )
    answer = docker("run", "--rm", *options, gloo, "run", "--backend=gloo", "--nproc_per_node=2", *SMALL)
    assert answer.returncode == 0, answer.stdout
    written = list(tmp_path.rglob("*"))
    assert written and {(path.stat().st_uid, path.stat().st_gid) for path in written} == {(uid, gid)}
    assert result(tmp_path)["world_size"] == 2
    image = manifest(tmp_path)["image"]
    assert image["digest"] == "sha256:1"
    assert image["revision"] == inspect(gloo)["Config"]["Labels"]["org.opencontainers.image.revision"]


@pytest.fixture
def two_nodes(gloo: str, network: str, tmp_path: Path) -> Iterator[list[Run]]:
    """Two containers on a network of their own, each a node of one training under torchrun."""
    tmp_path.chmod(0o777)
    nodes = []
    try:
        for rank in range(2):
            world = {
                "NP": "1",
                "NNODES": "2",
                "NODE_RANK": str(rank),
                "MASTER_ADDR": "node0",
                "MASTER_PORT": "29500",
            }
            options = [f"--network={network}", f"--network-alias=node{rank}", f"--hostname=node{rank}"]
            options += [f"--env={name}={value}" for name, value in world.items()]
            options += [f"--mount=type=bind,source={tmp_path},target=/workspace/runs"]
            training = ("launchers/torchrun.sh", "-m", "reference.cifar10", "run", "--backend=gloo", *SMALL)
            nodes.append(Run.start(gloo, *training, options=options))
        yield nodes
    finally:
        for node in nodes:
            node.remove()


def test_two_containers_train_together(two_nodes: list[Run], tmp_path: Path) -> None:
    for node in two_nodes:
        code, text = node.end()
        assert code == 0, text
    assert result(tmp_path)["world_size"] == 2
    assert [rank["host"] for rank in manifest(tmp_path)["distributed"]["ranks"]] == ["node0", "node1"]


def make_run(folder: Path, *options: str) -> list[str]:
    """The front door, with everything that it writes in the folder."""
    return [str(ROOT / "launchers" / "run.sh"), *options, f"--output_path={folder}/runs"]


def container_environment(folder: Path) -> dict[str, str]:
    return {**os.environ, "RUNTIME": "docker", "NP": "2", "LOG_DIR": str(folder / "logs")}


def test_the_front_door_trains_in_a_container(gloo: str, tmp_path: Path) -> None:
    answer = subprocess.run(
        make_run(tmp_path, *SMALL), env=container_environment(tmp_path), cwd=ROOT, timeout=START,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout
    assert answer.stdout.splitlines()[0] == "run: RUNTIME=docker"
    facts = manifest(tmp_path / "runs")
    assert facts["launcher"]["runtime"]["RUNTIME"] == "docker"
    assert facts["image"]["digest"] == inspect(gloo)["Id"]
    assert facts["launcher"]["name"] == "torchrun"


def test_the_image_is_the_default_where_it_holds_this_code(gloo: str) -> None:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.strip()

    revision = inspect(gloo)["Config"]["Labels"]["org.opencontainers.image.revision"]
    same = revision == git("rev-parse", "HEAD") and not git("status", "--porcelain")
    script = str(ROOT / "launchers" / "container.sh")
    answer = subprocess.run(
        [script, "--choose"], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    if same:
        assert answer == f"docker image {gloo}, with the code of this clone\n"
    else:
        assert answer.startswith(
            f"venv the image {gloo} is not used: its code is of revision {revision[:12]}"
        )


def test_sigterm_reaches_the_training_which_writes_a_checkpoint(gloo: str, tmp_path: Path) -> None:
    long = [*SMALL, "--num_epochs=1000", "--validate_every=1000", "--log_every_iters=1"]
    process = subprocess.Popen(
        make_run(tmp_path, *long), env=container_environment(tmp_path), cwd=ROOT, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        until(
            "the first step is done",
            START,
            lambda: any("training" in file.read_text() for file in tmp_path.glob("runs/*/events.jsonl")),
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait(timeout=20)
    (run,) = (tmp_path / "runs").iterdir()
    assert json.loads((run / "result.json").read_text())["exit_reason"] == "stopped by SIGTERM"
    assert list(run.glob("checkpoints/training_checkpoint_*.pt"))
    assert docker("ps", "--quiet", "--filter", f"ancestor={gloo}").stdout == ""
