"""Run a recorded run again and say whether the same came out: `python -m reference.cifar10.reproduce RUN [OTHER]`.

    make reproduce RUN=output-cifar10/resnet18_backend-gloo-2_20260102-030405

RUN is a run directory. It is started again from its manifest and configuration, with the same launcher, number of processes
and threads, and with its own output under `<RUN>/../reproductions`. What differs between then and now (code, versions, data,
machine) is said first, because it is where a difference in the result comes from. With OTHER nothing is started: the two
run directories are compared (for runs of several nodes, which this program can't start).

Exit code: 0 bit-identical or within tolerance, 1 different, 2 the run can't be repeated here.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import reference
from reference.cifar10.options import OptionError

# Relative difference up to which a loss curve counts as the same training with other rounding: a few hundred float32
# roundings (1.2e-7 each) on the way. A different order of samples, seed or augmentation differs by percents.
TOLERANCE = 1e-4
_TIMING = ("images/s", "throughput")  # measured, not computed
_LAUNCHERS = {"torchrun": "torchrun", "horovod": "horovodrun", "openmpi": "mpirun"}
_OURS = ("output_path", "backend", "nproc_per_node", "threads")


def main(argv: Sequence[str]) -> int:
    """Repeat or compare; the exit code."""
    if not 1 <= len(argv) <= 2 or argv[0].startswith("-"):
        refuse("usage: python -m reference.cifar10.reproduce RUN_DIRECTORY [OTHER_RUN_DIRECTORY]")
    folder = Path(argv[0])
    try:
        recorded = read_run(folder)
        if len(argv) == 2:
            other = Path(argv[1])
            facts = read_run(other)["manifest"]
        else:
            facts = facts_now(recorded)
    except OptionError as error:
        refuse(str(error))
    for line in differences(comparable(recorded["manifest"]), comparable(facts)):
        print(line)
    if len(argv) == 1:
        try:
            other = run_again(folder, recorded)
        except OptionError as error:
            refuse(str(error))
    verdict, same = compare(folder, other)
    print(verdict)
    return 0 if same else 1


def read_run(folder: Path) -> dict[str, Any]:
    """The JSON files of a run directory by name. OptionError if it isn't one, or the run did not come to an end."""
    parts = {}
    for name in ("config", "manifest", "result"):
        path = folder / f"{name}.json"
        try:
            parts[name] = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise OptionError(f"{folder} is no run directory: {path.name}: {error.strerror}") from None
        except ValueError:
            raise OptionError(f"{path} is not JSON") from None
    if not (folder / "events.jsonl").is_file():
        raise OptionError(f"{folder} has no events.jsonl: there is nothing to compare with")
    return parts


def facts_now(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest of this machine, code and data would say."""
    from reference.cifar10 import datasets, manifest

    config = recorded["config"]
    path = Path(recorded["manifest"]["data"]["path"])
    try:
        datasets.prepare(config["dataset"], path)
        images = datasets.load(config["dataset"], path)
    except datasets.DataError as error:
        raise OptionError(str(error)) from None
    facts: dict[str, Any] = manifest.of_this_machine()
    return {**facts, "data": {"checksum": images.checksum}}


def comparable(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a manifest that a result may depend on, by a name that a person understands."""
    host = facts["host"]
    flat = {f"{name} version": value for name, value in facts["versions"].items()}
    flat |= {"git revision": facts["git"]["revision"], "uncommitted changes": facts["git"]["dirty"]}
    flat |= {
        "data checksum": facts["data"]["checksum"],
        "processor": host["processor"],
        "cores": host["cores"],
    }
    return flat


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """One line for each fact that differs."""
    found = False
    for name in sorted({*then, *now}):
        if then.get(name) != now.get(name):
            found = True
            yield f"differs: {name}: {then.get(name)} then, {now.get(name)} now"
    if then.get("uncommitted changes"):
        yield "note: the recorded run had uncommitted changes, which no revision can bring back"
    if not found:
        yield "code, versions, data and machine are the same"


def run_again(folder: Path, recorded: Mapping[str, Any]) -> Path:
    """Start the recorded run anew and wait for it; its run directory.

    Raises:
        OptionError: it ran on several nodes, or the run fails.
    """
    setting = recorded["manifest"]["distributed"]
    if setting["nnodes"] != 1:
        raise OptionError(
            f"the run had {setting['nnodes']} nodes: start it there again ({recorded['manifest']['command']}) and give "
            "its run directory as the second argument"
        )
    output = folder.absolute().parent / "reproductions"
    before = set(output.glob("*/result.json"))
    command, env = command_of(recorded, output)
    print(f"running: {shlex.join(command)}", flush=True)
    root = Path(reference.__file__).resolve().parents[1]
    path = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    where = recorded["manifest"]["working_directory"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), **env}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    done = subprocess.run(command, env=env, cwd=where if os.path.isdir(where) else None)
    made = sorted(set(output.glob("*/result.json")) - before)
    if not made:
        raise OptionError(f"the run failed with exit code {done.returncode}, before it made a run directory")
    return made[-1].parent


