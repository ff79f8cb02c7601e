"""The trainer; with FAULT=raise in its environment, rank 1 raises after the third iteration."""

from __future__ import annotations

import os
import signal

import reference.idist as idist
from reference.cifar10.__main__ import main
from reference.cifar10.stopping import StopRequest

_agreed = StopRequest.agreed


def agreed_or_raise(self: StopRequest, iteration: int) -> signal.Signals | None:
    if idist.get_rank() == 1 and iteration == 3:
        raise KeyError("planted on rank 1")
    return _agreed(self, iteration)


if os.environ.get("FAULT") == "raise":
    StopRequest.agreed = agreed_or_raise  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
