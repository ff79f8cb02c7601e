"""What a run was made of: code, versions, machine, processes, data, command."""

from __future__ import annotations

import importlib.metadata
import json
import multiprocessing
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import torch

import reference
import reference.idist as idist
from reference.cifar10.config import Config
from reference.cifar10.datasets import ImageSet
from reference.idist import environment

_PACKAGES = (
    "torch",
    "torchvision",
    "numpy",
    "tensorboard",
    "clearml",
    "fire",
    "horovod",
    "torch_xla",
    "scikit-learn",
)

_IMAGE_RECORD = Path("/etc/idist-workbench/image.json")  # docker/inside/record.py writes it
_RUNTIME = ("RUNTIME", "OMP_NUM_THREADS", "SLURM_JOB_ID", "SLURM_RESTART_COUNT")


def collect(config: Config, images: ImageSet, resumed_from: str | None) -> dict[str, Any]:
    """The manifest, in plain values. Every rank calls this, as all of them tell their host and device.

    Args:
        config: of the run.
        images: the data set as loaded.
        resumed_from: the checkpoint that the run goes on from.
    """
    ranks = idist.all_gather(
        {
            "rank": idist.get_rank(),
            "host": idist.hostname(),
            "device": _device(),
            "threads": torch.get_num_threads(),
        }
    )
    layout = environment.detect(os.environ)
    spawned = multiprocessing.parent_process() is not None
    return {
        "schema": 1,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(command(config)),
        "argv": sys.argv,
        "working_directory": os.getcwd(),
        "launcher": {
            "name": "spawn" if spawned else "none" if layout is None else layout.source,
            # torchrun and torch.distributed.launch set the same variables: only their own command line tells them apart.
            "command": None if layout is None else _parent_command(),
            "layout": None if layout is None else asdict(layout),
            "variables": environment.variables_seen(os.environ),
            "runtime": {name: os.environ[name] for name in _RUNTIME if name in os.environ},
        },
        "image": image(os.environ),
        "distributed": {
            "backend": idist.backend(),
            "world_size": idist.get_world_size(),
            "nnodes": idist.get_nnodes(),
            "nproc_per_node": idist.get_nproc_per_node(),
            "ranks": ranks,
        },
        **of_this_machine(),
        "data": {
            "dataset": config.dataset,
            "title": images.title,
            "path": str(config.data_dir.absolute()),
            "train_images": images.sizes.train,
            "test_images": images.sizes.test,
            "checksum": images.checksum,
        },
        "resumed_from": resumed_from,
    }


def image(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """The container image that this runs in: what its build wrote down, and its name and digest as whoever started the
    container knows them (IMAGE, IMAGE_DIGEST). None outside of an image."""
    known = {"name": environ.get("IMAGE"), "digest": environ.get("IMAGE_DIGEST")}
    try:
        return {**known, **json.loads(_IMAGE_RECORD.read_text(encoding="utf-8"))}
    except OSError:
        return known if known["name"] else None


def of_this_machine() -> dict[str, Any]:
    """Code, versions and hardware: the part of a manifest that needs no run."""
    return {
        "git": git_state(),
        "versions": {"python": platform.python_version(), "reference": reference.__version__, **_versions()},
        "host": {
            "name": idist.hostname(),
            "system": platform.platform(),
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
        },
    }


def command(config: Config) -> list[str]:
    """The command that asks for this configuration, whatever flags and files it came from."""
    flags = [f"--{name}={value}" for name, value in config.changed().items()]
    return ["python", "-m", "reference.cifar10", "run", *flags]


def git_state() -> dict[str, Any]:
    """Revision of the code and whether files differ from it; None for both where git or the repository is missing."""
    root = Path(reference.__file__).resolve().parent

    def git(*arguments: str) -> str | None:
        try:
            answer = subprocess.run(
                ["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return answer.stdout.strip() if answer.returncode == 0 else None

    status = git("status", "--porcelain", "--", str(root))
    return {"revision": git("rev-parse", "HEAD"), "dirty": None if status is None else bool(status)}


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    if torch.version.cuda is not None:
        found["cuda"] = torch.version.cuda
    return found


def _device() -> str:
    device = idist.device()
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else str(device)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _parent_command() -> str | None:
    """The launcher: the parent of this process, or of the supervisor's `rank.py` between them."""
    parent = psutil.Process().parent()
    try:
        if parent is not None and any(word.endswith("supervise/rank.py") for word in parent.cmdline()[:2]):
            parent = parent.parent()
        return None if parent is None else shlex.join(parent.cmdline())
    except psutil.Error:
        return None
