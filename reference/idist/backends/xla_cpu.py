"""A simulation of several XLA devices on the CPU, for machines without a TPU: replicas are threads of one process.

``CPU_NUM_DEVICES=n`` gives torch_xla 2.9 n devices, but its collectives hang: XLA on the CPU knows the participants of a
collective by the program that they run, and two threads that compile the same program at the same moment run two. Here one
thread at a time compiles, so that the others find its program in the cache, and replicas meet in Python before a collective.
Each thread has random numbers of its own, as the processes of a TPU have. A DataLoader reads in the replica's process, whatever
its number of workers. Nothing of this is used on a TPU.

Python's and NumPy's global random numbers, and everything else that is global in a process, are still shared.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from reference.idist.backends.base import CollectiveError

_TO_HOST = (
    "item",
    "cpu",
    "tolist",
    "numpy",
    "__bool__",
    "__float__",
    "__int__",
    "__index__",
    "__repr__",
    "__array__",
)
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "collective_permute")
_RANDOM = ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial")
_RANDOM_IN_PLACE = (
    "random_",
    "uniform_",
    "normal_",
    "bernoulli_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "cauchy_",
)


def install(count: int, timeout: float) -> None:
    """Make this process one with ``count`` simulated devices, once, before its runtime starts.

    Args:
        count: number of replicas.
        timeout: seconds that a replica waits for the others before a collective.
    """
    os.environ.update(
        PJRT_DEVICE="CPU",
        CPU_NUM_DEVICES=str(count),
        # A replica that waits for others holds a thread of the pool, which has one for each core if not told.
        XLA_THREAD_POOL_SIZE=str(max(8, 4 * count)),
        PJRT_NPROC=str(max(8, 2 * count)),
        # The memory of an input that was given away is freed by waiting for the running program, with the lock held.
        XLA_ENABLE_PARAM_ALIASING="0",
    )
    import torch_xla
    import torch_xla.core.xla_model as xm

    programs = _Programs(torch_xla._XLAC, xm)
    _replace_cuts(torch_xla._XLAC, programs)
    _cut_before_host_access(programs)
    _meet_before_collectives(xm, _Meeting(count, timeout), programs)
    _give_threads_random_numbers()
    _read_without_workers()


class _Programs:
    """Compiles and starts what a replica computed since the last cut, for one replica at a time."""

    def __init__(self, library: Any, xm: Any) -> None:
        self._lock = threading.Lock()
        self._library = library
        self._start_step, self._start_tensors = library._xla_step_marker, library._xla_sync_multi
        self._real_device = functools.cache(xm._xla_real_device)
        self._anchors: dict[str, Tensor] = {}

    def _drain(self) -> None:
        """Wait for this replica's device before taking the lock: a program that waits for other replicas, which need the
        lock to start theirs, would be waited for inside."""
        self._library._xla_wait_device_ops([self._real_device(self._library._xla_get_default_device())])

    def start_step(
        self, device: str, devices: list[str], wait: bool = True, reset_scope: bool = True
    ) -> None:
        if (
            device not in self._anchors
        ):  # with no tensor on its own device, the library would wait for the first one
            self._anchors[device] = torch.ones(2).to(device)
        self._drain()
        with self._lock:
            self._start_step(device, devices, wait=False, reset_scope=reset_scope)
        if wait:
            self._drain()

    def start_tensors(
        self,
        tensors: list[Tensor],
        devices: list[str] | None = None,
        wait: bool = True,
        sync_xla_data: bool = True,
    ) -> None:
        self._drain()
        with self._lock:
            self._start_tensors(tensors, devices or [], wait=False, sync_xla_data=sync_xla_data)
        if wait:
            self._drain()


def _replace_cuts(library: Any, programs: _Programs) -> None:
    """The library's own cuts go through ``programs``."""
    read = library._xla_get_cpu_tensors

    def get_cpu_tensors(tensors: list[Tensor]) -> list[Tensor]:
        programs.start_tensors(tensors, sync_xla_data=False)
        return read(tensors)

    library._xla_step_marker = programs.start_step
    library._xla_sync_multi = programs.start_tensors
    library._xla_get_cpu_tensors = get_cpu_tensors


