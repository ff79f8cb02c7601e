"""torch_xla: TPUs, and the CPU where there is none.

A process may hold several replicas, each in a thread of its own (TPU v2 and v3, the CPU), so rank and device are asked from
the runtime each time, and nothing that belongs to one replica is kept here. The runtime starts once in a process and can't
be stopped, so `spawn` starts it in new ones.

XLA compiles what was computed since the last cut (`sync`) as one program. Replicas that meet in a collective must run the
same program, but may have computed different things before: rank 0's own work, a smaller last batch. So there is a cut
before each collective.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import operator
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from reference.idist import environment, processes
from reference.idist.backends.base import (
    DEFAULT_TIMEOUT,
    Backend,
    RankGroup,
    not_a_group,
    refuse_keywords,
    watchdog,
)
from reference.idist.log import info

if TYPE_CHECKING:
    from reference.idist.launcher import SpawnPlan

_OPS: dict[
    str, tuple[str, Callable[[Tensor, Tensor], Tensor]]
] = {  # the library's name, and the same for two tensors
    "SUM": ("sum", operator.add),
    "PRODUCT": ("mul", operator.mul),
    "MIN": ("min", torch.minimum),
    "MAX": ("max", torch.maximum),
}
# What a TPU's collectives know. Other dtypes travel as bytes, and the host reduces them.
_DTYPES = (torch.float32, torch.bfloat16, torch.int32, torch.uint8)


class XlaBackend(Backend):
    """The replicas of this process. The members of a group get the tensors of all ranks, and choose."""

    model_name = "xla-dist"
    name = "xla-tpu"
    spawn_options = frozenset({"start_method"})
    group_needs_all_ranks = True
    _left = False  # this process has left its world, although the runtime lives on

    def __init__(self, deadline: float | None) -> None:
        self._deadline = deadline  # of a collective in seconds; None: something else watches

    # -- life cycle ----------------------------------------------------------------------------------------------
    @classmethod
    def missing(cls, name: str) -> str | None:
        if importlib.util.find_spec("torch_xla") is None:
            return "torch_xla is not installed: make env BACKEND=xla-tpu"
        ours, theirs = version("torch"), version("torch_xla")
        if ours.split(".")[:2] != theirs.split(".")[:2]:
            return f"torch_xla {theirs} does not load beside torch {ours}: make env BACKEND=xla-tpu"
        return None

    @classmethod
    def initialize(cls, name: str, *, timeout: float, device: str | None, **options: Any) -> XlaBackend:
        _refuse_device(device)
        layout = environment.detect(os.environ)
        if layout is not None and layout.world_size > 1:
            raise ValueError(
                f"{layout.source} started {layout.world_size} processes, but XLA starts its replicas itself: start one "
                "program, and give nproc_per_node"
            )
        if not _has_tpu():
            os.environ["PJRT_DEVICE"] = "CPU"
            info("xla-tpu: no TPU here: one replica on the CPU")
        with _deadline(timeout, "initialize"):
            _xla("_internal.pjrt").initialize_singleprocess()
        cls._left = False
        return cls(timeout)

    @classmethod
    def adopt(cls) -> XlaBackend | None:
        return cls(DEFAULT_TIMEOUT) if _running() and not cls._left else None

    @classmethod
    def spawn(
        cls, plan: SpawnPlan, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        _refuse_device(plan.device)
        start_method = plan.options.get("start_method", "spawn")
        if plan.nnodes > 1 or plan.master_addr or plan.master_port or plan.init_method:
            raise ValueError(
                "nnodes, node_rank, master_addr, master_port, init_method: XLA finds its hosts: remove them"
            )
        if start_method == "fork" and _running():
            raise ValueError("start_method='fork': XLA's runtime is in use in this process: use 'spawn'")
        count = 1
        if _has_tpu():
            count = _tpu_processes(plan.nproc_per_node)
        elif plan.nproc_per_node > 1:
            threads = f"{plan.nproc_per_node} replicas as threads of one process on the CPU"
            info(f"xla-tpu: no TPU here: a simulation, {threads}")
        job = count, plan, fn, tuple(args), dict(kwargs)
        return processes.run(_run_process, job, count=count, start_method=start_method)

    def finalize(self, failed: bool = False) -> None:
        XlaBackend._left = self.world_size == 1  # one of several replicas does not leave for the others

    # -- layout --------------------------------------------------------------------------------------------------
    @property
    def rank(self) -> int:
        return _xla("runtime").global_ordinal() if self.world_size > 1 else 0

    @property
    def local_rank(self) -> int:
        return _xla("runtime").local_ordinal() if self.world_size > 1 else 0

    @property
    def world_size(self) -> int:
        return _xla("runtime").world_size()

    @property
    def nproc_per_node(self) -> int:
        return _xla("runtime").local_device_count() if self.world_size > 1 else 1

    @property
    def nnodes(self) -> int:
        return self.world_size // self.nproc_per_node

    @property
    def node_rank(self) -> int:
        return _xla("runtime").host_index() if self.nnodes > 1 else 0

    @property
    def device(self) -> torch.device:
        return _xla().device()

    # -- tensor primitives ---------------------------------------------------------------------------------------
    def all_reduce(self, x: Tensor, op: str, group: Any) -> Tensor:
        name, fold = _OPS[op]
        if group is None and x.dtype in _DTYPES and self.world_size > 1:
            with _cut():
                return _xla("core.xla_model").all_reduce(name, x)
        rows = self._gather(x)
        return functools.reduce(fold, rows if group is None else rows[list(group.ranks)]).to(x.device)

    def all_gather(self, x: Tensor, group: Any) -> Tensor:
        return self._gather(x).to(x.device)

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        return self._gather(x)[src].to(x.device, copy=True)

    def _gather(self, x: Tensor) -> Tensor:
        """[world size, *x.shape], on the host for dtypes that not all devices know."""
        if self.world_size == 1:
            return x[None].clone()
        if x.dtype not in _DTYPES:
            rows = self._gather(x.cpu().reshape(-1).view(torch.uint8).to(x.device))
            return rows.cpu().view(x.dtype).view(-1, *x.shape)
        with _cut():  # with a pinned layout the program would depend on the rank
            return _xla("core.xla_model").all_gather(x[None], pin_layout=False)

    def barrier(self) -> None:
        self._gather(torch.zeros(1, device=self.device)).cpu()

    def new_group(self, ranks: Sequence[int], **kwargs: Any) -> RankGroup:
        refuse_keywords(kwargs, "new_group", self.name)
        return RankGroup(tuple(ranks))

    def group_ranks(self, group: Any) -> tuple[int, ...]:
        if not isinstance(group, RankGroup):
            raise not_a_group(group)
        return group.ranks

    @contextmanager
    def guard(self, operation: str) -> Iterator[None]:
        """Within the deadline for all that waits for its result: barriers, numbers, strings, objects, tensors of the host.

        A tensor on the device is only promised when a collective returns; the next call that waits finds out.
        """
        deadline = self._deadline if self.world_size > 1 else None
        where = f"{operation} on rank {self.rank} of {self.world_size}"
        with super().guard(operation), _deadline(deadline, where):
            yield

    # -- models, optimizers, loaders -----------------------------------------------------------------------------
    def wrap_model(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        refuse_keywords(kwargs, "auto_model", self.name)
        if self.world_size == 1:
            return model
        tensors = [t.data for t in (*model.parameters(), *model.buffers()) if t.numel()]
        summed = [t for t in tensors if t.dtype in _DTYPES]
        if self.rank != 0:
            for tensor in summed:
                tensor.zero_()  # so that the sum is rank 0's, also where a factor of 0 would make nan of infinity
        with self.guard("auto_model"):
            if summed:
                with _cut():
                    _xla("core.xla_model").all_reduce("sum", summed)
            for tensor in tensors:
                if tensor.dtype not in _DTYPES:
                    tensor.copy_(self.broadcast(tensor, 0))
        return model

    def wrap_optimizer(self, optimizer: Optimizer, **kwargs: Any) -> Optimizer:
        """The same object; its ``step`` averages the gradients over all ranks, and cuts after the update."""
        refuse_keywords(kwargs, "auto_optim", self.name)
        step = optimizer.step  # of this object, as a scheduler may have wrapped it already

        def average(closure: Callable[[], Any] | None = None) -> Any:
            loss = None if closure is None else closure()
            gradients = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
            if gradients and self.world_size > 1:
                _xla().sync()
                _xla("core.xla_model").all_reduce("sum", gradients, scale=1 / self.world_size)
            return loss

        @functools.wraps(step)
        def averaged_step(_: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
            if closure is None:
                average()
            result = step() if closure is None else step(functools.partial(average, closure))
            _xla().sync()
            return result

        optimizer.step = MethodType(averaged_step, optimizer)  # type: ignore[method-assign]
        return optimizer

    def wrap_loader(self, loader: DataLoader) -> DeviceLoader:
        return DeviceLoader(loader, self.device)


BACKEND = XlaBackend


class DeviceLoader:
    """The batches of a DataLoader, read and sent to the device ahead of use. Everything else is the loader's."""

    def __init__(self, loader: DataLoader, device: torch.device) -> None:
        self._loader = loader
        self._device = device

    def __iter__(self) -> Iterator[Any]:
        failures: list[Exception] = []

        def batches() -> Iterator[Any]:
            try:
                yield from self._loader
            except Exception as error:  # the library's thread would take it for the end of the data
                failures.append(error)

        parallel = _xla("distributed.parallel_loader").ParallelLoader(batches(), [self._device])
        try:
            yield from parallel.per_device_loader(self._device)
        finally:
            parallel.close()
        if failures:
            raise failures[0]

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)


