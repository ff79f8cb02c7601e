"""The backend interface: all that differs between communication libraries, and nothing else.

What the library has in common on every backend (checks, dtypes, codecs, averages, ranks outside a group) lives in
`collectives.py` and `auto.py`; a backend only moves tensors of a few dtypes and wraps models, optimizers and loaders.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from reference.idist.environment import Layout, place

if TYPE_CHECKING:
    from reference.idist.launcher import SpawnPlan

DEFAULT_TIMEOUT = 600.0  # seconds; the deadline of an initialisation and of every collective


class CollectiveError(RuntimeError):
    """A collective failed or passed its deadline: the message names backend, operation, rank and the library's reason."""


@contextmanager
def unless_within(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Call ``action`` in another thread if the body takes longer."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def watchdog(seconds: float, text: str) -> AbstractContextManager[None]:
    """End the process, with ``text``, if the body takes longer: nothing else interrupts a thread that waits inside a library."""

    def give_up() -> None:
        print(text, file=sys.stderr, flush=True)
        os._exit(1)

    return unless_within(seconds, give_up)


@dataclass(frozen=True)
class RankGroup:
    """A group's handle where the library has none of its own."""

    ranks: tuple[int, ...]


class Backend(ABC):
    """One initialised communication library, shared by all replicas of this process.

    Layout properties are asked for each time: where replicas are threads (XLA), the answer depends on the caller.
    """

    model_name: ClassVar[str]
    options: ClassVar[frozenset[str]] = frozenset()  # what initialize() takes besides timeout and device
    spawn_options: ClassVar[frozenset[str]] = frozenset()  # what spawn() takes besides the plan
    name: str

    # -- life cycle ----------------------------------------------------------------------------------------------
    @classmethod
    def missing(cls, name: str) -> str | None:
        """Why ``name`` can't be initialised on this machine, with the command that mends it; None when it can."""
        return None

    @classmethod
    @abstractmethod
    def initialize(cls, name: str, *, timeout: float, device: str | None, **options: Any) -> Backend:
        """Join the world that the environment (or ``options``) describes, within ``timeout`` seconds."""

    @classmethod
    def adopt(cls) -> Backend | None:
        """The world that the user made with the library's own calls, if there is one. Never imports the library."""
        return None

    @classmethod
    @abstractmethod
    def spawn(
        cls, plan: SpawnPlan, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run ``fn(local_rank, *args, **kwargs)`` in every process of ``plan`` and return rank 0's value."""

    def survey(self) -> None:  # noqa: B027
        """Let all ranks tell each other their hosts, where the layout was only assumed. Every rank calls it."""

    def alive(self) -> bool:
        """Whether the library's world still exists (the user may have ended it)."""
        return True

    @abstractmethod
    def finalize(self, failed: bool = False) -> None:
        """Leave the world. With ``failed`` the others may be gone: never wait for them."""

    # -- layout --------------------------------------------------------------------------------------------------
    @property
    @abstractmethod
    def rank(self) -> int: ...

    @property
    @abstractmethod
    def local_rank(self) -> int: ...

    @property
    @abstractmethod
    def world_size(self) -> int: ...

    @property
    @abstractmethod
    def nproc_per_node(self) -> int:
        """Number of processes (replicas) on this node; nodes may differ."""

    @property
    @abstractmethod
    def nnodes(self) -> int: ...

    @property
    @abstractmethod
    def node_rank(self) -> int: ...

    @property
    @abstractmethod
    def device(self) -> torch.device: ...

    def set_local_rank(self, index: int) -> None:
        """Only for worlds that were adopted: tell which process of its node this is."""
        raise ValueError(
            f"set_local_rank({index}): {self.name} knows its local rank; it is for adopted groups only"
        )

    # -- tensor primitives ---------------------------------------------------------------------------------------
    # `x` is detached, contiguous, not empty and on `self.device`; the result is a new tensor. `group` is None (all
    # ranks) or a value of new_group(). Ranks outside a group don't call them, unless `group_needs_all_ranks`.
    group_needs_all_ranks: ClassVar[bool] = False

    @abstractmethod
    def all_reduce(self, x: Tensor, op: str, group: Any) -> Tensor:
        """``op`` is SUM, PRODUCT, MIN or MAX; the dtype int32, int64, float32 or float64."""

    @abstractmethod
    def all_gather(self, x: Tensor, group: Any) -> Tensor:
        """[n, *x.shape] in rank order, for any dtype."""

    @abstractmethod
    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """``x`` of rank ``src``, for any dtype."""

    @abstractmethod
    def barrier(self) -> None: ...

    @abstractmethod
    def new_group(self, ranks: Sequence[int], **kwargs: Any) -> Any:
        """The library's own handle of a group; every rank calls it with the same ranks."""

    @abstractmethod
    def group_ranks(self, group: Any) -> tuple[int, ...]:
        """The ranks of a handle, () for one that this rank is not part of. ValueError for what is no handle."""

    @contextmanager
    def guard(self, operation: str) -> Iterator[None]:
        """Turn the library's errors inside into a CollectiveError that names what happened where."""
        try:
            yield
        except CollectiveError:
            raise
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            message = f"{self.name}: {operation} failed on rank {self.rank} of {self.world_size}: {reason}"
            raise CollectiveError(message + self.blame(operation)) from error

    @contextmanager
    def translated(self, operation: str) -> Iterator[None]:
        """`guard` for code that has collectives inside and may fail for reasons of its own, which stay what they are."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, CollectiveError) or not self.is_of_the_library(error):
                raise
            with self.guard(operation):
                raise

    def is_of_the_library(self, error: RuntimeError) -> bool:
        """Whether the library raised it because it could not reach another rank."""
        return False

    def blame(self, operation: str) -> str:
        """After a failed collective: what is known of the other ranks, as text to append."""
        return ""

    # -- models, optimizers, loaders -----------------------------------------------------------------------------
    @abstractmethod
    def wrap_model(self, model: nn.Module, **kwargs: Any) -> nn.Module:
        """``model`` is on the device already. ValueError for a keyword that the backend has no use for."""

    @abstractmethod
    def wrap_optimizer(self, optimizer: Optimizer, **kwargs: Any) -> Optimizer: ...

    def wrap_loader(self, loader: DataLoader) -> Any:
        return loader


class ProcessBackend(Backend):
    """A backend whose ranks are processes, so that the layout stands once the world is made."""

    _layout: Layout
    _device: torch.device

    @property
    def rank(self) -> int:
        return self._layout.rank

    @property
    def local_rank(self) -> int:
        return self._layout.local_rank

    @property
    def world_size(self) -> int:
        return self._layout.world_size

    @property
    def nproc_per_node(self) -> int:
        assert self._layout.nproc_per_node is not None  # known since the survey
        return self._layout.nproc_per_node

    @property
    def nnodes(self) -> int:
        assert self._layout.nnodes is not None
        return self._layout.nnodes

    @property
    def node_rank(self) -> int:
        assert self._layout.node_rank is not None
        return self._layout.node_rank

    @property
    def device(self) -> torch.device:
        return self._device

    def survey(self) -> None:
        name = socket.gethostname().encode()[:64].ljust(64, b"\0")
        rows = self.all_gather(torch.frombuffer(bytearray(name), dtype=torch.uint8).to(self.device), None)
        self._layout = place(self._layout, [row.numpy().tobytes().decode() for row in rows.cpu()])


def not_a_group(group: object) -> ValueError:
    """The error of ``group_ranks`` for what is no handle, the same on every backend."""
    return ValueError(f"group={group!r} is no group: give a list of ranks, or what new_group([...]) returned")


def refuse_keywords(kwargs: Mapping[str, Any], what: str, backend: str | None) -> None:
    """Refuse keywords that a backend has no use for."""
    if kwargs:
        raise ValueError(
            f"{what}: {', '.join(sorted(kwargs))} has no meaning with backend={backend!r}: remove it"
        )
