"""The checks, by name, with the call of idist that each of them defines.

A check is a plain function `check_xyz(world, **parameters)` in `checks/`, which runs inside every rank of a real world.
It raises (mostly AssertionError) on a rank where the call does not mean what it should.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import tests.conformance.checks as package


@dataclass(frozen=True, kw_only=True)
class Check:
    """One check with its parameters."""

    name: str  # "all_reduce.SUM-int8": unique
    call: str  # of idist, the section of the capability table: "all_reduce"
    row: str  # of the capability table; checks may share one
    function: Callable[..., None]
    parameters: dict[str, Any] = field(default_factory=dict)
    smallest_world: int = 1  # with fewer ranks the question does not arise
    last: bool = False  # leaves the world changed: after all others
    outcome: str = (
        "works"  # what the table says when the check passes: "works", or the error that the contract asks for
    )


CHECKS: dict[str, Check] = {}


def check(
    call: str,
    row: str,
    /,
    *,
    smallest_world: int = 1,
    last: bool = False,
    outcome: str = "works",
    where: Callable[..., bool] = lambda **_: True,
    **grid: Iterable[Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as one check for each combination of the grid's values.

    Args:
        row: may name parameters: "all_reduce(tensor, {op})".
        where: keeps a combination of parameters.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        stem = function.__name__.removeprefix("check_")
        for values in itertools.product(*grid.values()):
            parameters = dict(zip(grid, values, strict=True))
            if not where(**parameters):
                continue
            name = f"{stem}.{'-'.join(map(label, values)).replace(' ', '_')}" if values else stem
            if name in CHECKS:
                raise ValueError(f"two checks are called {name!r}")
            CHECKS[name] = Check(
                name=name,
                call=call.format(**parameters),
                row=row.format(**{key: label(value) for key, value in parameters.items()}),
                function=function,
                parameters=parameters,
                smallest_world=max(parameters.get("ranks", (0,))) + 1
                if smallest_world == 1
                else smallest_world,
                last=last,
                outcome=outcome,
            )
        return function

    return register


def label(value: Any) -> str:
    """A parameter as it stands in a check's name: ranks (0, 2) as "0+2"."""
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value).removeprefix("torch.")


def load() -> dict[str, Check]:
    """All checks, in the order in which a world runs them."""
    for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"{package.__name__}.{module}")
    return dict(sorted(CHECKS.items(), key=lambda item: item[1].last))
