"""Collectives with one meaning on every backend.

Inputs are never changed, dtypes come back as they went in, numbers are exact. Tensors come back on the device that they
were on. Types are checked on each rank before anything is sent, with the same errors on all backends.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar, overload

import torch
from torch import Tensor

from reference.idist import messages
from reference.idist.backends.base import Backend
from reference.idist.context import current

OPS = ("SUM", "AVERAGE", "PRODUCT", "MIN", "MAX", "AND", "OR")
_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "SUM": operator.add,
    "PRODUCT": operator.mul,
    "MIN": min,
    "MAX": max,
    "AND": operator.and_,
    "OR": operator.or_,
}
# The dtype that a reduction travels in. Small integers wrap around the same way in int32; 16-bit floats keep the
# precision of float32 until the end.
_WIRE = {
    torch.bool: torch.int32,
    torch.uint8: torch.int32,
    torch.int8: torch.int32,
    torch.int16: torch.int32,
    torch.int32: torch.int32,
    torch.int64: torch.int64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
    torch.float32: torch.float32,
    torch.float64: torch.float64,
}
F = TypeVar("F", bound=Callable[..., Any])


@overload
def all_reduce(x: Tensor, op: str = "SUM", group: Any = None) -> Tensor: ...


@overload
def all_reduce(x: float, op: str = "SUM", group: Any = None) -> float: ...


def all_reduce(x: Any, op: str = "SUM", group: Any = None) -> Any:
    """Reduce ``x`` over all ranks (of ``group``).

    Args:
        x: a tensor of the same shape and dtype on every rank, or a number. Ints are reduced exactly, whatever their
            size; floats in float64, in rank order. If any rank has a float, so is the result.
        op: one of `OPS`. AND and OR are for bool and integers (bitwise); AVERAGE is for floating point tensors and for
            numbers (the result is a float); bool tensors have AND, OR, MIN and MAX.
        group: of `new_group`, or a list of ranks. A rank outside gets its own value.

    Returns:
        A new tensor like ``x``, or a number.

    Raises:
        TypeError: ``x`` is neither, or a tensor of a dtype that has no reduction (complex, quantised, ...).
        ValueError: unknown op, op without meaning for the dtype, bad group.
    """
    if not isinstance(x, (Tensor, Real)):
        raise TypeError(f"all_reduce takes a tensor or a number, not {type(x).__name__}")
    if op not in OPS:
        raise ValueError(f"op={op!r} is unknown: use one of {', '.join(OPS)}")
    if isinstance(x, Tensor):
        return _reduce_tensor(x, op, group)
    if op in ("AND", "OR") and not isinstance(x, Integral):
        raise ValueError(f"op={op!r} needs a bool or an integer, not the float {x!r}")
    values = all_gather(_plain(x), group)
    if any(isinstance(value, float) for value in values):
        values = [float(value) for value in values]
    if any(value != value for value in values):
        return math.nan  # not whatever min and max make of it, in rank order
    result = functools.reduce(_FOLD["SUM" if op == "AVERAGE" else op], values)
    return result / len(values) if op == "AVERAGE" else result


def _plain(x: Any) -> bool | int | float:
    """A Python number, also for NumPy scalars."""
    if isinstance(x, bool):
        return x
    return int(x) if isinstance(x, Integral) else float(x)


def _reduce_tensor(x: Tensor, op: str, group: Any) -> Tensor:
    if x.dtype not in _WIRE:
        raise TypeError(f"all_reduce takes no tensor of dtype {x.dtype}")
    floating = x.dtype.is_floating_point
    if op in ("AND", "OR") and floating or op == "AVERAGE" and not floating:
        needed = "a floating point" if op == "AVERAGE" else "a bool or integer"
        raise ValueError(f"op={op!r} needs {needed} tensor, not {x.dtype}")
    if x.dtype is torch.bool:
        op = {"AND": "MIN", "OR": "MAX"}.get(op, op)
        if op not in ("MIN", "MAX"):
            raise ValueError(f"op={op!r} has no meaning for torch.bool: use AND or OR, or convert the tensor")
    backend, group = current(), _handle(group)
    members = _members(backend, group)
    outside = backend.rank not in members
    if x.numel() == 0 or outside and not backend.group_needs_all_ranks:
        return x.detach().clone()
    wire = x.detach().to(device=backend.device, dtype=_WIRE[x.dtype]).contiguous()
    with backend.guard("all_reduce"):
        if op in ("AND", "OR"):
            result = functools.reduce(_FOLD[op], _gather_rows(backend, wire, group, members).unbind(0))
        elif op in ("MIN", "MAX") and floating:
            result = _extreme(backend, wire, op, group)
        else:
            result = backend.all_reduce(wire, "SUM" if op == "AVERAGE" else op, group)
    if outside:
        return x.detach().clone()
    if op == "AVERAGE":
        result = result / len(members)
    return result.to(device=x.device, dtype=x.dtype)


def _extreme(backend: Backend, x: Tensor, op: str, group: Any) -> Tensor:
    """MIN or MAX with a NaN on any rank staying one, as in torch.minimum; libraries lose it or not, by rank."""
    sign = 1 if op == "MAX" else -1
    broken = x.isnan()
    both = backend.all_reduce(torch.stack([x.masked_fill(broken, 0), sign * broken.to(x.dtype)]), op, group)
    return both[0].masked_fill(both[1] != 0, math.nan)


@overload
def all_gather(x: Tensor, group: Any = None) -> Tensor: ...


@overload
def all_gather(x: Any, group: Any = None) -> list[Any]: ...


def all_gather(x: Any, group: Any = None) -> Any:
    """Collect ``x`` of all ranks (of ``group``) on each of them.

    Args:
        x: tensors of equal shape [n, ...] (0-d counts as [1]) and dtype, or a number, string or picklable object of
            any kind on each rank.
        group: of `new_group`, or a list of ranks. A rank outside gets its own value, in the same form.

    Returns:
        For tensors [ranks * n, ...] in rank order, else a list with one entry a rank.
    """
    backend, group = current(), _handle(group)
    members = _members(backend, group)
    if not isinstance(x, Tensor):
        return _gather_messages(backend, x, group, members)
    rows = x.detach().reshape(1) if x.dim() == 0 else x.detach()
    outside = backend.rank not in members
    if outside and (rows.numel() == 0 or not backend.group_needs_all_ranks):
        return rows.clone()
    if rows.numel() == 0:
        return rows.new_empty((len(members) * rows.shape[0], *rows.shape[1:]))
    with backend.guard("all_gather"):
        gathered = _gather_rows(backend, rows.to(backend.device).contiguous(), group, members)
    return gathered.flatten(0, 1).to(x.device)


def _gather_rows(backend: Backend, x: Tensor, group: Any, members: Sequence[int]) -> Tensor:
    """[ranks, *x.shape]; on a rank outside the group only its own row."""
    if group is None or not backend.group_needs_all_ranks:
        return backend.all_gather(x, group)
    return backend.all_gather(x, None)[list(_kept(backend, members))]


def _kept(backend: Backend, members: Sequence[int]) -> Sequence[int]:
    return members if backend.rank in members else (backend.rank,)


def _gather_messages(backend: Backend, value: Any, group: Any, members: Sequence[int]) -> list[Any]:
    if group is not None and backend.group_needs_all_ranks:
        values = _gather_messages(backend, value, None, range(backend.world_size))
        return [values[rank] for rank in _kept(backend, members)]
    if backend.rank not in members:
        return [value]
    tag, payload = messages.encode(value)
    with backend.guard("all_gather"):
        blocks = backend.all_gather(_to_tensor(messages.block(tag, payload), backend), group).cpu()
        heads = [messages.parse(_to_bytes(row)) for row in blocks]
        longest = max(length for _, length, _ in heads)
        if longest <= messages.INLINE:
            return [messages.decode(tag, payload) for tag, _, payload in heads]
        rows = backend.all_gather(_to_tensor(payload.ljust(longest, b"\0"), backend), group).cpu()
    return [messages.decode(tag, _to_bytes(row[:n])) for (tag, n, _), row in zip(heads, rows, strict=True)]


def all_gather_tensors_with_shapes(
    x: Tensor, shapes: Sequence[Sequence[int]], group: Any = None
) -> list[Tensor]:
    """Collect tensors of different shapes, but of the same dtype and number of dimensions.

    Args:
        x: this rank's tensor, of the shape ``shapes[i]`` where i is its place in the group.
        shapes: one shape a rank (of the group), the same list on every rank.

    Returns:
        One tensor a rank; a rank outside the group gets ``[x]``.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"all_gather_tensors_with_shapes takes a tensor, not {type(x).__name__}")
    backend, group = current(), _handle(group)
    members = _members(backend, group)
    if backend.rank not in members and not backend.group_needs_all_ranks:
        return [x.detach().clone()]
    sizes = [torch.Size(shape) for shape in shapes]
    outside = backend.rank not in members
    if len(sizes) != len(members):
        raise ValueError(f"shapes has {len(sizes)} entries for {len(members)} ranks")
    if len({len(size) for size in sizes}) > 1:
        raise ValueError(f"shapes={[tuple(size) for size in sizes]}: all need the same number of dimensions")
    if not outside and x.shape != sizes[list(members).index(backend.rank)]:
        raise ValueError(
            f"x has the shape {tuple(x.shape)}, which is not this rank's entry of shapes={list(shapes)}"
        )
    longest = max(size.numel() for size in sizes)
    padded = x.new_zeros(longest)
    padded[: min(x.numel(), longest)] = x.detach().reshape(-1)[:longest]
    gathered = all_gather(padded, group)
    if outside:
        return [x.detach().clone()]
    rows = gathered.view(len(sizes), longest)
    return [row[: size.numel()].view(size).clone() for row, size in zip(rows, sizes, strict=True)]


