"""Parallel: one way to run a function on every rank, whether a launcher started the processes or we do."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from reference.idist import collectives, context, environment, progress
from reference.idist.backends import backend_class
from reference.idist.environment import Layout
from reference.idist.log import info


@dataclass(frozen=True, kw_only=True)
class SpawnPlan:
    """The processes to start on this node, checked."""

    backend: str
    nproc_per_node: int
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str | None = None
    master_port: int | None = None
    init_method: str | None = None
    timeout: float  # seconds
    device: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # start_method, ...

    def layout(self, local_rank: int) -> Layout:
        """The layout of one of the processes."""
        return Layout(
            rank=self.node_rank * self.nproc_per_node + local_rank,
            local_rank=local_rank,
            world_size=self.nnodes * self.nproc_per_node,
            nproc_per_node=self.nproc_per_node,
            nnodes=self.nnodes,
            node_rank=self.node_rank,
            master_addr=self.master_addr,
            master_port=self.master_port,
            source="spawn",
        )

    @property
    def join_options(self) -> dict[str, Any]:
        return {"timeout": self.timeout, "device": self.device, "init_method": self.init_method}


class Parallel:
    """Context manager that runs a function on every rank of a world.

    With ``nproc_per_node`` it starts that many processes on this node. Without, it joins the world that a launcher
    (torchrun, torch.distributed.launch, srun, mpirun, horovodrun) made, or is a world of one. With ``backend=None`` it
    is a single process.

    Args:
        backend: None, "gloo", "nccl", "mpi", "horovod" or "xla-tpu".
        nproc_per_node: number of processes to start on this node.
        nnodes: number of nodes, each of which runs this same program.
        node_rank: which of them this is, from 0.
        master_addr, master_port: where the nodes meet: a host name or address of node 0, and a free port there. One node
            needs neither.
        init_method: instead of them a ``file://`` URL on a shared file system.
        spawn_kwargs: ``timeout`` (seconds, default 600: the deadline of start-up and of every collective), ``device``,
            and when processes are started ``start_method`` ("spawn", "fork" in notebooks).

    Raises:
        ValueError: an argument that is wrong, missing, or would be ignored; before any process starts.
        RuntimeError: the backend is not installed here.
    """

    def __init__(
        self,
        backend: str | None = None,
        nproc_per_node: int | None = None,
        nnodes: int | None = None,
        node_rank: int | None = None,
        master_addr: str | None = None,
        master_port: int | None = None,
        init_method: str | None = None,
        **spawn_kwargs: Any,
    ) -> None:
        launch = {
            "nproc_per_node": nproc_per_node,
            "nnodes": nnodes,
            "node_rank": node_rank,
            "master_addr": master_addr,
            "master_port": master_port,
            "init_method": init_method,
        }
        given = {name: value for name, value in launch.items() if value is not None}
        self.backend = backend
        self._plan: SpawnPlan | None = None
        self._options: dict[str, Any] = {}
        started = environment.detect(os.environ)
        if backend is None:
            _refuse(
                {**given, **spawn_kwargs}, "has no meaning with backend=None: give a backend, or remove it"
            )
            if started is not None and started.world_size > 1:
                raise ValueError(
                    f"backend=None in a world of {started.world_size} processes ({started.source}): each would train "
                    "alone; give a backend"
                )
            return
        cls = backend_class(backend)
        if nproc_per_node is None:
            _refuse(
                given, "is for starting processes: give nproc_per_node as well, or remove it under a launcher"
            )
            self._options = context.check_options(backend, cls.options, spawn_kwargs)
        else:
            if started is not None and started.world_size > 1:
                raise ValueError(
                    f"nproc_per_node={nproc_per_node!r} inside a world of {started.world_size} processes "
                    f"({started.source}): the launcher decides how many there are; remove it"
                )
            options = context.check_options(backend, cls.spawn_options, spawn_kwargs)
            self._plan = _plan(backend, given, options)
        context.require(backend)

    def __enter__(self) -> Parallel:
        if self.backend is not None and self._plan is None:
            context.initialize(self.backend, **self._options)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.backend is not None and self._plan is None:
            context.finalize(failed=error is not None)

    def run(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run ``func(local_rank, *args, **kwargs)`` on every rank.

        Returns:
            Rank 0's value, on every rank that calls this; None (with a warning) if it can't be pickled.

        Raises:
            Exception: what ``func`` raised on this rank.
            ProcessFailed: a process that this started failed; the message ends with the first failing rank's traceback.
        """
        if self._plan is not None:
            plan = self._plan
            info(
                f"{plan.backend}: starting {plan.nproc_per_node} processes on node {plan.node_rank} of {plan.nnodes}"
            )
            return backend_class(plan.backend).spawn(plan, _Announced(func), args, kwargs)
        try:
            result = func(context.current().local_rank, *args, **kwargs)
        except Exception as error:
            _tell_torchrun(error)
            raise
        return result if context.current().world_size == 1 else _from_rank_zero(result)


