"""Containers of the built images, as the tests start and end them."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCKER = "docker"
START = 240.0  # seconds for a container that trains a little, also on a busy machine
SMALL = (
    "--dataset=digits", "--model=resnet18_cifar", "--max_train_samples=64", "--max_eval_samples=32", "--batch_size=16",
    "--num_epochs=1", "--learning_rate=0.01", "--threads=1", "--with_tensorboard=false",
)  # fmt: skip


def image_of(backend: str) -> str:
    """The name of the image of a backend."""
    script = str(ROOT / "docker" / "image.sh")
    return subprocess.run(
        [script, "--name", backend], check=True, capture_output=True, text=True
    ).stdout.strip()


def hindrance(image: str) -> str | None:
    """Why no container of this image can be started here, or None."""
    if shutil.which(DOCKER) is None:
        return "no docker here"
    try:
        subprocess.run([DOCKER, "version"], check=True, capture_output=True, timeout=20)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return "no docker engine answers (for CI: docker/ci-engine.sh)"
    there = subprocess.run([DOCKER, "image", "inspect", image], capture_output=True, timeout=20)
    return None if there.returncode == 0 else f"there is no image {image} (make image)"


def docker(*arguments: str, seconds: float = START) -> subprocess.CompletedProcess[str]:
    """Call docker; its output and errors come as one text."""
    return subprocess.run(
        [DOCKER, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds
    )


def inspect(image: str) -> dict[str, Any]:
    """What docker knows of an image."""
    (found,) = json.loads(docker("image", "inspect", image).stdout)
    return dict(found)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A container that has been started, by name."""

    name: str

    @classmethod
    def start(cls, image: str, *command: str, options: Sequence[str] = ()) -> Run:
        """Start a container that goes on by itself."""
        name = f"idist-test-{uuid.uuid4().hex[:8]}"
        answer = docker("run", "--detach", "--name", name, *options, image, *command)
        assert answer.returncode == 0, answer.stdout
        return cls(name=name)

    def end(self, seconds: float = START) -> tuple[int, str]:
        """Wait for its end: exit code, and what it printed."""
        try:
            code = int(docker("wait", self.name, seconds=seconds).stdout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.name} did not end within {seconds:g} seconds:\n{self.text()}")
        return code, self.text()

    def text(self) -> str:
        """What it has printed."""
        return docker("logs", self.name).stdout

    def remove(self) -> None:
        """Leave nothing of it."""
        docker("rm", "--force", self.name)


def result(folder: Path) -> dict[str, Any]:
    """The result of the one run in this folder."""
    (run,) = [path for path in folder.iterdir() if path.is_dir()]
    return dict(json.loads((run / "result.json").read_text()))


def manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the one run in this folder."""
    (run,) = [path for path in folder.iterdir() if path.is_dir()]
    return dict(json.loads((run / "manifest.json").read_text()))