def _cut_before_host_access(programs: _Programs) -> None:
    """So do the hidden cuts: a tensor whose value the host asks for."""

    def compute(tensor: Tensor) -> None:
        if tensor.device.type == "xla":
            programs.start_tensors([tensor.detach()], sync_xla_data=False)

    def cutting(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def read(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            compute(self)
            return method(self, *args, **kwargs)

        return read

    move = Tensor.to

    @functools.wraps(move)
    def to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        target = kwargs.get("device", kwargs.get("other", args[0] if args else None))
        target = target.device if isinstance(target, Tensor) else target
        if isinstance(target, (str, torch.device)) and torch.device(target).type != "xla":
            compute(self)
        return move(self, *args, **kwargs)

    for name in _TO_HOST:
        setattr(Tensor, name, cutting(getattr(Tensor, name)))
    Tensor.to = to  # type: ignore[method-assign, assignment]


class _Meeting:
    """Replicas wait for each other in Python: XLA ends the process when one is 15 s late inside a collective."""

    def __init__(self, count: int, timeout: float) -> None:
        self._barrier = threading.Barrier(count)
        self._visits = [0] * count
        self._timeout = timeout

    def wait(self, rank: int, operation: str) -> None:
        self._visits[rank] += 1
        try:
            self._barrier.wait(self._timeout)
        except threading.BrokenBarrierError:
            late = [other for other, visits in enumerate(self._visits) if visits < self._visits[rank]]
            message = (
                f"xla-tpu: {operation} on rank {rank}: ranks {late} did not come within {self._timeout:g} s"
            )
            raise CollectiveError(message) from None


def _meet_before_collectives(xm: Any, meeting: _Meeting, programs: _Programs) -> None:
    """Collectives are programs of their own, which all replicas start at about the same time."""
    import torch_xla
    import torch_xla.runtime as xr

    def meeting_first(collective: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(collective)
        def meet(*args: Any, **kwargs: Any) -> Any:
            torch_xla.sync()
            meeting.wait(xr.global_ordinal(), collective.__name__)
            result = collective(*args, **kwargs)
            # The order of results is part of a program, and a cut takes them as they were made.
            programs.start_tensors([result] if isinstance(result, Tensor) else list(result), wait=False)
            torch_xla.sync()
            return result

        return meet

    for name in _COLLECTIVES:
        setattr(xm, name, meeting_first(getattr(xm, name)))
    # With a pinned layout a replica pads by its own rank, so that no two have the same program.
    xm.all_gather = functools.partial(xm.all_gather, pin_layout=False)


class _ThreadGenerator(threading.local):
    """Stands for torch's default CPU generator: each thread sees another one."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)


def _read_without_workers() -> None:
    """A worker forked among running threads may wait for ever for a lock that one of them held."""

    def read_here(self: DataLoader) -> Any:
        self.num_workers = 0
        return _SingleProcessDataLoaderIter(self)

    DataLoader._get_iterator = read_here  # type: ignore[method-assign]


def _give_threads_random_numbers() -> None:
    own = _ThreadGenerator(torch.initial_seed())

    def drawing(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def draw(*args: Any, **kwargs: Any) -> Any:
            place = next((x.device for x in args if isinstance(x, Tensor)), kwargs.get("device") or "cpu")
            if torch.device(place).type == "cpu" and kwargs.get("generator") is None:
                kwargs["generator"] = own.generator
            return function(*args, **kwargs)

        return draw

    for name in _RANDOM:
        setattr(torch, name, drawing(getattr(torch, name)))
    for name in _RANDOM_IN_PLACE:
        setattr(Tensor, name, drawing(getattr(Tensor, name)))
    torch.default_generator = torch.random.default_generator = own  # type: ignore[assignment]