def _xla(module: str = "") -> Any:
    """torch_xla or a module of it, imported when it is needed."""
    return importlib.import_module(f"torch_xla.{module}".rstrip("."))


def _running() -> bool:
    library = sys.modules.get("torch_xla")
    return library is not None and library._XLAC._xla_runtime_is_initialized()


@contextmanager
def _cut() -> Iterator[None]:
    _xla().sync()
    yield
    _xla().sync()


def _deadline(seconds: float | None, operation: str) -> AbstractContextManager[None]:
    if seconds is None:
        return nullcontext()
    text = f"xla-tpu: {operation} did not end within {seconds:g} s: a rank is missing"
    return watchdog(seconds, text)


def _refuse_device(device: str | None) -> None:
    if device is not None:
        raise ValueError(
            f"device={device!r}: XLA's runtime chooses it: set PJRT_DEVICE to TPU or CPU instead"
        )


def _has_tpu() -> bool:
    """Whether the runtime will use a TPU; starts no runtime."""
    if "PJRT_DEVICE" in os.environ:
        return os.environ["PJRT_DEVICE"] == "TPU"
    return importlib.util.find_spec("libtpu") is not None and _xla("_internal.tpu").num_available_chips() > 0


def _tpu_processes(replicas: int) -> int:
    """The number of processes that hold ``replicas`` on this TPU host. ValueError when it can't run that many."""
    tpu = _xla("_internal.tpu")
    count = tpu.num_local_processes()
    possible = count * tpu.num_logical_cores_per_chip()
    if replicas not in (1, possible):
        raise ValueError(f"nproc_per_node={replicas}: this TPU host runs 1 or {possible} replicas")
    return 1 if replicas == 1 else count