def command_of(recorded: Mapping[str, Any], output: Path) -> tuple[list[str], dict[str, str]]:
    """The command that repeats a recorded run on this machine, and the variables that its launcher reads."""
    from reference.cifar10.config import Config

    setting, launcher = recorded["manifest"]["distributed"], recorded["manifest"]["launcher"]
    config = Config(**recorded["config"])
    options = {name: value for name, value in config.changed().items() if name not in _OURS}
    options |= {"output_path": output, "threads": setting["ranks"][0]["threads"]}
    if setting["backend"] is not None:
        options["backend"] = setting["backend"]
    program = ["-m", "reference.cifar10", "run"]
    env = {"NP": str(setting["world_size"])}
    name = _LAUNCHERS.get(launcher["name"])
    if name == "torchrun" and "torch.distributed.launch" in (launcher["command"] or ""):
        name = "torch_distributed_launch"
    if name is None and setting["world_size"] > 1:  # spawn; and Slurm, whose job is over
        options["nproc_per_node"] = setting["world_size"]
    flags = [f"--{key}={value}" for key, value in options.items()]
    if name is None:
        return [sys.executable, *program, *flags], env
    root = Path(reference.__file__).resolve().parents[1]
    return [str(root / "launchers" / f"{name}.sh"), *program, *flags], env


def compare(first: Path, second: Path) -> tuple[str, bool]:
    """What two run directories have in common: the verdict in one line, and whether they count as the same."""
    ours, theirs = scalars(first), scalars(second)
    missing = [key for key in ours if key not in theirs] + [key for key in theirs if key not in ours]
    if missing:
        event, step, name = missing[0]
        return f"different: only one run has {name!r} of {event} at step {step}", False
    apart = [(key, _distance(ours[key], theirs[key])) for key in ours]
    beyond = next(((key, by) for key, by in apart if by > TOLERANCE), None)
    if beyond is not None:
        (event, step, name), by = beyond
        return (
            f"different from {event} step {step} on: {name} differs by {by:.2g} (tolerance {TOLERANCE:g})",
            False,
        )
    weights = _weights_apart(first, second)
    largest = max([by for _, by in apart], default=0.0)
    if largest == 0.0 and weights == 0.0:
        return f"bit-identical: {len(ours)} logged values and the last checkpoint's parameters", True
    since = next((f"{key[0]} step {key[1]}" for key, by in apart if by), "the last checkpoint")
    text = f"within tolerance: logged values differ by {largest:.2g} at most (tolerance {TOLERANCE:g}), from {since} on"
    return f"{text}; parameters of the last checkpoint by {weights:.2g}", True


def scalars(folder: Path) -> dict[tuple[str, int, str], float]:
    """Every computed value of events.jsonl, by event, step and name."""
    values: dict[tuple[str, int, str], float] = {}
    for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for name, value in record.get("metrics", {}).items():
            if name not in _TIMING:
                values[record["event"], record["step"], name] = float(value)
    return values


def _distance(a: float, b: float) -> float:
    """Relative difference; 0 only for the same bits."""
    return 0.0 if a == b else abs(a - b) / max(abs(a), abs(b))


def _weights_apart(first: Path, second: Path) -> float:
    """Largest difference of a parameter or buffer in the newest checkpoints, relative to the tensor's largest value."""
    from reference.cifar10.resuming import newest_first
    from reference.handlers import load_checkpoint

    ours, theirs = (load_checkpoint(newest_first(folder)[0])["model"] for folder in (first, second))
    apart = 0.0
    for name, tensor in ours.items():
        difference = (tensor.double() - theirs[name].double()).abs().max().item()
        apart = max(apart, difference / max(tensor.double().abs().max().item(), 1e-30))
    return apart


def refuse(message: str) -> NoReturn:
    """Say in one line what is wrong, and exit with 2."""
    print(f"error: {message}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
