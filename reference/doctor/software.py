"""What is installed: versions, backends, and the devices that torch sees."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from reference.doctor.finding import NOTE, OK, PROBLEM, Finding, ask
from reference.idist.backends import NAMES, backend_class
from reference.idist.environment import Layout

SECTION = "software"
PACKAGES = ("torch", "torchvision", "numpy", "horovod", "torch_xla", "libtpu")
_GOOGLE, _TPU_CHIPS = "0x1ae0", ("0x0027", "0x005e", "0x0056", "0x0062", "0x0063", "0x006f", "0x0076")
_NVIDIA_SMI = 15.0  # seconds; the driver may have to wake up


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU, as the driver tells it."""

    name: str
    memory: str
    driver: str
    mode: str  # "Default": several processes may use it


@dataclass(frozen=True, kw_only=True)
class Software:
    """Facts about packages and devices."""

    python: str
    executable: str
    versions: dict[str, str]
    cuda: str | None  # that torch is built for
    nccl: str | None
    missing: dict[str, str | None]  # for each backend why it can't run here, None when it can
    horovod_built: tuple[str, ...]  # the libraries that Horovod was compiled with
    gpus: tuple[Gpu, ...]  # of the driver
    gpu_error: str | None  # why the driver does not tell
    visible_gpus: int  # to torch
    hidden: str | None  # CUDA_VISIBLE_DEVICES
    tpus: int  # chips
    processes: int = 1  # on this node, as far as the launcher tells


def look(environ: Mapping[str, str], layout: Layout | None) -> Software:
    """Facts about this interpreter. Imports Horovod where it is installed, and never torch_xla."""
    gpus, error = _gpus() if Path("/dev/nvidiactl").exists() else ((), None)
    missing = {name: backend_class(name).missing(name) for name in NAMES}
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.distributed.is_nccl_available() else None
    return Software(
        python=platform.python_version(),
        executable=os.path.abspath(sys.executable),
        versions=versions(),
        cuda=torch.version.cuda,
        nccl=nccl,
        missing=missing,
        horovod_built=_horovod_built() if missing["horovod"] is None else (),
        gpus=gpus,
        gpu_error=error,
        visible_gpus=torch.cuda.device_count(),
        hidden=environ.get("CUDA_VISIBLE_DEVICES"),
        tpus=_tpus(),
        processes=(layout.nproc_per_node or 1) if layout is not None else 1,
    )


def versions() -> dict[str, str]:
    """The versions of the packages that matter, as far as they are installed here."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def judge(facts: Software) -> list[Finding]:
    """One finding for each fact."""
    return [*_packages(facts), *_backends(facts), *_gpu_findings(facts), _tpu(facts)]


def _finding(name: str, value: object, text: str, level: str = OK, shared: bool = True) -> Finding:
    return Finding(section=SECTION, name=name, value=value, text=text, level=level, shared=shared)


def _packages(facts: Software) -> Iterator[Finding]:
    yield _finding("python", facts.python, f"{facts.python} ({facts.executable})")
    for package in ("torch", "torchvision", "numpy"):
        version = facts.versions.get(package)
        if package == "torch":
            yield _finding(
                package, version, f"{version}, {f'for CUDA {facts.cuda}' if facts.cuda else 'for CPUs'}"
            )
        elif version:
            yield _finding(package, version, version)


def _backends(facts: Software) -> Iterator[Finding]:
    built = f"Horovod {facts.versions.get('horovod')}, built with {', '.join(facts.horovod_built)}"
    ready = {
        "gloo": f"torch {facts.versions.get('torch')}",
        "nccl": f"NCCL {facts.nccl}",
        "mpi": f"torch {facts.versions.get('torch')}",
        "horovod": built,
        "xla-tpu": f"torch_xla {facts.versions.get('torch_xla')}",
    }
    for name, missing in facts.missing.items():
        if missing is not None:
            # a backend that does not load is broken; one that is not there can't bite
            level = NOTE if "does not load" in missing else OK
            yield _finding(f"backend {name}", False, f"not here: {missing}", level)
        elif name == "horovod" and facts.visible_gpus and "nccl" not in facts.horovod_built:
            mend = "HOROVOD_GPU_OPERATIONS=NCCL make env BACKEND=horovod"
            yield _finding(f"backend {name}", True, f"ready, but on the CPU only: {built}: {mend}", NOTE)
        else:
            yield _finding(f"backend {name}", True, f"ready: {ready[name]}")


def _gpu_findings(facts: Software) -> Iterator[Finding]:
    if facts.gpu_error is not None:
        mend = "check the driver, or start the container with --gpus all"
        yield _finding(
            "gpus", None, f"/dev/nvidiactl is there, but nvidia-smi fails ({facts.gpu_error}): {mend}", NOTE
        )
    if not facts.gpus:
        if facts.gpu_error is None and not facts.visible_gpus:
            yield _finding("gpus", 0, "no NVIDIA GPU")
        return
    names = ", ".join(sorted({f"{gpu.name} ({gpu.memory})" for gpu in facts.gpus}))
    text = f"{len(facts.gpus)} x {names}, driver {facts.gpus[0].driver}"
    if facts.visible_gpus == 0:
        why = f"CUDA_VISIBLE_DEVICES={facts.hidden} hides them" if facts.hidden is not None else ""
        why = why or (
            "this torch is built for CPUs" if facts.cuda is None else "the driver is too old or not reachable"
        )
        mend = (
            "unset it" if facts.hidden is not None else "install a torch that fits the driver (TORCH_INDEX)"
        )
        yield _finding("gpus", len(facts.gpus), f"{text}, but torch sees none: {why}: {mend}", PROBLEM)
        return
    alone = [str(number) for number, gpu in enumerate(facts.gpus) if gpu.mode == "Exclusive_Process"]
    if facts.visible_gpus != len(facts.gpus):
        text += f"; torch sees {facts.visible_gpus} (CUDA_VISIBLE_DEVICES={facts.hidden})"
    if 1 < facts.visible_gpus < facts.processes:
        text += f"; {facts.processes} processes here, and nccl wants a GPU for each: start {facts.visible_gpus} a node"
        yield _finding("gpus", [gpu.name for gpu in facts.gpus], text, NOTE)
        return
    if alone:
        text += f"; {', '.join(alone)} take one process only (compute mode)"
    yield _finding("gpus", [gpu.name for gpu in facts.gpus], text)


def _tpu(facts: Software) -> Finding:
    text = f"{facts.tpus} TPU chips" if facts.tpus else "no TPU: xla-tpu simulates its devices on the CPU"
    return _finding("tpu", facts.tpus, text)


def _tpus() -> int:
    """The number of TPU chips, by their PCI ids: what torch_xla 2.9 looks for, but without importing it."""
    count = 0
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        device = vendor.with_name("device")
        count += vendor.read_text().strip() == _GOOGLE and device.read_text().strip() in _TPU_CHIPS
    return count


def _horovod_built() -> tuple[str, ...]:
    import horovod.torch as hvd

    return tuple(name for name in ("gloo", "mpi", "nccl") if getattr(hvd, f"{name}_built")())


def _gpus() -> tuple[tuple[Gpu, ...], str | None]:
    """What the driver tells. Not by torch: that would start CUDA here, and a GPU for one process would be taken."""
    fields = "name,memory.total,driver_version,compute_mode"
    answer, error = ask(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], _NVIDIA_SMI)
    if error is not None:
        return (), error
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.splitlines() if line.strip()]
    return tuple(Gpu(name=r[0], memory=r[1], driver=r[2], mode=r[3]) for r in rows if len(r) == 4), None
