"""docs/differences.md: what it names exists."""

from __future__ import annotations

import fnmatch
import re

import pytest

from tests.conformance import registry
from tests.conformance.harness import ROOT

PAGE = (ROOT / "docs" / "differences.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| call")]
PROOFS = sorted({row.split(" | ")[-1].removesuffix(" |") for row in ROWS})
TESTS = "\n".join(
    path.read_text() for folder in ("conformance", "peer") for path in ROOT.glob(f"tests/{folder}/*.py")
)


@pytest.mark.parametrize("proof", PROOFS)
def test_what_shows_a_difference_exists(proof: str) -> None:
    stems = {check.function.__name__.removeprefix("check_") for check in registry.load().values()}
    names = re.findall("`([^`]+)`", proof)
    assert names, "nothing shows it"
    for name in names:
        if name.startswith("tests/"):
            assert (ROOT / name).exists(), name
        elif name.endswith(".py"):
            assert (ROOT / "tests" / "conformance" / name).exists(), name
        else:
            assert (
                fnmatch.filter(stems, name.split(".")[0]) or f'"{name}"' in TESTS or f"def {name}(" in TESTS
            ), name
