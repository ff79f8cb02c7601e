"""A program on two gloo ranks that does what its first argument says; the second is a folder for what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import reference.idist as idist
from reference.idist import progress


def work(local_rank: int, what: str, folder: Path) -> None:
    rank = idist.get_rank()
    (folder / f"pid-{os.getpid()}").touch()
    print(f"rank {rank} begins", flush=True)
    assert idist.all_reduce(rank + 1.0) == 3.0
    progress.report("first_step", rank=rank)
    progress.report("progress", rank=rank, iteration=7, total=1000, epoch=1)
    if what == "wait":
        received: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
        (folder / f"ready-{rank}").touch()
        while not received:
            time.sleep(0.05)
        time.sleep(1.0)  # a second one would come about now
        (folder / f"signals-{rank}").write_text(str(len(received)))
        sys.exit(128 + signal.SIGTERM)
    if what == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (folder / f"ready-{rank}").touch()
        hold_on()
    if what == "talk":
        (folder / f"ready-{rank}").touch()
        while True:
            print("x" * 200, flush=True)
            time.sleep(0.001)
    if what == "silent":
        hold_on()
    if what == "orphan" and rank == 0:
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=2)
        (folder / f"pid-{child.pid}").touch()
    if what == "once" and rank == 1 and os.environ["IDIST_RESTART_COUNT"] == "0":
        raise KeyError("only at the first start")
    if what == "slow-to-fall" and rank == 1:
        raise KeyError("the cause")
    if what == "slow-to-fall":
        idist.barrier()  # breaks, as rank 1 has gone
    print(f"rank {rank} ends", flush=True)


def hold_on() -> None:
    time.sleep(1000)


def main(what: str, folder: Path, **kwargs: Any) -> None:
    if what == "late" and os.environ.get("RANK") == "1":
        (folder / f"pid-{os.getpid()}").touch()
        hold_on()
    with idist.Parallel(backend="gloo", **kwargs) as parallel:
        parallel.run(work, what, folder)


if __name__ == "__main__":
    options = dict(word.removeprefix("--").split("=") for word in sys.argv[3:])
    main(sys.argv[1], Path(sys.argv[2]), **{name: int(value) for name, value in options.items()})
