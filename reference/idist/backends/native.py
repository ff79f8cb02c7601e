"""torch.distributed: gloo, nccl and mpi."""

from __future__ import annotations

import contextlib
import inspect
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from reference.idist import environment
from reference.idist.backends.base import (
    DEFAULT_TIMEOUT,
    ProcessBackend,
    not_a_group,
    refuse_keywords,
    watchdog,
)
from reference.idist.environment import Layout

if TYPE_CHECKING:
    from reference.idist.launcher import SpawnPlan

_OPS = {
    "SUM": dist.ReduceOp.SUM,
    "PRODUCT": dist.ReduceOp.PRODUCT,
    "MIN": dist.ReduceOp.MIN,
    "MAX": dist.ReduceOp.MAX,
}
_NODES_KNOWN = ("torchrun", "slurm", "spawn", "single")  # sources that tell how ranks lie on nodes
_OF_THE_LIBRARY = re.compile(r"\bgloo/|NCCL|ProcessGroup|Connection (?:closed|reset)")
_LATE = 5.0  # seconds after the timeout of an initialisation until a process that still waits is ended
_SETTLE = 0.2  # seconds for Gloo's threads to let go of the last tensors
_BLAME_WAIT = timedelta(seconds=2)  # how long a rank that failed waits to hear which others did


