"""Which combinations can be, and which of them this machine can run. Every reason is one line."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from experiments.records import Cell, Settings

ROOT = Path(__file__).resolve().parents[1]  # of the clone, where launchers/ is
IMAGE_RECORD = Path("/etc/idist-workbench/image.json")
SLURM = ("slurm", "slurm_torchrun")
_PROCESSES = ("torchrun", "torch_distributed_launch", "spawn", "mpirun", *SLURM)
# as in launchers/run.sh
LAUNCHERS: dict[str, tuple[str, ...]] = {
    "none": ("plain",),
    "gloo": _PROCESSES,
    "nccl": _PROCESSES,
    "horovod": ("horovodrun", "spawn", "slurm"),
    "xla-tpu": ("spawn",),
}
BACKENDS: dict[str, tuple[str, ...]] = {
    "idist": tuple(LAUNCHERS),
    "native_ddp": ("gloo", "nccl"),
    "horovod_native": ("horovod",),
    "xla_native": ("xla-tpu",),
    "ignite": ("none", "gloo", "nccl", "horovod"),
}
# What a program was not written for: each launcher more would be more code, which is what idist saves.
_UNKNOWN_LAUNCHERS: dict[str, tuple[str, ...]] = {
    "native_ddp": ("mpirun", "slurm"),
    "horovod_native": ("spawn", "slurm"),
    "ignite": ("mpirun",),
}


def impossible(cell: Cell) -> str | None:
    """Why no machine can run the cell, None if some can."""
    if cell.backend not in BACKENDS[cell.program]:
        return f"{cell.program} is written for {', '.join(BACKENDS[cell.program])}, not for {cell.backend}"
    if cell.launcher not in LAUNCHERS[cell.backend]:
        return f"{cell.launcher} cannot start {cell.backend}: it takes {', '.join(LAUNCHERS[cell.backend])}"
    bare = (cell.program, cell.backend) == ("ignite", "horovod") and cell.launcher != "horovodrun"
    if bare or cell.launcher in _UNKNOWN_LAUNCHERS.get(cell.program, ()):
        return f"{cell.program} cannot be started by {cell.launcher}"
    if cell.backend == "none" and cell.world_size > 1:
        return f"{cell.world_size} processes need a backend"
    if cell.settings.batch_size % cell.world_size:
        return f"batch_size {cell.settings.batch_size} cannot be shared out over {cell.world_size} processes"
    limit, batch = cell.settings.max_train_samples, cell.settings.batch_size
    if limit is not None and limit < batch:
        return f"max_train_samples {limit} is less than one batch ({batch})"
    return None


@dataclass(frozen=True)
class Machine:
    """What this machine has.

    Args:
        scheduler: "local" or "slurm".
        home: folder of the environments (VENV_HOME).
    """

    scheduler: str = "local"
    home: Path = field(default_factory=lambda: Path(os.environ.get("VENV_HOME") or ROOT))

    @cached_property
    def in_image(self) -> bool:
        """Whether this is one of the project's containers, which hold one environment."""
        return IMAGE_RECORD.is_file()

    @cached_property
    def gpus(self) -> int:
        """NVIDIA GPUs, as nvidia-smi lists them."""
        try:
            found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return 0
        return sum(line.startswith("GPU ") for line in found.stdout.splitlines())

    def cannot(self, cell: Cell, *, needs_gpus: bool = False) -> str | None:
        """Why this machine cannot run a possible cell, None if it can. ``needs_gpus``: Horovod too has to have its own."""
        return self._scheduling(cell) or self._library(cell) or self._devices(cell, needs_gpus)

    def _scheduling(self, cell: Cell) -> str | None:
        if cell.launcher in SLURM:
            if self.scheduler != "slurm":
                return f"{cell.launcher} needs a cluster: SCHEDULER=slurm"
            return None if shutil.which("sbatch") else "sbatch is not installed here"
        if self.scheduler == "slurm":
            return f"under SCHEDULER=slurm processes are started by {' and '.join(SLURM)}"
        if cell.nodes > 1:
            return f"{cell.nodes} nodes need a cluster: SCHEDULER=slurm"
        if cell.launcher == "mpirun" and shutil.which("mpirun") is None:
            return "mpirun is not installed here (Debian, Ubuntu: apt-get install openmpi-bin)"
        return None

    def _library(self, cell: Cell) -> str | None:
        wanted = {"horovod": "horovod", "xla-tpu": "torch_xla"}.get(cell.backend, "torch")
        env = "gloo" if wanted == "torch" else cell.backend
        if not self._has(wanted, cell.backend):
            return f"{wanted} is not installed: make env BACKEND={env}"
        if cell.program == "ignite" and not self._has("ignite", cell.backend):
            return "pytorch-ignite is not installed: docker/with.sh gloo peer -- true"
        return None

    def variables(self, cell: Cell) -> dict[str, str]:
        """What docker/with.sh sets for a command. It also looks at the locks, which takes a second: no part of a launch."""
        if self.in_image:
            return {}
        return {"PATH": f"{self._environment(cell.backend) / 'bin'}:{os.environ.get('PATH', os.defpath)}"}

    def _environment(self, backend: str) -> Path:
        return self.home / (".venv-xla" if backend == "xla-tpu" else ".venv")

    def _has(self, module: str, backend: str) -> bool:
        if self.in_image:
            return importlib.util.find_spec(module) is not None
        environment = self._environment(backend)
        return any(environment.glob(f"lib/python*/site-packages/{module}/__init__.py"))

    def _devices(self, cell: Cell, needs_gpus: bool) -> str | None:
        wanted = cell.backend == "nccl" or needs_gpus
        if wanted and self.scheduler == "local" and self.gpus < cell.processes:
            return f"needs {cell.processes} NVIDIA GPUs, this machine has {self.gpus}"
        return None


def missing_data(settings: Settings) -> str | None:
    """Why the data set of these settings cannot be read; does once what it needs (image folders are decoded)."""
    from reference.cifar10 import datasets

    try:
        sizes = datasets.prepare(settings.dataset, Path(settings.data_path).expanduser())
    except datasets.DataError as error:
        return str(error)
    for name, wanted, there in (
        ("max_train_samples", settings.max_train_samples, sizes.train),
        ("max_eval_samples", settings.max_eval_samples, sizes.test),
        ("batch_size", settings.batch_size, sizes.train),
    ):
        if wanted is not None and wanted > there:
            return f"{name} {wanted} is more than the {there:,} images of {settings.dataset}"
    return None
