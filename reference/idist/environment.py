"""Which process of which world is this?  Environment variables in, a :class:`Layout` out.

The layout of processes is decided here and nowhere else.  Everything is a pure function of the mapping it is
given (``os.environ`` in production, a recorded one in tests); the one program that may run is ``scontrol show
hostnames``, under Slurm and where the mapping's ``PATH`` has it.

When several launchers are visible, the inner one wins: torchrun, Horovod, Open MPI, Slurm, in this order.
The outer one only carried it to its node: ``srun torchrun`` starts one agent per node, and ``mpirun`` in a
Slurm job starts its daemons as a step of their own, whose ``SLURM_PROCID`` is no rank of ours.  Empty
variables count as not set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from reference.idist.hostlist import hostnames

# For each source, innermost first: what it tells -> its variables; of several, the first that is set wins.
_TORCH = {
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "world_size": "WORLD_SIZE",
    "nproc_per_node": "LOCAL_WORLD_SIZE",
    "node_rank": "GROUP_RANK",
    "nnodes": "GROUP_WORLD_SIZE",
}
_MPI = {"rank": "RANK", "local_rank": "LOCAL_RANK", "world_size": "SIZE", "nproc_per_node": "LOCAL_SIZE"}
_NAMES = {
    "torchrun": {**_TORCH, "run": "TORCHELASTIC_RUN_ID"},
    # HOROVOD_CROSS_RANK and _SIZE count only the nodes that have a process of this local rank (Horovod 0.28,
    # get_host_assignments): with 3 + 1 processes they tell local rank 1 that there is one node.
    "horovod": {field: f"HOROVOD_{name}" for field, name in _MPI.items()},
    # OMPI_COMM_WORLD_NODE_RANK numbers the processes of a node: it is not the rank of the node.
    "openmpi": {field: f"OMPI_COMM_WORLD_{name}" for field, name in _MPI.items()},
    "slurm": {
        "rank": "SLURM_PROCID",
        "local_rank": "SLURM_LOCALID",
        "world_size": "SLURM_STEP_NUM_TASKS SLURM_NTASKS",
        "nproc_per_node": "SLURM_STEP_TASKS_PER_NODE SLURM_TASKS_PER_NODE",
        "node_rank": "SLURM_NODEID",
        "nnodes": "SLURM_STEP_NUM_NODES SLURM_NNODES",
        "hosts": "SLURM_STEP_NODELIST SLURM_JOB_NODELIST",
        "job": "SLURM_JOB_ID SLURM_JOBID",
        "step": "SLURM_STEP_ID SLURM_STEPID",
    },
    "manual": _TORCH,
}
_OTHER_NAMES = "MASTER_ADDR MASTER_PORT HOROVOD_CROSS_RANK HOROVOD_CROSS_SIZE"
_REMEDIES = {
    "torchrun": "start the program with torchrun, or unset TORCHELASTIC_RUN_ID",
    "manual": "set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for every process, or none",
    "slurm": "start the program with srun, and pass every SLURM_* variable on, also into a container",
    "openmpi": "start the program with mpirun, or unset OMPI_COMM_WORLD_*",
    "horovod": "start the program with horovodrun, or unset HOROVOD_RANK, HOROVOD_SIZE and HOROVOD_LOCAL_*",
}
_RESERVED_STEPS = 0xFFFFFFF0  # from here up Slurm numbers batch shells, interactive shells and the like
# Ports of Slurm steps: below torchrun's default (29500) and Linux's ephemeral ports (from 32768).  The count
# is prime and the stride close to its golden section, so jobs with close ids get ports that lie far apart.
_PORT_BASE, _PORT_COUNT, _PORT_STRIDE = 12000, 17393, 10749


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where this process stands in its world.  ``None``: this environment does not tell."""

    rank: int
    local_rank: int
    world_size: int
    nproc_per_node: int | None  # processes on this node; other nodes may have other numbers
    nnodes: int | None
    node_rank: int | None
    master_addr: str | None  # where rank 0 listens
    master_port: int | None
    source: str  # "torchrun", "horovod", "openmpi", "slurm" or "manual"