class NativeBackend(ProcessBackend):
    """A ``torch.distributed`` world: made by `initialize`, or adopted from the user's own ``init_process_group``."""

    model_name = "native-dist"
    options = frozenset({"init_method", "rank", "world_size"})
    spawn_options = frozenset({"start_method"})

    def __init__(
        self, name: str, layout: Layout, device: str | None, limit: timedelta, store: dist.Store | None
    ) -> None:
        self.name = name
        self._layout = layout
        self._limit = limit
        self._device = _choose_device(name, device, layout)
        self._store = store
        self._world = dist.group.WORLD
        self._failures = 0

    # -- life cycle ----------------------------------------------------------------------------------------------
    @classmethod
    def missing(cls, name: str) -> str | None:
        if not dist.is_available():
            return "this torch is built without torch.distributed: install torch from PyPI"
        if name == "nccl" and not (dist.is_nccl_available() and torch.cuda.is_available()):
            return "nccl needs a CUDA build of torch and a visible NVIDIA GPU: use backend='gloo' on CPUs"
        if name == "mpi" and not dist.is_mpi_available():
            return "this torch is built without MPI: build torch from source beside an MPI library, or use 'gloo'"
        return None

    @classmethod
    def initialize(cls, name: str, *, timeout: float, device: str | None, **options: Any) -> NativeBackend:
        layout = environment.detect(os.environ)
        if "init_method" in options or layout is None:
            layout = _layout_from_options(options)
        elif options:
            raise ValueError(
                f"{', '.join(sorted(options))}: the environment ({layout.source}) decides that, remove it"
            )
        return cls.join(name, layout, timeout=timeout, device=device, init_method=options.get("init_method"))

    @classmethod
    def join(
        cls, name: str, layout: Layout, *, timeout: float, device: str | None, init_method: str | None = None
    ) -> NativeBackend:
        """Meet the other ranks of ``layout`` at its master address (or ``init_method``)."""
        limit = timedelta(seconds=timeout)
        chosen = _choose_device(name, device, layout)
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        try:
            store = None
            options: dict[str, Any] = {"device_id": chosen if name == "nccl" else None}
            if name != "mpi":  # MPI has its own meeting point, ranks and size
                store = _rendezvous(layout, limit, init_method)
                options |= {"store": store, "rank": layout.rank, "world_size": layout.world_size}
            # Gloo's ranks that wait to be connected to do not keep the timeout
            with watchdog(
                timeout + _LATE, _explain(name, layout, timeout, RuntimeError("a rank did not connect"))
            ):
                dist.init_process_group(name, timeout=limit, **options)
        except (RuntimeError, ValueError) as error:
            raise RuntimeError(_explain(name, layout, timeout, error)) from error
        backend = cls(name, layout, device, limit, store)
        if layout.source not in _NODES_KNOWN:
            backend.survey()
        return backend

    @classmethod
    def adopt(cls) -> NativeBackend | None:
        if not (dist.is_available() and dist.is_initialized()) or dist.get_backend() == "xla":
            return None
        name, rank, world_size = dist.get_backend(), dist.get_rank(), dist.get_world_size()
        layout = environment.detect(os.environ)
        if layout is None or (layout.rank, layout.world_size) != (rank, world_size):
            layout = environment.one_node(rank, world_size, "adopted")
        elif layout.nnodes is None or layout.nproc_per_node is None:
            known = environment.one_node(rank, world_size, layout.source)
            layout = replace(known, local_rank=layout.local_rank)
        return cls(name, layout, None, timedelta(seconds=DEFAULT_TIMEOUT), None)

    @classmethod
    def spawn(
        cls, plan: SpawnPlan, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        from reference.idist import processes

        plan, store = _host_store(plan)  # the store lives here, so that no rank's death takes it away
        return processes.run(
            _spawned,
            (plan, fn, tuple(args), dict(kwargs)),
            count=plan.nproc_per_node,
            start_method=plan.options.get("start_method", "spawn"),
            first_rank=plan.layout(0).rank,
            keep=store,
        )

    def alive(self) -> bool:
        return dist.is_initialized() and dist.group.WORLD is self._world

    def finalize(self, failed: bool = False) -> None:
        if not dist.is_initialized():
            return
        if failed and self.name == "nccl":
            dist.distributed_c10d._abort_process_group()  # destroy would wait for the others
        else:
            dist.destroy_process_group()
        if self.name == "gloo" and not failed:
            # A thread of Gloo that frees a tensor while the interpreter ends needs the interpreter's lock, and aborts the process.
            time.sleep(_SETTLE)

    # -- tensor primitives ---------------------------------------------------------------------------------------
    def all_reduce(self, x: Tensor, op: str, group: Any) -> Tensor:
        result = x.clone()
        dist.all_reduce(result, op=_OPS[op], group=group)
        return result

    def all_gather(self, x: Tensor, group: Any) -> Tensor:
        flat = x.reshape(-1).view(torch.uint8)  # as bytes: not every library knows every dtype
        rows = flat.new_empty((dist.get_world_size(group), flat.numel()))
        dist.all_gather(list(rows.unbind(0)), flat, group=group)
        return rows.view(x.dtype).view(-1, *x.shape)

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        result = x.clone()
        dist.broadcast(result.reshape(-1).view(torch.uint8), src)
        return result

    def barrier(self) -> None:
        if self.name == "gloo":
            dist.monitored_barrier(timeout=self._limit, wait_all_ranks=True)  # tells which ranks did not come
        else:
            dist.barrier()

    def new_group(self, ranks: Sequence[int], **kwargs: Any) -> Any:
        return dist.new_group(list(ranks), **{"timeout": self._limit, **kwargs})

    def group_ranks(self, group: Any) -> tuple[int, ...]:
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return ()
        if not isinstance(group, dist.ProcessGroup):
            raise not_a_group(group)
        return tuple(dist.get_process_group_ranks(group))

    def is_of_the_library(self, error: RuntimeError) -> bool:
        return _OF_THE_LIBRARY.search(str(error)) is not None

    def blame(self, operation: str) -> str:
        """Ranks that fail leave a note in the store; those that are silent a moment later are the missing ones."""
        if self._store is None or self.world_size == 1:
            return ""
        # Behind a cable that is cut the store does not answer, and its waits have no deadline of their own.
        answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        store = self._store
        threading.Thread(target=lambda: answers.put(self._ask(store, operation)), daemon=True).start()
        try:
            return answers.get(timeout=_BLAME_WAIT.total_seconds() + _LATE)
        except queue.Empty:
            return " (rank 0's store does not answer)"

    def _ask(self, store: dist.Store, operation: str) -> str:
        self._failures += 1
        notes = [f"failed/{self._failures}/{rank}" for rank in range(self.world_size)]
        try:
            store.set(notes[self.rank], operation)
            with contextlib.suppress(RuntimeError):  # some rank left no note: which one, we ask next
                store.wait(notes, _BLAME_WAIT)
            silent = [str(rank) for rank, note in enumerate(notes) if not store.check([note])]
        except RuntimeError:
            return " (rank 0 or its store is gone)"
        return f" (no word from rank {', '.join(silent)})" if silent else ""

    # -- models, optimizers --------------------------------------------------------------------------------------
    def wrap_model(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        known = inspect.signature(DistributedDataParallel).parameters
        refuse_keywords({k: v for k, v in kwargs.items() if k not in known}, "auto_model", self.name)
        if self._device.type == "cuda":
            kwargs.setdefault("device_ids", [self._device.index])
        return DistributedDataParallel(model, **kwargs)

    def wrap_optimizer(self, optimizer: Optimizer, **kwargs: Any) -> Optimizer:
        refuse_keywords(kwargs, "auto_optim", self.name)
        return optimizer

    def set_local_rank(self, index: int) -> None:
        if self._layout.source != "adopted":
            super().set_local_rank(index)
        self._layout = replace(self._layout, local_rank=index)
        self._device = _choose_device(self.name, None, self._layout)


BACKEND = NativeBackend


def _spawned(
    local_rank: int, plan: SpawnPlan, fn: Callable[..., Any], args: Sequence[Any], kwargs: Any
) -> Any:
    """What a process that `spawn` started does."""
    from reference.idist import context

    layout = plan.layout(local_rank)
    with context.using(NativeBackend.join(plan.backend, layout, **plan.join_options)):
        return fn(local_rank, *args, **kwargs)


def _host_store(plan: SpawnPlan) -> tuple[SpawnPlan, dist.Store | None]:
    """Open the meeting point of the world on the first node, before any process starts."""
    if plan.init_method is not None or plan.node_rank != 0:
        return plan, None
    host, port = plan.master_addr or "127.0.0.1", plan.master_port or 0
    try:
        store = dist.TCPStore(host, port, None, True, wait_for_workers=False)
    except RuntimeError as error:
        raise RuntimeError(
            f"master_port={port}: {_reason(error)}: choose a port that is free on {host}"
        ) from error
    return replace(plan, master_addr=host, master_port=store.port), store


def _rendezvous(layout: Layout, limit: timedelta, init_method: str | None) -> dist.Store:
    if layout.world_size == 1 and init_method is None and layout.source == "single":
        return dist.HashStore()
    if layout.source == "spawn" and init_method is None:
        assert layout.master_addr is not None and layout.master_port is not None  # of the hosted store
        store = dist.TCPStore(layout.master_addr, layout.master_port, None, False, limit)
    else:
        url = init_method or ("env://" if layout.source == "torchrun" else None)
        url = url or f"tcp://{layout.master_addr}:{layout.master_port}"
        store, _, _ = next(dist.rendezvous(url, layout.rank, layout.world_size, timeout=limit))
    store.set_timeout(limit)
    return store


def _layout_from_options(options: Mapping[str, Any]) -> Layout:
    """A world given by hand: init_method, rank and world_size; one process without them."""
    names = ("init_method", "rank", "world_size")
    given = [name for name in names if options.get(name) is not None]
    if given and len(given) < 3:
        lacking = ", ".join(name for name in names if name not in given)
        raise ValueError(
            f"{', '.join(given)} given without {lacking}: give all three, or none under a launcher"
        )
    rank, world_size = options.get("rank", 0), options.get("world_size", 1)
    if type(rank) is not int or type(world_size) is not int or not 0 <= rank < world_size:
        raise ValueError(f"rank={rank!r}, world_size={world_size!r}: need 0 <= rank < world_size")
    return environment.one_node(rank, world_size, "arguments" if given else "single")


def _choose_device(name: str, device: str | None, layout: Layout) -> torch.device:
    """gloo and mpi compute on the CPU unless asked; nccl takes a GPU by local rank among the *visible* ones."""
    chosen = torch.device(device or ("cuda" if name == "nccl" else "cpu"))
    if chosen.type != "cuda" or chosen.index is not None:
        return chosen
    return torch.device("cuda", cuda_index(layout.local_rank, torch.cuda.device_count()))


def cuda_index(local_rank: int, visible: int) -> int:
    """The GPU of a process: its local rank among ``visible`` ones, or the only one where each task sees just its own."""
    if visible == 1:
        return 0
    if local_rank >= visible:
        raise ValueError(
            f"local rank {local_rank} has no GPU: {visible} are visible; start fewer processes a node"
        )
    return local_rank


def _explain(name: str, layout: Layout, timeout: float, error: Exception) -> str:
    where = f"at {layout.master_addr}:{layout.master_port} " if layout.master_addr else ""
    text = f"{name}: rank {layout.rank} of {layout.world_size} could not meet the others {where}within {timeout:g} s: "
    text += _reason(error)
    if "127.0." in str(error) and "onnect" in str(error) and layout.nnodes != 1:
        text += " (this host's own name may resolve to a loopback address: set GLOO_SOCKET_IFNAME to its interface)"
    return text


def _reason(error: Exception) -> str:
    if "EADDRINUSE" in str(error):
        return "the port is busy"
    return str(error).strip().splitlines()[0]
