"""The images, where they have been built."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.images.containers import docker, hindrance, image_of


@pytest.fixture(scope="session")
def gloo() -> str:
    """The gloo image."""
    return built("gloo")


@pytest.fixture(scope="session", params=["gloo", "horovod", "xla-tpu"])
def image(request: pytest.FixtureRequest) -> str:
    """Each image."""
    return built(request.param)


def built(backend: str) -> str:
    """The name of a backend's image, which is there."""
    name = image_of(backend)
    if reason := hindrance(name):
        pytest.skip(reason)
    return name


@pytest.fixture
def network(gloo: str) -> Iterator[str]:
    """A network of containers alone."""
    name = "idist-test-network"
    docker("network", "rm", name)
    answer = docker("network", "create", "--internal", name)
    assert answer.returncode == 0, answer.stdout
    yield name
    docker("network", "rm", name)
