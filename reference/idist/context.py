"""The one current backend of this process: initialize, finalize, current."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from reference.idist import progress
from reference.idist.backends import NAMES, backend_class, backend_classes
from reference.idist.backends.base import DEFAULT_TIMEOUT, Backend
from reference.idist.backends.serial import SerialBackend

_SERIAL = SerialBackend()
_current: Backend | None = None


def current() -> Backend:
    """The backend in use: the initialised one, else a world that the user made, else the serial one."""
    global _current
    if _current is None or not _current.alive():
        _current = _adopt()
    return _current or _SERIAL


def _adopt() -> Backend | None:
    return next((backend for cls in backend_classes() if (backend := cls.adopt()) is not None), None)


def initialize(backend: str, **kwargs: Any) -> None:
    """Join the world described by the launcher's environment variables (one process without any).

    Args:
        backend: "gloo", "nccl", "mpi", "horovod" or "xla-tpu".
        kwargs: ``timeout`` in seconds (or a timedelta; default 600), the deadline of the initialisation and of every
            collective; ``device`` ("cpu", "cuda", ...) where the backend leaves a choice; and the backend's own:
            ``init_method``, ``rank``, ``world_size`` for gloo and nccl.

    Raises:
        ValueError: unknown backend or argument, contradictory environment, another backend is in use.
        RuntimeError: the backend is not installed here, or the world did not come together within the timeout.
    """
    global _current
    cls = backend_class(backend)
    options = check_options(backend, cls.options, kwargs)
    active = current()
    if active is not _SERIAL:
        if active.name == backend and not kwargs:
            return
        raise ValueError(f"initialize({backend!r}): {active.name} is in use already: call finalize() first")
    require(backend)
    _current = cls.initialize(backend, **options)
    progress.report("rendezvous", rank=_current.rank, world_size=_current.world_size)


@contextmanager
def using(backend: Backend) -> Iterator[None]:
    """``backend`` is the current one inside, and finalized afterwards: without waiting if the body raised."""
    global _current
    _current = backend
    try:
        yield
    except BaseException:
        finalize(failed=True)
        raise
    finalize()


def finalize(failed: bool = False) -> None:
    """Leave the world; afterwards this is a single process again. With ``failed``, without waiting for the others."""
    global _current
    active, _current = current(), None
    active.finalize(failed)


def sync() -> None:
    """Take up a world that was made with the library's own calls. Every rank calls it: ranks tell each other their hosts."""
    global _current
    _current = _adopt()
    if _current is not None:
        _current.survey()


def require(backend: str) -> None:
    """RuntimeError that says what is missing, and the command that brings it, if ``backend`` can't run here."""
    missing = backend_class(backend).missing(backend)
    if missing:
        raise RuntimeError(f"backend={backend!r} can't be used here: {missing}")


def available_backends() -> tuple[str, ...]:
    """The backends that can be initialised on this machine now."""
    return tuple(name for name in NAMES if backend_class(name).missing(name) is None)


def check_options(backend: str, allowed: frozenset[str], kwargs: dict[str, Any]) -> dict[str, Any]:
    """``kwargs`` with timeout (seconds) and device filled in; ValueError for unknown names and bad values."""
    unknown = sorted(set(kwargs) - allowed - {"timeout", "device"})
    if unknown:
        known = ", ".join(sorted(allowed | {"timeout", "device"}))
        raise ValueError(
            f"{unknown[0]}={kwargs[unknown[0]]!r} is not an argument of backend {backend!r}: use {known}"
        )
    timeout = DEFAULT_TIMEOUT if kwargs.get("timeout") is None else kwargs["timeout"]
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ValueError(f"timeout={timeout!r}: give seconds above 0")
    return {**kwargs, "timeout": float(seconds), "device": kwargs.get("device")}
