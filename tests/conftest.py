"""How the tests are shared out when several processes run them (`make test` uses two): by file, as fixtures are."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent
ONE_FIXTURE = ("cluster", "conformance", "images")  # folders with a fixture that takes long to make


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.hasplugin("xdist"):
        return
    for item in items:
        path = item.path.relative_to(HERE)
        group = path.parts[0] if path.parts[0] in ONE_FIXTURE else str(path)
        item.add_marker(pytest.mark.xdist_group(group))
