"""The packages of this environment against the locks that it was made from."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

LOCKS = Path(__file__).parents[1] / "locks"
FORBIDDEN = ("cc", "gcc", "g++", "c++", "clang", "make", "cmake", "nvcc", "sshd")


def pins(lock: str) -> dict[str, str]:
    """Package to version, as the lock `docker/locks/<lock>.txt` has it for this Python and system."""
    found = {}
    for line in (LOCKS / f"{lock}.txt").read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip().removesuffix("\\").strip()
        if not text or text.startswith("-"):
            continue
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate():
            found[canonicalize_name(requirement.name)] = str(requirement.specifier).removeprefix("==")
    return found


def installed() -> dict[str, str]:
    """Package to version, of everything that this Python finds."""
    return {canonicalize_name(found.name): found.version for found in importlib.metadata.distributions()}


def problems(locks: Iterable[str]) -> list[str]:
    """What differs from the locks, one line each; a build of a version ("+cpu") is that version."""
    there = installed()
    lines = []
    for lock in locks:
        for name, wanted in pins(lock).items():
            if name not in there:
                lines.append(f"{name} is missing; {lock}.txt has {wanted}")
            elif Version(there[name]).public != Version(wanted).public:
                lines.append(f"{name} is {there[name]}; {lock}.txt has {wanted}")
    return lines


def unwanted() -> list[str]:
    """Compilers and servers in the PATH: an image for running needs none."""
    return [f"{name} is at {path}" for name in FORBIDDEN if (path := shutil.which(name)) is not None]
