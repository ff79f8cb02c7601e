"""How this process was started: the variables seen, the layout derived from them, what contradicts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from reference.doctor.finding import NOTE, OK, PROBLEM, Finding
from reference.idist import environment
from reference.idist.environment import Layout

SECTION = "launch"
_SETTINGS = re.compile(
    r"(NCCL|GLOO|UCX|FI|OMP|MKL|KMP|TORCH|PYTORCH|CUDA|HOROVOD|PJRT|XLA|TPU|CPU)_\w+"
    r"|LD_LIBRARY_PATH|LD_PRELOAD|PYTHONPATH|PYTHONHASHSEED"
)
# Of a rank or of its launcher: no settings, or none that ranks should share.
_OWN = re.compile(
    r"CUDA_VISIBLE_DEVICES|\w+_SOCKET_IFNAME|HOROVOD_(GLOO_IFACE|HOSTNAME|CONTROLLER|CPU_OPERATIONS|SECRET\w*|GLOO_RENDEZVOUS\w*|RANK|SIZE|\w+_(RANK|SIZE))"
)
_SECRET = re.compile(r"SECRET|TOKEN|PASSWORD|CREDENTIAL|_KEY")
_SLOW = {
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
}
_UNKNOWN = {"PMI_RANK": "MPICH or Intel MPI", "PMIX_RANK": "PMIx", "MV2_COMM_WORLD_RANK": "MVAPICH"}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Facts about the launcher."""

    variables: dict[str, str]  # those that tell the layout
    layout: Layout | None  # None: nobody launched this process
    contradiction: str | None
    settings: dict[str, str]  # those that change how the libraries work
    visible_devices: str | None
    unknown: str | None  # a launcher that idist does not read
    cores: float  # that this process can use


def look(environ: Mapping[str, str], cores: float) -> Launch:
    """Facts about the launcher of a process with this environment."""
    layout, contradiction = None, None
    try:
        layout = environment.detect(environ)
    except ValueError as error:
        contradiction = str(error)
    variables = environment.variables_seen(environ)
    settings = {
        name: value
        for name, value in sorted(environ.items())
        if _SETTINGS.fullmatch(name)
        and not _OWN.fullmatch(name)
        and not _SECRET.search(name)
        and name not in variables
    }
    return Launch(
        variables=variables,
        layout=layout,
        contradiction=contradiction,
        settings=settings,
        visible_devices=environ.get("CUDA_VISIBLE_DEVICES"),
        unknown=next((name for name in _UNKNOWN if environ.get(name)), None),
        cores=cores,
    )


def judge(facts: Launch) -> list[Finding]:
    """One finding for each fact."""
    return [_layout(facts), *_variables(facts), *_threads(facts), *_settings(facts)]


def _finding(name: str, value: object, text: str, level: str = OK, shared: bool = True) -> Finding:
    return Finding(section=SECTION, name=name, value=value, text=text, level=level, shared=shared)


def _layout(facts: Launch) -> Finding:
    layout = facts.layout
    if facts.contradiction is not None:
        return _finding("layout", None, f"contradiction: {facts.contradiction}", PROBLEM, shared=False)
    if layout is None and facts.unknown is not None:
        launcher = _UNKNOWN[facts.unknown]
        bites = (
            f"{facts.unknown} is set ({launcher}), which idist does not read: every process would train alone"
        )
        mend = "start with Open MPI's mpirun, srun or torchrun, or unset it"
        return _finding("layout", None, f"{bites}: {mend}", NOTE, shared=False)
    if layout is None:
        inside = "; in a Slurm job, where srun starts the ranks" if "SLURM_JOB_ID" in facts.variables else ""
        return _finding("layout", None, f"one process: no launcher's variables{inside}", shared=False)
    place = f"local rank {layout.local_rank} of {_known(layout.nproc_per_node)}"
    node = f"node {_known(layout.node_rank)} of {_known(layout.nnodes)}"
    text = f"rank {layout.rank} of {layout.world_size}, {place}, {node}, by the variables of {layout.source}"
    if layout.master_addr:
        text += f", meeting at {layout.master_addr}:{_known(layout.master_port)}"
    return _finding("layout", asdict(layout), text, shared=False)


def _known(number: int | None) -> str:
    return "?" if number is None else str(number)


def _variables(facts: Launch) -> Iterator[Finding]:
    if facts.variables:
        text = " ".join(f"{name}={value}" for name, value in facts.variables.items())
        yield _finding("variables", facts.variables, text, shared=False)
    if facts.visible_devices is not None:
        value = facts.visible_devices
        yield _finding("CUDA_VISIBLE_DEVICES", value, value or "empty: it hides all GPUs", shared=False)


def _threads(facts: Launch) -> Iterator[Finding]:
    processes = (facts.layout.nproc_per_node or 1) if facts.layout is not None else 1
    text = facts.settings.get("OMP_NUM_THREADS")
    if text is None:
        value = "not set"
        if processes > 1:
            bites = (
                f"not set: {processes} processes each start a thread for every core and slow each other down"
            )
            yield _finding("OMP_NUM_THREADS", value, f"{bites}: set it to {_share(facts, processes)}", NOTE)
        else:
            yield _finding("OMP_NUM_THREADS", value, "not set: a process uses all its cores")
        return
    numbers = re.fullmatch(r"[1-9][0-9]*(,[1-9][0-9]*)*", text)
    if numbers is None:
        yield _finding(
            "OMP_NUM_THREADS", text, f"{text!r} is no number, and is ignored: set it to 1 or more", NOTE
        )
        return
    threads = int(text.split(",")[0])
    if processes > 1 and threads > 1 and threads * processes > facts.cores:
        bites = f"{text}: with {processes} processes more threads than the {facts.cores:g} cores"
        yield _finding("OMP_NUM_THREADS", text, f"{bites}: set it to {_share(facts, processes)}", NOTE)
    else:
        yield _finding("OMP_NUM_THREADS", text, text)


def _share(facts: Launch, processes: int) -> int:
    return max(1, int(facts.cores // processes))


def _settings(facts: Launch) -> Iterator[Finding]:
    for name, value in facts.settings.items():
        if name == "OMP_NUM_THREADS":
            continue
        slow = _SLOW.get(name) == value
        text = f"{value}: for finding faults; it makes training slow: unset it" if slow else value
        yield _finding(name, value, text, NOTE if slow else OK)