def broadcast(x: Any, src: int = 0, safe_mode: bool = False) -> Any:
    """Give every rank the value of rank ``src``.

    Args:
        x: a tensor (same shape and dtype everywhere), number, string or Path. With ``safe_mode`` ranks other than
            ``src`` may pass anything, None for example, and need not know what is coming.

    Raises:
        TypeError: any other type. ValueError: ``src`` is no rank.
    """
    backend = current()
    _check_rank("src", src, backend)
    error = None
    if not isinstance(x, (Tensor, Real, str, Path)):
        error = TypeError(f"broadcast takes a tensor, number, string or Path, not {type(x).__name__}")
    if not safe_mode:
        if error is not None:
            raise error
        return _broadcast_tensor(backend, x, src) if isinstance(x, Tensor) else share(_scalar(x), src)
    meta = (str(x.dtype).removeprefix("torch."), tuple(x.shape)) if isinstance(x, Tensor) else _scalar(x)
    meta = share(error or meta, src)  # the others wait for a value: they have to hear that there is none
    if isinstance(meta, TypeError):
        raise meta
    if not isinstance(meta, tuple):
        return meta
    if backend.rank != src:
        x = torch.empty(meta[1], dtype=getattr(torch, meta[0]), device=backend.device)
    return _broadcast_tensor(backend, x, src)