def _run_process(
    local_rank: int,
    count: int,
    plan: SpawnPlan,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """One process of `spawn`: what ``torch_xla.launch`` does, in a process that `processes` watches."""
    from reference.idist import context, launcher

    single, deadline = plan.nproc_per_node == 1, plan.timeout
    simulated = not single and not _has_tpu()
    if not _has_tpu():
        os.environ["PJRT_DEVICE"] = "CPU"
    if simulated:
        from reference.idist.backends import xla_cpu

        xla_cpu.install(plan.nproc_per_node, plan.timeout)
    pjrt = _xla("_internal.pjrt")
    with _deadline(deadline, "initialize"):
        if single:
            pjrt.initialize_singleprocess()
        else:
            pjrt.initialize_multiprocess(local_rank, count)
    backend = XlaBackend(None if simulated else deadline)
    threads = 1 if single else _xla().device_count()

    def replica(index: int) -> Any:
        _xla().device(index)  # makes it the one of this thread
        value = fn(local_rank * threads + index, *args, **kwargs)
        return launcher._from_rank_zero(value) if count > 1 else value  # rank 0 may be in any process

    with context.using(backend):
        return _run_threads(threads, replica, local_rank * threads)


def _run_threads(count: int, replica: Callable[[int], Any], first: int) -> Any:
    """``replica(0)`` of those that run in ``count`` threads, or the error of the one that failed first.

    The threads of others may never end then; the process must.
    """
    outcomes: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()

    def run(index: int) -> None:
        try:
            outcomes.put((index, replica(index), None))
        except BaseException as error:
            outcomes.put((index, None, error))

    for index in range(count):
        threading.Thread(target=run, args=(index,), name=f"replica {first + index}", daemon=True).start()
    values = {}
    for _ in range(count):
        index, value, error = outcomes.get()
        if error is not None:
            error.local_rank = first + index  # type: ignore[attr-defined]  # for the report
            raise error
        values[index] = value
    return values[0]
