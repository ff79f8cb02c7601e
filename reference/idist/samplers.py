"""Which sample goes to which rank, in which order: a function of seed and epoch, never of the world size.

There is one global order of samples for an epoch. Sample i of it belongs to rank i % world size, so that the global batch
of step k, `order[k * batch_size : (k + 1) * batch_size]`, is the same for any number of ranks.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DistributedSampler, Sampler

from reference.idist.context import current

_GLOBAL_GENERATOR = threading.Lock()  # replicas may be threads


class ShardedSampler(Sampler[int]):
    """One rank's share of a global order of ``length`` samples.

    Args:
        length: number of samples in the global order.
        num_replicas, rank: world size and rank; those of the current world if not given.
        seed: of the order.
        multiple_of: cut the order to a multiple of this many samples (a global batch size, for ``drop_last``).
        padding: "none": ranks may differ by one sample (exact evaluation). "last_step": a rank repeats samples only if
            it would otherwise have none at the last step, so that all take the same number of steps.
            "equal": all ranks have the same number of samples.
        batch_size: the global batch size, needed for "last_step".
    """

    def __init__(
        self,
        length: int,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        seed: int = 0,
        multiple_of: int = 1,
        padding: str = "none",
        batch_size: int = 1,
    ) -> None:
        self.num_replicas = current().world_size if num_replicas is None else num_replicas
        self.rank = current().rank if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(
                f"rank={rank!r} of num_replicas={num_replicas!r}: ranks go from 0 to num_replicas - 1"
            )
        self.seed = seed
        self.epoch = 0
        self.start_index = (
            0  # of this rank: where the next iteration starts; used once, for resuming within an epoch
        )
        self._length = length - length % multiple_of
        self._total = self._length
        if padding == "equal":
            self._total += -self._length % self.num_replicas
        elif padding == "last_step" and 0 < self._length % batch_size < self.num_replicas:
            self._total += self.num_replicas - self._length % batch_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch (from 0) of the next iteration: every epoch has its own order."""
        self.epoch = epoch

    def order(self) -> Sequence[int]:
        """The global order of this epoch, the same on every rank."""
        raise NotImplementedError

    def share(self, step: int, batch_size: int) -> tuple[int, int]:
        """How many samples of a batch are this rank's own, and how many all ranks have together at that step.

        Repeated samples count on no rank; they are the last ones of a batch. Where every rank multiplies the mean loss
        over its ``own`` samples by ``own * num_replicas / all``, the average of the ranks' gradients is the gradient of
        the mean loss over the global batch, also when that is uneven.

        Args:
            step: of the pass over the samples, from 0.
            batch_size: of one rank.

        Raises:
            ValueError: there is no such step.
        """
        first = step * batch_size * self.num_replicas
        everyone = min(self._length - first, batch_size * self.num_replicas)
        if step < 0 or everyone <= 0:
            raise ValueError(f"step={step!r}: the {self._length} samples end before it, or it is below 0")
        return len(range(self.rank, everyone, self.num_replicas)), everyone

    def __iter__(self) -> Iterator[int]:
        start, self.start_index = self.start_index, 0
        order = self.order()
        for position in range(self.rank + start * self.num_replicas, self._total, self.num_replicas):
            yield order[position % self._length]

    def __len__(self) -> int:
        return len(range(self.rank, self._total, self.num_replicas))


class EpochSampler(ShardedSampler):
    """Samples 0 to length - 1, in their own order or shuffled anew in each epoch. Arguments as in `ShardedSampler`."""

    def __init__(self, length: int, *args: Any, shuffle: bool = False, **kwargs: Any) -> None:
        super().__init__(length, *args, **kwargs)
        self.shuffle = shuffle
        self._samples = length

    def order(self) -> Sequence[int]:
        if not self.shuffle:
            return range(self._samples)
        return torch.randperm(self._samples, generator=epoch_generator(self.seed, self.epoch)).tolist()


class DistributedProxySampler(ShardedSampler):
    """Deals out the order of any sampler of fixed length. Arguments after the sampler as in `ShardedSampler`.

    The order depends on seed and epoch alone: samplers with a ``generator`` (torch's own) draw from one made of the two,
    others from the global one, which is seeded for that and restored. Ranks get equal numbers of samples: the order is
    continued from its start where it does not divide.

    Raises:
        TypeError: not a sampler, or one that deals out samples to ranks itself.
    """

    def __init__(
        self, sampler: Sampler[int], num_replicas: int | None = None, rank: int | None = None, **kwargs: Any
    ) -> None:
        if not isinstance(sampler, Sampler):
            raise TypeError(f"DistributedProxySampler wraps a torch Sampler, not {type(sampler).__name__}")
        if deals_out(sampler):
            raise TypeError(f"{type(sampler).__name__} deals out samples to ranks already: don't wrap it")
        super().__init__(len(sampler), num_replicas, rank, padding="equal", **kwargs)  # type: ignore[arg-type]
        self.sampler = sampler

    def order(self) -> Sequence[int]:
        generator = epoch_generator(self.seed, self.epoch)
        if hasattr(self.sampler, "generator"):
            drawing = copy.copy(self.sampler)
            drawing.generator = generator
            order = list(drawing)
        else:
            with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(generator.initial_seed())
                order = list(self.sampler)
        if len(order) != len(self.sampler):  # type: ignore[arg-type]
            raise ValueError(
                f"{type(self.sampler).__name__} gave {len(order)} samples, which is not its length"
            )
        return order


def deals_out(sampler: object) -> bool:
    """Whether a sampler gives each rank its own share already."""
    return isinstance(sampler, (ShardedSampler, DistributedSampler))


def epoch_generator(seed: int, epoch: int) -> torch.Generator:
    """A generator for one epoch of one seed. Neighbouring seeds and epochs share nothing."""
    return torch.Generator().manual_seed((seed * 0x9E3779B97F4A7C15 + epoch * 0xBF58476D1CE4E5B9 + 1) % 2**63)
