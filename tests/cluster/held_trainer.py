"""The trainer, which stops in its fifth iteration until a signal comes: `held_trainer.py OUTPUT OPTION...`.

So the signal finds it in the middle of training, however fast or slow the machine is. Once there is a checkpoint in the
folder OUTPUT it trains on as always.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from reference.cifar10 import __main__, stopping

LIMIT = 240.0  # seconds


def hold_at(iteration: int) -> None:
    agreed = stopping.StopRequest.agreed
    stopping._SECONDS_BETWEEN = 0.0  # the ranks ask each other after every iteration

    def held(self: stopping.StopRequest, now: int) -> signal.Signals | None:
        deadline = time.monotonic() + LIMIT
        while now == iteration and not self.received and time.monotonic() < deadline:
            time.sleep(0.1)
        return agreed(self, now)

    stopping.StopRequest.agreed = held  # type: ignore[method-assign]


if __name__ == "__main__":
    output, *options = sys.argv[1:]
    if not list(Path(output).glob("*/checkpoints/training_checkpoint_*.pt")):
        hold_at(5)
    __main__.main(["run", f"--output_path={output}", *options])
