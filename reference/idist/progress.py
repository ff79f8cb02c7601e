"""Tells a supervisor how far a program is; without one, nothing happens.

The supervisor (`experiments.supervise`) names a pipe in the environment variable IDIST_EVENTS. A program is never held up or
broken by it: what the pipe cannot take is dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any


def report(event: str, **values: Any) -> None:
    """Tell of an event.

    ======================  ==============================================================================
    event                   values
    ======================  ==============================================================================
    rendezvous              rank, world_size; from `idist.initialize`, when all ranks have met
    run_directory           path
    first_step              rank; the first step of the optimizer is done
    progress                rank, iteration, total (iterations), epoch
    failed                  rank, cause, exitcode (as `multiprocessing` gives it, None if it raised); of a rank that
                            this process has started
    ======================  ==============================================================================
    """
    path = os.environ.get("IDIST_EVENTS")
    if path is None:
        return
    line = json.dumps({"event": event, "time": time.time(), **values}) + "\n"
    with contextlib.suppress(OSError):
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe, line.encode())
        finally:
            os.close(pipe)
