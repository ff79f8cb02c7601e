"""Horovod: started by horovodrun, by `spawn`, or by a launcher that tells ranks and a meeting point (srun, mpirun).

Horovod waits for other ranks without a limit, and ends the process when its start fails. So the ranks meet before it
starts, and its operations are asynchronous and polled: errors come in time and name the ranks that are missing.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import io
import itertools
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from reference.idist import environment
from reference.idist.backends import horovod_meeting as meeting
from reference.idist.backends.base import DEFAULT_TIMEOUT, ProcessBackend, not_a_group, refuse_keywords
from reference.idist.backends.horovod_optimizer import average_in_backward
from reference.idist.backends.native import cuda_index
from reference.idist.environment import Layout

if TYPE_CHECKING:
    from reference.idist.launcher import SpawnPlan

_NAME = "reference.idist"  # of all our operations: there is one at a time, and Horovod remembers its answer
_PAUSE = 50e-6, 1e-3  # seconds between two looks at an operation, at first and later
_LEAVE_WAIT = 5.0  # seconds for leaving a broken world


class HorovodBackend(ProcessBackend):
    """A Horovod world: made by `initialize`, or adopted from the user's own ``hvd.init()``."""

    model_name = "horovod-dist"
    spawn_options = frozenset({"start_method"})
    name = "horovod"

    def __init__(
        self,
        layout: Layout,
        timeout: float,
        device: torch.device,
        board: meeting.Board | None,
        settings: dict[str, str],
    ) -> None:
        self._hvd = _horovod()
        self._layout = layout
        self._timeout = timeout
        self._device = device
        self._board = board
        self._settings = settings  # Horovod reads its environment again when it makes a group
        self._groups: dict[tuple[int, ...], Any] = {}
        self._optimizers = itertools.count()
        self._failures = itertools.count()
        self.members: Sequence[int] = range(layout.world_size)  # of the operation under way
        self._late = False

    # -- life cycle ----------------------------------------------------------------------------------------------
    @classmethod
    def missing(cls, name: str) -> str | None:
        if importlib.util.find_spec("horovod") is None:
            return "Horovod is not installed; bring it with: make env BACKEND=horovod"
        try:
            reason = "" if hasattr(_horovod(), "init") else "it has no PyTorch extension"
        except ImportError as error:
            reason = str(error).splitlines()[0]
        if not reason:
            return None
        again = "build it again with: make env BACKEND=horovod"
        return f"Horovod is installed but does not load with torch {torch.__version__} ({reason}); {again}"

    @classmethod
    def initialize(cls, name: str, *, timeout: float, device: str | None, **options: Any) -> HorovodBackend:
        layout = environment.detect(os.environ)
        return cls.join(layout or environment.one_node(0, 1, "single"), timeout=timeout, device=device)

    @classmethod
    def join(cls, layout: Layout, *, timeout: float, device: str | None) -> HorovodBackend:
        """Meet the other ranks of ``layout`` and start Horovod."""
        hvd = _horovod()
        chosen = _choose_device(hvd, device, layout.local_rank)
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        settings = _limits(timeout)
        board = None
        mpi = hvd.mpi_built() and layout.source in ("horovod", "openmpi") and not meeting.started_by_gloo()
        if layout.world_size > 1 and not mpi:
            board = meeting.open_board(layout)
            nodes = meeting.meet(board, layout, timeout)
            layout = environment.place(layout, nodes) if layout.nnodes is None else layout
            settings |= {**meeting.places(layout.rank, nodes), **board.settings}
        if layout.nnodes == 1:
            loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
            settings["HOROVOD_GLOO_IFACE"] = loopback[0]
        elif board is not None:
            meeting.check_own_name()
        with _environ(settings):
            hvd.init()
        backend = cls(layout, timeout, chosen, board, settings)
        if layout.nnodes is None:
            backend.survey()
        return backend

    @classmethod
    def adopt(cls) -> HorovodBackend | None:
        hvd = _imported()
        if hvd is None or not hvd.is_initialized():
            return None
        layout = Layout(
            rank=hvd.rank(),
            local_rank=hvd.local_rank(),
            world_size=hvd.size(),
            nproc_per_node=hvd.local_size(),
            nnodes=hvd.cross_size(),  # nodes that have this local rank: all of them where nodes are alike
            node_rank=hvd.cross_rank(),
            master_addr=None,
            master_port=None,
            source="adopted",
        )
        return cls(layout, DEFAULT_TIMEOUT, _choose_device(hvd, None, layout.local_rank), None, {})

    @classmethod
    def spawn(
        cls, plan: SpawnPlan, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        from reference.idist import processes

        if plan.init_method is not None:
            raise ValueError(
                f"init_method={plan.init_method!r}: Horovod meets at master_addr and master_port only"
            )
        server = None
        if plan.node_rank == 0:  # it lives here, so that no rank's death takes it away
            server = meeting.serve("127.0.0.1" if plan.nnodes == 1 else "", plan.master_port or 0)
            plan = replace(plan, master_addr=plan.master_addr or "127.0.0.1", master_port=server.server_port)
        if plan.nnodes == 1:
            plan = replace(plan, master_addr="127.0.0.1")
        try:
            return processes.run(
                _spawned,
                (plan, fn, tuple(args), dict(kwargs)),
                count=plan.nproc_per_node,
                start_method=plan.options.get("start_method", "spawn"),
                first_rank=plan.layout(0).rank,
            )
        finally:
            if server is not None:
                server.shutdown()
                server.server_close()

    def alive(self) -> bool:
        return self._hvd.is_initialized()

    def finalize(self, failed: bool = False) -> None:
        if not self._hvd.is_initialized():
            return
        if not failed:
            with contextlib.suppress(RuntimeError):
                self.barrier()  # one rank's shutdown ends Horovod on all: leave together
        leaving = threading.Thread(target=self._hvd.shutdown, daemon=True)
        leaving.start()
        leaving.join(_LEAVE_WAIT if failed else self._timeout)
        for group in self._groups.values():
            group.process_set_id = None

    # -- tensor primitives ---------------------------------------------------------------------------------------
    def all_reduce(self, x: Tensor, op: str, group: Any) -> Tensor:
        return self._run(self._hvd.allreduce_async, x, group, op=getattr(self._hvd, op.capitalize()))

    def all_gather(self, x: Tensor, group: Any) -> Tensor:
        flat = x.reshape(-1).view(torch.uint8)  # as bytes: Horovod does not know every dtype
        rows = self._run(self._hvd.allgather_async, flat[None], group)
        return rows.view(x.dtype).view(-1, *x.shape)

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        flat = x.reshape(-1).view(torch.uint8)
        return self._run(self._hvd.broadcast_async, flat, None, root_rank=src).view(x.dtype).view(x.shape)

    def barrier(self) -> None:
        self.all_reduce(torch.zeros(1, dtype=torch.int32, device=self._device), "MAX", None)

    def new_group(self, ranks: Sequence[int], **kwargs: Any) -> Any:
        refuse_keywords(kwargs, "new_group", self.name)
        key = tuple(ranks)
        if len(key) == self.world_size:
            return self._hvd.global_process_set  # Horovod refuses a second set of the same ranks
        if key not in self._groups:
            asked = torch.zeros(self.world_size, dtype=torch.uint8, device=self._device)
            asked[list(key)] = 1
            if (self.all_gather(asked, None) != asked).any():  # Horovod itself would end all processes
                raise ValueError(f"new_group({list(key)}): another rank asks for other ranks")
            with _environ(self._settings):
                self._groups[key] = self._hvd.add_process_set(list(key))
        return self._groups[key]

    def group_ranks(self, group: Any) -> tuple[int, ...]:
        if not isinstance(group, self._hvd.ProcessSet) or group.process_set_id is None:
            raise not_a_group(group)
        return tuple(group.ranks) if self.rank in group.ranks else ()

    def is_of_the_library(self, error: RuntimeError) -> bool:
        return type(error).__name__ == "HorovodInternalError"

    def blame(self, operation: str) -> str:
        """Ranks that fail leave a note; those that are silent a moment later are the missing ones."""
        if self._board is None:
            return ""
        return meeting.silent(self._board, f"{next(self._failures)}", self.rank, self.members)

    def _run(self, submit: Callable[..., int], x: Tensor, group: Any, **kwargs: Any) -> Tensor:
        if self._late:
            raise RuntimeError("an earlier operation has not ended yet")
        group = self._hvd.global_process_set if group is None else group
        self.members = group.ranks
        handle = submit(x, name=_NAME, process_set=group, **kwargs)
        self.wait(handle)
        return self._hvd.synchronize(handle)

    def wait(self, handle: int) -> None:
        """Until Horovod's operation has ended, well or not. RuntimeError when the deadline passes."""
        deadline = time.monotonic() + self._timeout
        pause, longest = _PAUSE
        while not self._hvd.poll(handle):
            if time.monotonic() > deadline:
                self._late = True
                raise RuntimeError(f"no answer within {self._timeout:g} s")
            time.sleep(pause)
            pause = min(pause * 1.05, longest)

    # -- models, optimizers --------------------------------------------------------------------------------------
    def wrap_model(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        refuse_keywords(kwargs, "auto_model", self.name)
        for (
            parameter
        ) in model.parameters():  # a gradient takes its layout, and Horovod takes no other (channels_last)
            parameter.data = parameter.data.contiguous()
        with self.guard("broadcast of the model"):
            for tensor in itertools.chain(model.parameters(), model.buffers()):
                if tensor.numel():
                    tensor.detach().copy_(self.broadcast(tensor.detach().contiguous(), 0))
        return model

    def wrap_optimizer(self, optimizer: Optimizer, **kwargs: Any) -> Optimizer:
        from reference.idist.collectives import share

        known = set(inspect.signature(self._hvd.DistributedOptimizer).parameters) - {"optimizer"}
        refuse_keywords({k: v for k, v in kwargs.items() if k not in known}, "auto_optim", self.name)
        if hasattr(optimizer, "_allreduce_delay"):
            raise ValueError("auto_optim: this optimizer averages gradients already, don't wrap it twice")
        names = kwargs.pop("named_parameters", None) or [
            (f"{i}.{j}", p) for i, g in enumerate(optimizer.param_groups) for j, p in enumerate(g["params"])
        ]
        prefix = f"{_NAME}.{next(self._optimizers)}"  # the names of two optimizers must not clash
        named = [(f"{prefix}.{name}", parameter) for name, parameter in names]
        wrapped = self._hvd.DistributedOptimizer(optimizer, named_parameters=named, **kwargs)
        wrapped.defaults = optimizer.defaults  # of groups that are added later
        state = io.BytesIO()
        torch.save(optimizer.state_dict(), state)
        state = io.BytesIO(share(state.getvalue()))
        wrapped.load_state_dict(torch.load(state, map_location="cpu", weights_only=False))
        if kwargs.get("op") != self._hvd.Adasum:
            average_in_backward(wrapped, self, type(optimizer))
        return wrapped


BACKEND = HorovodBackend


def _horovod() -> Any:
    return importlib.import_module("horovod.torch")


def _imported() -> Any:
    """Horovod if the program has imported it. Never imports it."""
    module = sys.modules.get("horovod.torch")
    return module if hasattr(module, "is_initialized") else None


def _choose_device(hvd: Any, device: str | None, local_rank: int) -> torch.device:
    """A GPU by local rank among the *visible* ones where this Horovod reduces on GPUs, unless asked."""
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() and hvd.nccl_built() else "cpu"))
    if chosen.type != "cuda":
        return chosen
    if not hvd.cuda_built():
        raise ValueError(
            f"device={device!r}: this Horovod is built without CUDA; use device='cpu' or build it anew"
        )
    index = cuda_index(local_rank, torch.cuda.device_count()) if chosen.index is None else chosen.index
    return torch.device("cuda", index)


def _limits(timeout: float) -> dict[str, str]:
    """The deadline in Horovod's own words (whole seconds), for what we can't poll; ours comes first."""
    seconds = max(1, math.ceil(timeout))
    return {
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(seconds),
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(min(60, math.ceil(seconds / 2))),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(seconds + 2),
        "HOROVOD_DYNAMIC_PROCESS_SETS": "1",
    }


@contextlib.contextmanager
def _environ(settings: Mapping[str, str]) -> Iterator[None]:
    """``settings`` in the environment, where the user has not set the same."""
    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _spawned(
    local_rank: int, plan: SpawnPlan, fn: Callable[..., Any], args: Sequence[Any], kwargs: Any
) -> Any:
    """What a process that `spawn` started does."""
    from reference.idist import context

    layout = plan.layout(local_rank)
    with context.using(HorovodBackend.join(layout, timeout=plan.timeout, device=plan.device)):
        return fn(local_rank, *args, **kwargs)
