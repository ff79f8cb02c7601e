"""Small helpers: seeds, logging, moving data."""

from __future__ import annotations

import logging
import random
import sys
import threading
from collections.abc import Mapping
from typing import Any, TextIO, TypeVar

import torch
from torch import nn

import reference.idist as idist

T = TypeVar("T")
_SETTING_UP = threading.Lock()
LOG_FORMAT = "%(asctime)s %(name)s %(levelname)s: %(message)s"


def manual_seed(seed: int) -> None:
    """Seed Python's `random`, torch (all devices) and, where it is installed, NumPy."""
    random.seed(seed)
    torch.manual_seed(seed)
    if idist.backend() == "xla-tpu":  # torch does not reach XLA's own generator
        sys.modules["torch_xla"].manual_seed(seed)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed % 2**32)


def setup_logger(
    name: str = "reference",
    level: int = logging.INFO,
    stream: TextIO | None = None,
    format: str = LOG_FORMAT,
    filepath: str | None = None,
    distributed_rank: int | None = None,
    reset: bool = False,
) -> logging.Logger:
    """Make a logger that writes readable lines. No other logger is touched, the root logger neither.

    Rank 0 shows messages from `level` on; other ranks show warnings and errors. The file gets everything from
    `level` on, on every rank that gives one. Calling it again replaces what an earlier call set up.

    Args:
        name: the logger's name.
        stream: where lines go; default: what `sys.stderr` is now.
        format: of a line, in the style of `logging`.
        filepath: a file to append to as well; give each rank its own.
        distributed_rank: default: ask `idist.get_rank()` at each message, so that a logger that was made before
            the process group works.
        reset: also take away handlers that others added to this logger.
    """
    logger = logging.getLogger(name)
    # replicas in threads share the logger, and each has a stream and a file of its own
    replica = idist.get_rank() if idist.backend() == "xla-tpu" else None
    handlers: list[logging.Handler] = [logging.StreamHandler(stream or sys.stderr)]
    if filepath is not None:
        handlers.append(logging.FileHandler(filepath, encoding="utf-8", delay=True))
    with _SETTING_UP:
        for old in tuple(logger.handlers):
            if reset or any(isinstance(f, _RankFilter) and f.replica == replica for f in old.filters):
                logger.removeHandler(old)
                old.close()
        for handler in handlers:
            quiet = not isinstance(handler, logging.FileHandler)
            handler.addFilter(_RankFilter(distributed_rank, replica, quiet))
            handler.setFormatter(logging.Formatter(format))
            logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
    return logger


class _RankFilter(logging.Filter):
    """Lets messages of one replica through, if it is for one, and with `quiet` only warnings of other ranks than 0."""

    def __init__(self, rank: int | None, replica: int | None, quiet: bool) -> None:
        super().__init__()
        self._rank, self.replica, self._quiet = rank, replica, quiet

    def filter(self, record: logging.LogRecord) -> bool:
        current = idist.get_rank()
        rank = current if self._rank is None else self._rank
        heard = not self._quiet or rank == 0 or record.levelno >= logging.WARNING
        return heard and self.replica in (None, current)


def to_device(data: T, device: torch.device | str | None, non_blocking: bool = False) -> T:
    """Tensors on the device, also those inside of mappings, lists and (named) tuples; anything else as it is."""
    result: Any = data
    if isinstance(data, torch.Tensor):
        result = data.to(device, non_blocking=non_blocking)
    elif isinstance(data, Mapping):
        result = {key: to_device(value, device, non_blocking) for key, value in data.items()}
    elif isinstance(data, tuple) and hasattr(data, "_fields"):
        result = type(data)(*(to_device(value, device, non_blocking) for value in data))
    elif isinstance(data, (list, tuple)):
        result = type(data)(to_device(value, device, non_blocking) for value in data)
    return result


def unwrap_model(model: nn.Module) -> nn.Module:
    """The user's own module, without the wrappers of DistributedDataParallel and torch.compile."""
    while True:
        inner = getattr(idist.unwrap(model), "_orig_mod", idist.unwrap(model))
        if inner is model:
            return model
        model = inner
