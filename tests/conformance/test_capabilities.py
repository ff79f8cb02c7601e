"""docs/capabilities.md is what the suite finds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance import capabilities
from tests.conformance.expectations import BACKENDS, world_sizes
from tests.conformance.harness import Worlds

pytestmark = pytest.mark.timeout(0)  # the worlds have deadlines of their own


def test_the_page_is_what_the_suite_found(worlds: Worlds, backend: str) -> None:
    results = {world: worlds.result(backend, world) for world in world_sizes(backend)}
    committed = capabilities.PAGE.read_text()
    found = {backend: capabilities.cells(backend, results)}
    lines = capabilities.differences(committed, found)
    assert not lines, "\n".join([*lines, "write the page: python -m tests.conformance.capabilities --write"])


def test_a_page_is_read_as_it_was_written() -> None:
    keys = [capabilities.SIZES, capabilities.HARDWARE, *capabilities.rows()]
    columns = {name: {key: f"{name} a|b ({i})" for i, key in enumerate(keys)} for name in BACKENDS}
    page = capabilities.render(columns)
    assert capabilities.parse(page) == columns
    assert capabilities.differences(page, columns) == []
    changed = {"gloo": {**columns["gloo"], keys[3]: "works"}}
    assert len(capabilities.differences(page, changed)) == 1


@pytest.mark.parametrize(
    ("ends", "cell"),
    [
        (("passed", "passed"), "ValueError"),
        (("passed", "failed"), "FAILS"),
        ((None, "passed"), "FAILS"),
    ],
)
def test_a_cell_says_the_worst(ends: tuple[str | None, ...], cell: str) -> None:
    row = ("initialize", "initialize with an unknown argument or a wrong timeout")
    outcome = [{"status": end, "text": ""} if end else None for end in ends]
    checks = {
        check.name: [{"status": "passed", "text": ""}]
        for group in capabilities.rows().values()
        for check in group
    }
    first, second = _result(checks), _result({**checks, "initialize_refuses": outcome})
    assert capabilities.cells("gloo", {1: first})[row] == "ValueError"
    assert capabilities.cells("gloo", {1: first, 2: second})[row] == cell


def _result(checks: dict[str, Any]) -> dict[str, Any]:
    return {"checks": checks, "returned": {"hardware": "cpu"}}