def detect(environ: Mapping[str, str]) -> Layout | None:
    """Return the layout that ``environ`` describes, or ``None`` for a process that nobody launched.

    The shell of ``sbatch`` or ``salloc`` is such a single process, although Slurm sets most of its variables
    there: only ``srun`` starts a world.  ``MASTER_ADDR`` and ``MASTER_PORT`` alone start none either.

    ``RANK`` and its like, set by hand beside a launcher's variables, must agree with them.  But a Slurm step
    of one task (``srun --pty bash``) may be the shell where a world is started by hand: there they win.

    In a world set by hand ``LOCAL_RANK`` may be missing.  It is then ``RANK % LOCAL_WORLD_SIZE``, or ``RANK``
    if that is missing too: all processes are taken to share one machine.  A loopback ``MASTER_ADDR`` makes it
    certain; otherwise it is a guess: set ``LOCAL_RANK`` on several machines.

    Raises ``ValueError``, naming variables and values, when any are missing, malformed or contradictory.
    """
    torchrun, horovod, openmpi, slurm, hand = (_Reader(environ, source) for source in _NAMES)
    if torchrun.name("run"):
        return _torchrun(torchrun)
    launched = _mpi_like(horovod) or _mpi_like(openmpi) or _slurm(slurm)
    if launched is None:
        by_hand = any(map(hand.name, ("rank", "world_size", "local_rank", "nproc_per_node")))
        return _manual(hand) if by_hand else None
    if launched.source == "slurm" and launched.world_size == 1 and hand.name("rank"):
        return _manual(hand)
    for field, name in _TORCH.items():
        ours, theirs = hand.number(field), getattr(launched, field)
        if ours is not None and theirs is not None and ours != theirs:
            said = _Reader(environ, launched.source).said(field, theirs)
            raise ValueError(f"{hand.said(field)} contradicts the launcher's {said}; unset {name}")
    return launched


def one_node(rank: int, world_size: int, source: str) -> Layout:
    """Return a layout with all processes on one node: what is taken to be true while nothing tells."""
    return Layout(
        rank=rank,
        local_rank=rank,
        world_size=world_size,
        nproc_per_node=world_size,
        nnodes=1,
        node_rank=0,
        master_addr=None,
        master_port=None,
        source=source,
    )


def place(layout: Layout, hosts: Sequence[str]) -> Layout:
    """Return ``layout`` with what the environment does not tell worked out from the host of every rank."""
    here = hosts[layout.rank]
    neighbours = [rank for rank, host in enumerate(hosts) if host == here]
    nodes = list(dict.fromkeys(hosts))
    local_rank = layout.local_rank if layout.source == "openmpi" else neighbours.index(layout.rank)
    return replace(
        layout,
        local_rank=local_rank,
        nproc_per_node=len(neighbours),
        nnodes=len(nodes),
        node_rank=nodes.index(here),
    )


