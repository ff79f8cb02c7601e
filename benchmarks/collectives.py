"""idist's collectives beside those of the libraries below it."""

from __future__ import annotations

import importlib.util
import json
import shutil

from benchmarks.results import Row
from benchmarks.starting import Bench, shown
from benchmarks.worlds.sizes import SIZES

TITLE = "Collectives"
TEXT = (
    "Two processes on one machine, one thread each. Within each start, blocks of calls of `idist` and of the library take turns; a "
    "call's time is its block's mean on the slower rank, and both sides' results are compared first. idist's collectives leave their "
    "input as it is, so the other side of all_reduce and broadcast is `clone()` and the library's own call, that of all_gather "
    "`all_gather_single` (`all_gather_into_tensor` in older versions) into new memory. Horovod's calls have a name, without which it "
    "negotiates each anew. A number is reduced exactly by idist (floats in rank order, ints of any size) by gathering; the other side "
    "puts it into a tensor, reduces that and reads it back. Strings and dictionaries stand against `all_gather_object`. "
    "`idist.barrier` on gloo is the monitored one, which names the ranks that do not come; `dist.barrier` does not. The targets are "
    "meant for what takes the time in training, tensors of 1 MiB and more; of the small ones a call of Python is a good part."
)
_PROGRAM = "benchmarks.worlds.collectives"
_LAUNCHERS = {"gloo": "torchrun", "horovod": "horovodrun"}
_LIBRARIES = {"gloo": "torch.distributed", "horovod": "Horovod"}
_PROCESSES = 2


def measure(bench: Bench) -> list[Row]:
    """Start the worlds of each backend in turns."""
    backends = [name for name in _LAUNCHERS if name != "horovod" or _has_horovod()]
    if "horovod" not in backends:
        bench.say("horovod is not installed here: its rows are left out")
    found = bench.in_turns(*[lambda name=name: _calls(bench, name) for name in backends])
    return [row for name, starts in zip(backends, found, strict=True) for row in _rows(name, starts)]


def _has_horovod() -> bool:
    return importlib.util.find_spec("horovod") is not None and shutil.which("horovodrun") is not None


def _calls(bench: Bench, backend: str) -> dict[str, dict[str, list[float]]]:
    """Of one start: for each case and side the microseconds of each block, on the slower rank."""
    out = bench.new_folder(f"{backend}-output")
    quick = ("--quick", "--blocks=2") if bench.quick else ()
    bench.start(
        _LAUNCHERS[backend], _PROCESSES, "-m", _PROGRAM, f"--backend={backend}", f"--output={out}", *quick,
        env={"OMP_NUM_THREADS": "1"}, name=backend,
    )  # fmt: skip
    ranks = [
        json.loads((out / f"rank-{rank}.json").read_text(encoding="utf-8")) for rank in range(_PROCESSES)
    ]
    return {
        case: {
            side: [max(block) for block in zip(*(rank[case][side] for rank in ranks), strict=True)]
            for side in ("ours", "theirs")
        }
        for case in ranks[0]
    }


def _rows(backend: str, starts: list[dict[str, dict[str, list[float]]]]) -> list[Row]:
    return [
        Row(
            name=f"{backend}: {case}",
            unit="us",
            ours=[start[case]["ours"] for start in starts],
            theirs=[start[case]["theirs"] for start in starts],
            what="idist",
            than=_LIBRARIES[backend],
            at_most=_target(case),
            turns=True,
            command=shown(
                _LAUNCHERS[backend], _PROCESSES, "-m", _PROGRAM, f"--backend={backend}", "--output=<folder>"
            ),
        )
        for case in starts[0]
    ]


def _target(case: str) -> float | None:
    """1.1 for large tensors; for messages that the library has no better way; the rest is for information."""
    kind, _, size = case.partition(", ")
    if kind in ("all_reduce", "all_gather", "broadcast"):
        return 1.1 if SIZES[size] >= 2**20 else 1.5
    return 1.1 if kind.startswith("all_gather of") else None
