"""Parametrise over (backend, world size, check), and start each world once."""

from __future__ import annotations

import pytest

from tests.conformance import harness, registry, runner
from tests.conformance.expectations import world_sizes
from tests.conformance.harness import Worlds


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = metafunc.fixturenames
    if "worlds" not in names:
        return
    try:
        backends = harness.backends_here()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    if "world" not in names:
        metafunc.parametrize("backend", backends)
        return
    pairs = [(backend, world) for backend in backends for world in world_sizes(backend)]
    if "check" not in names:
        metafunc.parametrize(("backend", "world"), pairs)
        return
    table = [
        (backend, world, check.name)
        for backend, world in pairs
        for check in registry.load().values()
        if check.smallest_world <= world
    ]
    metafunc.parametrize(("backend", "world", "check"), table)


@pytest.fixture(scope="session")
def worlds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """All worlds. Each runs the checks that pytest has selected, or all if the capability table is among the tests."""
    selected: dict[tuple[str, int], set[str]] = {}
    for item in request.session.items:
        parameters = (
            item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        )
        backend, world, check = (parameters.get(key) for key in ("backend", "world", "check"))
        if backend is None or "worlds" not in item.fixturenames:
            continue
        for size in world_sizes(backend) if world is None else (world,):
            every = runner.choose(backend, size, None)
            wanted = every if world is None else every[:1] if check is None else (check,)
            selected.setdefault((backend, size), set()).update(wanted)
    return Worlds(selected, tmp_path_factory.mktemp("worlds"))