def variables_seen(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those variables of ``environ`` that :func:`detect` may look at, sorted by name."""
    names = " ".join([_OTHER_NAMES, *(group for fields in _NAMES.values() for group in fields.values())])
    return {name: environ[name] for name in sorted(set(names.split())) if name in environ}


def slurm_port(job_id: int, step_id: int) -> int:
    """Return the port where rank 0 of a Slurm step listens: every rank knows it without communication.

    Different steps of a job get different ports (17393 there are), and so do the same steps of nearby jobs.
    """
    return _PORT_BASE + (job_id * _PORT_STRIDE + step_id) % _PORT_COUNT


@dataclass(frozen=True)
class _Reader:
    """The variables of one source, by field, with errors that quote them."""

    environ: Mapping[str, str]
    source: str

    def name(self, field: str) -> str | None:
        names = _NAMES[self.source].get(field, "").split()
        return next((name for name in names if self.environ.get(name)), None)

    def said(self, field: str, value: int | None = None) -> str:
        """Return ``NAME=text``, or ``field=value`` for what was worked out instead of read."""
        name = self.name(field)
        return f"{name}={self.environ[name]}" if name else f"{field}={value}"

    def text(self, field: str) -> str:
        name = self.name(field)
        if name is None:
            raise self.missing(_NAMES[self.source][field].replace(" ", " or "))
        return self.environ[name]

    def needed(self, field: str) -> int:
        text = self.text(field)
        if not re.fullmatch(r"[0-9]+", text):
            raise self.error(f"{self.said(field)} is not an integer of at least 0")
        return int(text)

    def number(self, field: str) -> int | None:
        return self.needed(field) if self.name(field) else None

    def master(self, *, required: bool = False) -> tuple[str | None, int | None]:
        addr, port = self.environ.get("MASTER_ADDR") or None, self.environ.get("MASTER_PORT") or None
        if required and not (addr and port):
            raise self.missing("MASTER_PORT" if addr else "MASTER_ADDR")
        if port and not (re.fullmatch(r"[0-9]{1,5}", port) and 1 <= int(port) <= 65535):
            raise ValueError(f"MASTER_PORT={port} is not a port; set it to a free one, 1024 to 65535")
        return addr, int(port) if port else None

    def missing(self, names: str) -> ValueError:
        present = [self.said(field) for field in _NAMES[self.source] if self.name(field)]
        return self.error(f"{names} is not set, but {', '.join(present)}")

    def error(self, what: str) -> ValueError:
        return ValueError(f"{what}; {_REMEDIES[self.source]}")

    def layout(
        self,
        nproc_per_node: int | None,
        node_rank: int | None,
        nnodes: int | None,
        master: tuple[str | None, int | None],
        local_rank: int | None = None,
    ) -> Layout:
        """Return the layout, or raise ``ValueError`` when its numbers cannot all be true."""
        layout = Layout(
            rank=self.needed("rank"),
            local_rank=self.needed("local_rank") if local_rank is None else local_rank,
            world_size=self.needed("world_size"),
            nproc_per_node=nproc_per_node,
            nnodes=nnodes,
            node_rank=node_rank,
            master_addr=master[0],
            master_port=master[1],
            source=self.source,
        )
        for field, size in ("rank", "world_size"), ("local_rank", "nproc_per_node"), ("node_rank", "nnodes"):
            value, limit = getattr(layout, field), getattr(layout, size)
            if limit is not None and value >= limit:
                raise self.error(f"{self.said(field, value)} must be less than {self.said(size, limit)}")
        if nproc_per_node is None:
            return layout
        at_least = nproc_per_node + (nnodes or 1) - 1
        at_most = nproc_per_node if nnodes == 1 else layout.world_size
        if not at_least <= layout.world_size <= at_most:
            nodes = f" and {self.said('nnodes', nnodes)}" if nnodes else ""
            said = self.said("nproc_per_node", nproc_per_node)
            raise self.error(f"{self.said('world_size')} does not fit {said}{nodes}")
        return layout


def _torchrun(read: _Reader) -> Layout:
    nproc, node_rank, nnodes = map(read.needed, ("nproc_per_node", "node_rank", "nnodes"))
    return read.layout(nproc, node_rank, nnodes, read.master(required=True))


def _mpi_like(read: _Reader) -> Layout | None:
    """Read Horovod's or Open MPI's variables: they do not tell the nodes, except when there is only one."""
    if not read.name("rank") and not read.name("world_size"):
        return None
    nproc = read.needed("nproc_per_node")
    node_rank, nnodes = (0, 1) if nproc == read.needed("world_size") else (None, None)
    return read.layout(nproc, node_rank, nnodes, read.master())


def _manual(read: _Reader) -> Layout:
    rank, world_size, master = read.needed("rank"), read.needed("world_size"), read.master(required=True)
    nproc, node_rank, nnodes = map(read.number, ("nproc_per_node", "node_rank", "nnodes"))
    if node_rank is not None or nnodes is not None:
        nproc, node_rank, nnodes = map(read.needed, ("nproc_per_node", "node_rank", "nnodes"))
    else:
        if nproc is None and re.fullmatch(r"localhost|127(\.[0-9]+){3}|::1", master[0] or ""):
            nproc = world_size
        if nproc == world_size:
            node_rank, nnodes = 0, 1
    local_rank = read.number("local_rank")
    if local_rank is None:
        local_rank = rank % nproc if nproc else rank
    return read.layout(nproc, node_rank, nnodes, master, local_rank)


def _slurm(read: _Reader) -> Layout | None:
    step = read.number("step")
    if step is None or step >= _RESERVED_STEPS:
        if read.number("rank"):
            raise read.error(f"{read.said('rank')}, but SLURM_STEP_ID names no step of srun")
        return None
    node_rank, nnodes = read.needed("node_rank"), read.needed("nnodes")
    counts = _tasks_per_node(read)
    if sum(counts) != read.needed("world_size") or len(counts) != nnodes:
        sizes = f"{read.said('world_size')} on {read.said('nnodes')}"
        raise read.error(f"{read.said('nproc_per_node')} does not add up to {sizes}")
    addr, port = read.master()
    master = addr or _first_host(read), port or slurm_port(read.needed("job"), step)
    return read.layout(counts[node_rank] if node_rank < nnodes else None, node_rank, nnodes, master)


def _tasks_per_node(read: _Reader) -> list[int]:
    """Return the number of tasks on each node of a step: ``"2(x2),1"`` is 2, 2, 1."""
    counts: list[int] = []
    for item in read.text("nproc_per_node").split(","):
        match = re.fullmatch(r"([0-9]+)(?:\(x([0-9]+)\))?", item)
        if match is None:
            raise read.error(f"{read.said('nproc_per_node')} is not of the form 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _first_host(read: _Reader) -> str:
    nodelist, said = read.text("hosts"), read.said("hosts")
    hosts = hostnames(nodelist, read.environ)
    if len(hosts) != read.needed("nnodes"):
        raise read.error(f"{said} has {len(hosts)} hosts, but {read.said('nnodes')}")
    if read.needed("rank") == 0 != read.needed("node_rank"):  # srun --distribution=arbitrary can do that
        place = f"{read.said('rank')} is on {read.said('node_rank')}"
        raise ValueError(f"{place}, not on the first host of {said}; set MASTER_ADDR to rank 0's host")
    return hosts[0]
