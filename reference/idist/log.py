"""The library's own few log lines."""

from __future__ import annotations

import logging

_logger = logging.getLogger("reference.idist")


def info(message: str) -> None:
    """Log a line. If the program has set up no logging, it goes to stderr, as INFO lines otherwise would be lost."""
    if not _logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s: %(message)s"))
        _logger.addHandler(handler)
        _logger.setLevel(logging.INFO)
    _logger.info(message)
