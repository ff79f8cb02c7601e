"""When Horovod's DistributedOptimizer averages gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from reference.idist.backends.horovod import HorovodBackend


def average_in_backward(optimizer: Any, backend: HorovodBackend, plain: type[Optimizer]) -> None:
    """Have gradients averaged when backward() returns, as with DistributedDataParallel, rather than in step().

    So clipping, gradient scalers and closures see averages, and a missing rank is found within the deadline. The class
    of ``optimizer`` is changed: Horovod has made it for this optimizer alone, and it can't be subclassed.
    """
    cls: Any = type(optimizer)
    launch = cls.synchronize
    task, passes, paused = -1, 0, False

    def synchronize(self: Any) -> None:
        nonlocal passes
        if self._synchronized:
            return
        passes = 0
        backend.members = range(backend.world_size)
        with backend.guard("averaging of gradients"):
            for handle, _ in self._handles.values():
                if isinstance(handle, int):
                    backend.wait(handle)
            launch(self)

    def step(self: Any, closure: Any = None) -> Any:
        if closure is None and self._should_synchronize:
            self.synchronize()
        self._synchronized = False
        return plain.step(self, closure)

    @contextlib.contextmanager
    def no_sync(self: Any) -> Iterator[None]:
        """Gradients of backward passes inside are only added up; the first pass outside averages them."""
        nonlocal paused
        paused = True
        for parameter in self._allreduce_delay:
            self._allreduce_delay[parameter] += 1
        try:
            yield
        finally:
            paused = False

    def finish() -> None:
        nonlocal passes
        if not paused:
            passes += 1
            if passes >= optimizer.backward_passes_per_step:
                optimizer._synchronized = False
                optimizer.synchronize()

    def when_accumulated(_: Tensor) -> None:
        nonlocal task
        if task != torch._C._current_graph_task_id():  # once per backward()
            task = torch._C._current_graph_task_id()
            torch.autograd.Variable._execution_engine.queue_callback(finish)

    step.hooked = True  # type: ignore[attr-defined]  # plain.step runs torch's step hooks
    cls.synchronize, cls.step, cls.no_sync = synchronize, step, no_sync
    if backend.world_size > 1:
        for parameter in optimizer._requires_update:
            parameter.register_post_accumulate_grad_hook(when_accumulated)
