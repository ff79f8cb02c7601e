"""Backends by name. A backend's module imports its library only when that backend is asked for."""

from __future__ import annotations

import importlib

from reference.idist.backends.base import Backend

_MODULES = {
    "gloo": "native",
    "nccl": "native",
    "mpi": "native",
    "horovod": "horovod",
    "xla-tpu": "xla",
}
NAMES = tuple(_MODULES)
MODEL_NAMES = ("serial", "native-dist", "horovod-dist", "xla-dist")


def backend_class(name: str) -> type[Backend]:
    """The class that serves the backend ``name``. ValueError for a name that is none of ``NAMES``."""
    if name not in _MODULES:
        raise ValueError(f"backend={name!r} is unknown: use one of {', '.join(NAMES)} or None")
    module = importlib.import_module(f"reference.idist.backends.{_MODULES[name]}")
    return module.BACKEND


def backend_classes() -> tuple[type[Backend], ...]:
    """Every backend class once."""
    return tuple(dict.fromkeys(backend_class(name) for name in NAMES))
