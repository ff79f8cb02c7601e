"""Hear what a call says: its log lines, the error that it raises."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any


def logged(function: Callable[[], Any]) -> tuple[list[str], Any]:
    """(the messages that idist logs while this thread runs the function, the function's value)."""
    lines: list[str] = []
    me = threading.get_ident()

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == me:  # replicas may share a process
                lines.append(record.getMessage())

    logger, handler = logging.getLogger("reference.idist"), Collect()
    logger.addHandler(handler)
    logger.setLevel(
        logging.INFO
    )  # for good: resetting it would silence a replica of this process that still listens
    try:
        value = function()
    finally:
        logger.removeHandler(handler)
    return lines, value


def refusal(kind: type[Exception], call: Callable[[], Any]) -> str:
    """The text of the error that the call has to raise, of exactly this type."""
    try:
        value = call()
    except Exception as error:
        assert type(error) is kind, f"raised {type(error).__name__}: {error}; expected {kind.__name__}"
        return str(error)
    raise AssertionError(f"returned {value!r}; expected {kind.__name__}")
