"""What a process can do to its job, without torch: `plain_program.py ACTION [FOLDER]`.

fail       process 3 ends with a traceback and exit code 7, the others sleep
sleep      leave a file in FOLDER, and sleep
fragile    the same, but at once over when Slurm has started the job again
signalled  the same, and end with 140 on USR2
tell       leave a file in FOLDER that holds the interesting variables
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

SLEEP = 300.0  # seconds
VARIABLES = ("CUDA_VISIBLE_DEVICES", "SLURM_ARRAY_TASK_ID", "SLURM_LOCALID", "SLURMD_NODENAME")


def fail() -> None:
    try:
        raise ArithmeticError("seven is too much")
    finally:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        sys.stderr.flush()
        os._exit(7)


def main(action: str, folder: str = "", *words: str) -> None:
    rank = os.environ.get("RANK") or os.environ["SLURM_PROCID"]
    again = os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
    if action == "fail" and rank == "3":
        fail()
    if action == "signalled":
        signal.signal(signal.SIGUSR2, lambda number, frame: os._exit(128 + number))
    if folder:
        facts = {name: os.environ.get(name) for name in VARIABLES}
        attempt = f"-{os.environ.get('SLURM_JOB_ID')}-{rank}{'-again' if again else ''}"
        Path(folder, action + attempt).write_text(json.dumps({**facts, "words": words}))
    if action in ("fail", "sleep") or (action in ("fragile", "signalled") and not again):
        time.sleep(SLEEP)


if __name__ == "__main__":
    main(*sys.argv[1:])