def _scalar(x: Any) -> Any:
    return _plain(x) if isinstance(x, Real) else x


def _broadcast_tensor(backend: Backend, x: Tensor, src: int) -> Tensor:
    if x.numel() == 0:
        return x.detach().clone()
    with backend.guard("broadcast"):
        return backend.broadcast(x.detach().to(backend.device).contiguous(), src).to(x.device)


def share(value: Any, src: int = 0) -> Any:
    """Rank ``src``'s picklable value on every rank; what the others pass is ignored."""
    backend = current()
    tag, payload = messages.encode(value) if backend.rank == src else (b"o", b"")
    with backend.guard("broadcast"):
        head = backend.broadcast(_to_tensor(messages.block(tag, payload), backend), src)
        tag, length, inline = messages.parse(_to_bytes(head.cpu()))
        if length <= messages.INLINE:
            return messages.decode(tag, inline)
        body = backend.broadcast(_to_tensor(payload.ljust(length, b"\0"), backend), src)
    return messages.decode(tag, _to_bytes(body.cpu()))


def barrier() -> None:
    """Wait for all ranks, at most for the deadline given at initialisation (CollectiveError)."""
    backend = current()
    with backend.guard("barrier"):
        backend.barrier()


def new_group(ranks: list[int], **kwargs: Any) -> Any:
    """A group of ranks for the collectives; every rank calls this with the same list.

    Returns:
        The library's own handle (a ``torch.distributed`` process group, a Horovod process set, ...).
    """
    if not isinstance(ranks, list) or not ranks or not all(type(rank) is int for rank in ranks):
        raise ValueError(f"ranks={ranks!r}: give a list of int, with at least one rank")
    backend = current()
    for rank in ranks:
        _check_rank("ranks", rank, backend)
    if len(set(ranks)) != len(ranks):
        raise ValueError(f"ranks={ranks!r}: a rank stands there twice")
    with backend.guard("new_group"):
        return backend.new_group(sorted(ranks), **kwargs)