def spawn(
    backend: str,
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs_dict: Mapping[str, Any] | None = None,
    nproc_per_node: int = 1,
    **kwargs: Any,
) -> Any:
    """Start ``nproc_per_node`` processes that run ``fn(local_rank, *args, **kwargs_dict)``; see `Parallel`."""
    with Parallel(backend, nproc_per_node=nproc_per_node, **kwargs) as parallel:
        return parallel.run(fn, *args, **(kwargs_dict or {}))


@dataclass(frozen=True)
class _Announced:
    """Tells a supervisor that this rank has met the others, and calls the function."""

    func: Callable[..., Any]

    def __call__(self, local_rank: int, *args: Any, **kwargs: Any) -> Any:
        backend = context.current()
        progress.report("rendezvous", rank=backend.rank, world_size=backend.world_size)
        # so that what only follows from another rank's failure is known as that
        with backend.translated("a collective of the program"):
            return self.func(local_rank, *args, **kwargs)


def _refuse(given: Mapping[str, Any], why: str) -> None:
    for name, value in given.items():
        raise ValueError(f"{name}={value!r} {why}")


def _plan(backend: str, given: dict[str, Any], options: dict[str, Any]) -> SpawnPlan:
    nproc_per_node, nnodes = (
        _count("nproc_per_node", given["nproc_per_node"]),
        _count("nnodes", given.get("nnodes", 1)),
    )
    node_rank, port = given.get("node_rank"), given.get("master_port")
    if node_rank is None and nnodes > 1:
        raise ValueError(
            f"node_rank is missing: with nnodes={nnodes} give each node its own, from 0 to {nnodes - 1}"
        )
    node_rank = 0 if node_rank is None else node_rank
    if type(node_rank) is not int or not 0 <= node_rank < nnodes:
        raise ValueError(f"node_rank={node_rank!r}: with nnodes={nnodes} it goes from 0 to {nnodes - 1}")
    address, method = given.get("master_addr"), given.get("init_method")
    if port is not None and (type(port) is not int or not 0 < port < 65536):
        raise ValueError(f"master_port={port!r}: ports go from 1 to 65535")
    if address is not None and (not isinstance(address, str) or not address):
        raise ValueError(f"master_addr={address!r}: give the host name or address of node 0")
    if method is not None:
        _refuse(
            {k: v for k, v in given.items() if k.startswith("master_")},
            "and init_method both say where to meet",
        )
        if not isinstance(method, str) or not method.startswith("file://"):
            raise ValueError(
                f"init_method={method!r}: only file:// is taken; for tcp give master_addr and master_port"
            )
    elif nnodes > 1 and (address is None or port is None):
        lacking = "master_addr" if address is None else "master_port"
        raise ValueError(
            f"{lacking} is missing: with nnodes={nnodes} give master_addr and master_port, or init_method"
        )
    method_name = options.get("start_method")
    if method_name is not None and method_name not in multiprocessing.get_all_start_methods():
        allowed = ", ".join(multiprocessing.get_all_start_methods())
        raise ValueError(f"start_method={method_name!r}: use one of {allowed}")
    return SpawnPlan(
        backend=backend,
        nproc_per_node=nproc_per_node,
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=address,
        master_port=port,
        init_method=method,
        timeout=options.pop("timeout"),
        device=options.pop("device"),
        options=options,
    )


def _count(name: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{name}={value!r}: give a whole number of 1 or more")
    return value


def _from_rank_zero(result: Any) -> Any:
    if context.current().rank == 0:
        try:
            return collectives.share(result)
        except TypeError as error:
            logging.getLogger("reference.idist").warning("the returned value is dropped: %s", error)
            result = None
    return collectives.share(result)


def _tell_torchrun(error: Exception) -> None:
    """Under torchrun: leave the traceback where its closing summary of the failure shows it."""
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

        ErrorHandler().record_exception(error)
