"""Ranks of torchrun measure their clocks; those of odd ranks are ahead. Rank 0 prints what came out.

skewed_program.py SECONDS
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict

import reference.idist as idist
from reference.doctor import clocks


def measure(local_rank: int, seconds: float) -> None:
    ahead = seconds * (idist.get_rank() % 2)
    found = clocks.measure(lambda: time.time() + ahead)
    if idist.get_rank() == 0:
        print(json.dumps([asdict(offset) for offset in found]))


if __name__ == "__main__":
    with idist.Parallel(backend="gloo", timeout=60.0) as parallel:
        parallel.run(measure, float(sys.argv[1]))
