"""Every backend, every world size, every check. `BACKEND=gloo python -m pytest tests/conformance` for one backend."""

from __future__ import annotations

import pytest

import reference.idist as idist
from tests.conformance import registry
from tests.conformance.expectations import BACKENDS, DIFFERENCES, expected
from tests.conformance.harness import Worlds

pytestmark = pytest.mark.timeout(0)  # the worlds have deadlines of their own


def test_check(worlds: Worlds, backend: str, world: int, check: str) -> None:
    declared = expected(backend, world, check)
    if isinstance(declared, str):
        pytest.skip(f"not possible on {backend}: {declared}")
    end, text = worlds.verdict(backend, world, check)
    if end == "not reached":
        pytest.skip(text)
    if end == "failed":
        pytest.fail(text, pytrace=False)


def test_parallel_returns_the_value_of_rank_0(worlds: Worlds, backend: str, world: int) -> None:
    result = worlds.result(backend, world)
    assert result["error"] is None, result["error"]
    assert (result["returned"]["rank"], result["returned"]["text"]) == (0, "from rank 0")


def test_every_public_call_has_a_check() -> None:
    elsewhere = {
        "CollectiveError",  # tests/idist: faults
        "ProcessFailed",
        "CrossReplicaBatchNorm",  # through auto_model
        "Parallel",  # starts every world here; its arguments: test_parallel_arguments.py
        "spawn",
        "sync",  # in the check of adopted worlds
        "unwrap",  # in the checks of auto_model
    }
    information = {
        "backend",
        "device",
        "hostname",
        "model_name",
        "available_backends",
        "show_config",
        "set_local_rank",
    }
    information |= {name for name in idist.__all__ if name.startswith("get_")}
    covered = {check.call for check in registry.load().values()} | elsewhere | information
    assert set(idist.__all__) <= covered, sorted(set(idist.__all__) - covered)


def test_every_declared_difference_is_of_a_backend_and_a_check() -> None:
    for backend, pattern in DIFFERENCES:
        assert backend in BACKENDS
        assert any(expected(backend, 4, name) is DIFFERENCES[backend, pattern] for name in registry.load()), (
            pattern
        )