def one_rank_only(rank: int = 0, with_barrier: bool = False) -> Callable[[F], F]:
    """Decorator: only ``rank`` runs the function, the others return None.

    With ``with_barrier`` the others wait for it, and raise too when it raises.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            backend = current()
            _check_rank("rank", rank, backend)
            lead = backend.rank == rank
            if not with_barrier:
                return function(*args, **kwargs) if lead else None
            result = None
            with _led_by(lead, function.__qualname__):
                if lead:
                    result = function(*args, **kwargs)
            return result

        return wrapper  # type: ignore[return-value]

    return decorate


@contextmanager
def one_rank_first(rank: int = 0, local: bool = False) -> Iterator[None]:
    """The body runs on ``rank`` first (``local``: on that local rank of every node), then on the others.

    If it raises on the first, the others raise too.
    """
    backend = current()
    if local and rank >= min(all_gather(backend.nproc_per_node)):
        raise ValueError(f"rank={rank}: a node has fewer processes than that")
    _check_rank("rank", rank, backend)
    lead = (backend.local_rank if local else backend.rank) == rank
    if lead:
        with _led_by(True, "one_rank_first"):
            yield
    else:
        with _led_by(False, "one_rank_first"):
            pass
        yield


@contextmanager
def _led_by(lead: bool, what: str) -> Iterator[None]:
    """Leading ranks run the body, then all ranks learn how it went: the others raise when a leader raised."""
    try:
        yield
    except Exception as error:
        all_gather(f"{type(error).__name__}: {error}" if lead else "")
        raise
    failures = {r: text for r, text in enumerate(all_gather("")) if text}
    if failures:
        rank, text = next(iter(failures.items()))
        raise RuntimeError(f"rank {rank} failed in {what}: {text}")


def _handle(group: Any) -> Any:
    """A list of ranks becomes a group (made once per list and world)."""
    if not isinstance(group, list):
        return group
    backend = current()
    cache = backend.__dict__.setdefault("_groups_by_ranks", {})
    key = tuple(group) if all(type(rank) is int for rank in group) else None
    if key is None or key not in cache:
        cache[key] = new_group(group)
    return cache[key]


def _members(backend: Backend, group: Any) -> Sequence[int]:
    return range(backend.world_size) if group is None else backend.group_ranks(group)


def _check_rank(name: str, rank: int, backend: Backend) -> None:
    if type(rank) is not int or not 0 <= rank < backend.world_size:
        raise ValueError(f"{name}={rank!r}: ranks go from 0 to {backend.world_size - 1}")


def _to_tensor(data: bytes, backend: Backend) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(backend.device)


def _to_bytes(row: Tensor) -> bytes:
    return row.numpy().tobytes()
