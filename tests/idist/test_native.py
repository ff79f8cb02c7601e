"""The parts of the native backend that need no GPU to be right about GPUs, and what importing idist costs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import reference.idist as idist
from reference.idist.backends.native import NativeBackend, cuda_index

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("local_rank", "visible", "index"),
    [
        (0, 1, 0),
        (0, 8, 0),
        (7, 8, 7),
        (3, 1, 0),  # --gpus-per-task=1: every task sees only its own, as number 0
    ],
)
def test_a_process_takes_its_gpu_among_the_visible_ones(local_rank: int, visible: int, index: int) -> None:
    assert cuda_index(local_rank, visible) == index


def test_more_processes_than_visible_gpus_are_refused() -> None:
    with pytest.raises(ValueError, match="local rank 2 has no GPU: 2 are visible"):
        cuda_index(2, 2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_nccl_without_a_gpu_says_what_to_do() -> None:
    with pytest.raises(RuntimeError, match="nccl needs a CUDA build of torch and a visible NVIDIA GPU"):
        idist.Parallel("nccl", nproc_per_node=2)
    assert "nccl" not in idist.available_backends()


def test_mpi_says_what_is_missing() -> None:
    if torch.distributed.is_mpi_available():
        assert NativeBackend.missing("mpi") is None
    else:
        with pytest.raises(RuntimeError, match="this torch is built without MPI"):
            idist.Parallel("mpi")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_nccl_on_one_gpu() -> None:
    with idist.Parallel("nccl"):
        assert idist.device() == torch.device("cuda", 0)
        assert idist.all_reduce(torch.ones(2, device="cuda")).tolist() == [1, 1]
        assert idist.all_gather("text") == ["text"]


def test_importing_idist_probes_nothing() -> None:
    code = (
        "import sys, torch; before = set(sys.modules)\n"
        "import reference.idist as idist\n"
        "idist.get_rank(), idist.backend(), idist.device()\n"
        "new = set(sys.modules) - before\n"
        "print(sorted(m for m in new if m.split('.')[0] in {'horovod', 'torch_xla', 'torchvision', 'ignite'}))"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
