"""The self-test of an image: versions, a collective of two processes on each backend, and ten training steps.

IMAGE selftest

Ends with 0 when everything works, else with 1, after all parts have run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import versions
from record import RECORD

ROOT = Path(__file__).parents[2]
PROGRAM = str(Path(__file__).with_name("collective.py"))
TIMEOUT = 300.0  # seconds for one part
STEPS, BATCH = 10, 16

# what starts two processes of a backend; the launcher of nccl is torchrun too
LAUNCHERS = {"gloo": "torchrun", "nccl": "torchrun", "horovod": "horovodrun", "xla-tpu": "spawn"}


def backends(family: str) -> list[str]:
    """The backends that this image has and this machine can run, the image's own first."""
    if family == "xla":
        return ["xla-tpu"]
    found = ["horovod", "gloo"] if family == "nccl-horovod" else ["gloo"]
    import torch  # not before there is something to ask it

    return ["nccl", *found] if torch.cuda.device_count() >= 2 and family == "nccl-horovod" else found


def launch(backend: str, *program: str) -> str:
    """Run the program in two processes; what they print.

    Raises:
        RuntimeError: it failed, or did not end in time; with its last lines.
    """
    command = [str(ROOT / "launchers" / f"{LAUNCHERS[backend]}.sh"), *program, f"--backend={backend}"]
    simulated = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2"} if backend == "xla-tpu" else {}
    try:
        result = subprocess.run(
            command,
            env={**simulated, **os.environ, "NP": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"did not end within {TIMEOUT:g} seconds: {_end(str(error.output))}") from None
    if result.returncode != 0:
        raise RuntimeError(f"exit code {result.returncode}: {_end(result.stdout)}")
    return result.stdout


def check_versions(locks: list[str]) -> str:
    """Every package of the locks, and nothing that an image for running must not have.

    Raises:
        RuntimeError: naming what differs.
    """
    if problems := versions.problems(locks) + versions.unwanted():
        raise RuntimeError("; ".join(problems))
    return f"as in {', '.join(locks)}"


def check_collective(backend: str) -> str:
    """Two processes add up their ranks.

    Raises:
        RuntimeError: as `launch`, or the sum is wrong.
    """
    output = launch(backend, PROGRAM)
    if "sum 3.0 of 2 processes" not in output:
        raise RuntimeError(f"no right sum: {_end(output)}")
    return "1 + 2 = 3"


def check_training(backend: str) -> str:
    """Ten steps of the trainer, in two processes, on the images that come with scikit-learn.

    Raises:
        RuntimeError: as `launch`, or the run's own result tells something else.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = ("--dataset=digits", "--model=resnet18_cifar", "--num_epochs=1", f"--batch_size={BATCH}")
        size = (f"--max_train_samples={STEPS * BATCH}", "--max_eval_samples=16", f"--output_path={folder}")
        launch(backend, "-m", "reference.cifar10", "run", *options, *size)
        (run,) = Path(folder).iterdir()
        result = json.loads((run / "result.json").read_text(encoding="utf-8"))
        manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    if (manifest["image"] or {}).get("revision") is None:
        raise RuntimeError("the manifest of the run does not tell of the image")
    if result["iteration"] != STEPS:
        raise RuntimeError(f"the run made {result['iteration']} steps")
    return f"{STEPS} steps of {BATCH} images"


def _end(output: str) -> str:
    return "\n".join(["", *output.splitlines()[-25:]])


def main() -> int:
    """Run all parts and say how each ended; the exit code."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    print(
        f"selftest of {record['family']}, revision {record['revision']}, on {record['base_image']}",
        flush=True,
    )
    mine = backends(record["family"])
    parts: dict[str, Callable[[], str]] = {"versions": lambda: check_versions(record["locks"])}
    for backend in mine:
        parts[f"collective, {backend}"] = lambda backend=backend: check_collective(backend)
    parts[f"training, {mine[0]}"] = lambda: check_training(mine[0])
    failed = 0
    for name, part in parts.items():
        try:
            print(f"ok      {name}: {part()}", flush=True)
        except RuntimeError as error:
            failed += 1
            print(f"FAILED  {name}: {error}", flush=True)
    if "nccl" not in mine and record["family"] == "nccl-horovod":
        print("not run collective, nccl: it needs two GPUs")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
