"""Images a second of this trainer, beside a plain loop without loader, and beside the peers where their packages are there."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import Any

from benchmarks.on_gpu.loop import images_per_second
from benchmarks.on_gpu.rows import Given, Rows, arguments
from benchmarks.on_gpu.trainer import QUICK, train

BATCH_SIZE = 512
EPOCHS = 2
IMAGES = 25_600
WORKERS = 8  # loader processes of a peer
PEERS = {"plain_torch": ("torchvision",), "ignite_cifar10": ("torchvision", "ignite", "tensorboard")}


def main() -> None:
    """The trainer first, then what it is compared with."""
    given = arguments()
    rows = Rows("speed, fp32", given)
    options = {"model": "resnet18_cifar", "batch_size": BATCH_SIZE, "num_epochs": EPOCHS, "max_train_samples": IMAGES, "max_eval_samples": 1000, "learning_rate": 0.1}  # fmt: skip
    result = train(given, "speed", **options)
    ours = result["throughput_images_per_s"]
    note = f"resnet18_cifar, batch {BATCH_SIZE}; {100 * result['input_share']:.1f} % of a step for its batch"
    rows.add("this trainer", f"{ours:,.0f} images/s", note)
    batch_size, seconds = (16, 0.2) if given.quick else (BATCH_SIZE, 3.0)
    alone = images_per_second(given.device, quick=given.quick, batch_size=batch_size, seconds=seconds)
    rows.add(
        "plain loop on one batch, no loader",
        f"{alone:,.0f} images/s",
        f"this trainer: {ours / alone:.2f} of it",
    )
    for name, packages in PEERS.items():
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            rows.add(f"benchmarks.peers.{name}", "not measured", f"not installed: {', '.join(missing)}")
            continue
        theirs, problem = peer(given, name, options)
        if theirs is None:
            rows.add(f"benchmarks.peers.{name}", "failed", problem, ok=False)
            continue
        note = f"this trainer: {ours / theirs:.2f} of it; {WORKERS} loader processes"
        rows.add(f"benchmarks.peers.{name}", f"{theirs:,.0f} images/s", note)


def peer(given: Given, name: str, options: dict[str, Any]) -> tuple[float | None, str]:
    """Images a second of a peer in a process of its own; or None, and the last line of what it said."""
    out = given.folder / name
    if given.quick:
        options = {**options, **{key: QUICK[key] for key in options if key in QUICK}}
    command = [
        *(
            sys.executable,
            "-m",
            f"benchmarks.peers.{name}",
            f"--dataset={given.dataset}",
            f"--data_path={given.data_path}",
        ),
        *(f"--{key}={value}" for key, value in options.items()),
        *(f"--num_workers={2 if given.quick else WORKERS}", f"--output_path={out}"),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout, flush=True)
    if done.returncode:
        return None, (done.stdout.strip().splitlines() or ["it said nothing"])[-1]
    found: float = json.loads((out / "result.json").read_text(encoding="utf-8"))["throughput_images_per_s"]
    return found, ""


if __name__ == "__main__":
    main()
