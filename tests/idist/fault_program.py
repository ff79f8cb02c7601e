"""A small distributed program that goes wrong on request: `fault_program.py FAULT PIDS_DIR [NPROC]`.

Every rank leaves a file named after its process id in PIDS_DIR. With NPROC it starts its processes itself.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch

import reference.idist as idist

DEADLINE = 15.0  # seconds


def work(local_rank: int, fault: str, pids: str) -> str:
    rank = idist.get_rank()
    Path(pids, str(os.getpid())).touch()
    idist.barrier()
    if fault == "raise" and rank == 1:
        raise KeyError("rank one broke")
    if fault == "wrong-type" and rank == 1:
        idist.all_reduce("three")
    if fault == "leader":
        with idist.one_rank_first():
            if rank == 0:
                raise OSError("no such data")
    if fault == "exit" and rank == 1:
        os._exit(7)
    if fault == "kill" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stop" and rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "absent" and rank == 1:
        time.sleep(600)
    if fault == "wait":
        Path(pids, "ready").touch()
        time.sleep(600)
    for _ in range(3):
        idist.all_reduce(torch.ones(4))
    return f"rank {rank} is fine"


if __name__ == "__main__":
    nproc = int(sys.argv[3]) if len(sys.argv) > 3 else None
    with idist.Parallel("gloo", nproc_per_node=nproc, timeout=DEADLINE) as parallel:
        print("returned:", parallel.run(work, *sys.argv[1:3]))
