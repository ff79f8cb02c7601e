"""Augmentation in bulk on the training device: pad 4, random crop, horizontal flip, normalise.

What happens to a sample is a function of (seed, epoch, sample index) alone, whatever process, batch, device or resumed run
it turns up in. The random numbers come from no generator with a state, but from a hash of those three: SplitMix64 (G. Steele,
D. Lea, C. Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014), in 64-bit integers, so CPUs and GPUs agree.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

PAD = 4
FILL = 128
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)

_MASK = 2**64 - 1
_GAMMA = 0x9E3779B97F4A7C15
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


class Draws(NamedTuple):
    """The random decisions for a batch: crop offsets [B] int64 in [0, 8] and flips [B] bool."""

    top: Tensor
    left: Tensor
    flip: Tensor


def epoch_key(seed: int, epoch: int) -> int:
    """The number in [0, 2**64) that an epoch adds to the hash of every sample; needs no tensor."""
    key = 0
    for part in (seed, epoch):
        key = (key + part * _GAMMA + _GAMMA) & _MASK
        for shift, factor in _STEPS:
            key = ((key ^ (key >> shift)) * factor) & _MASK
        key ^= key >> 31
    return key


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x >> bits as if int64 were unsigned. torch shifts copies of the sign in; `>>` on XLA divides, which rounds up."""
    return torch.bitwise_right_shift(x, bits) & (2 ** (64 - bits) - 1)


def hash64(index: Tensor, key: int) -> Tensor:
    """SplitMix64's output number `index` from the state `key`: [B] int64 holding 64 random bits each.

    Sums and products wrap around modulo 2**64, in int64 as in unsigned numbers.
    """
    x = index * _signed(_GAMMA) + _signed((key + _GAMMA) & _MASK)
    for shift, factor in _STEPS:
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    return x ^ _shifted(x, 31)


def draws(index: Tensor, *, seed: int, epoch: int) -> Draws:
    """What (seed, epoch) decides for the samples `index` ([B] int64), on the same device.

    Three separate parts of the hash: 24 bits for each offset (scaled to 0..8, even to 1 in 10**6), the top bit for the flip.
    """
    bits = hash64(index, epoch_key(seed, epoch))
    places = 2 * PAD + 1
    top = ((bits & 0xFFFFFF) * places) >> 24
    left = ((_shifted(bits, 24) & 0xFFFFFF) * places) >> 24
    return Draws(top, left, bits < 0)


def crop_and_flip(images: Tensor, drawn: Draws, *, flip: bool) -> Tensor:
    """Cut a 32x32 window out of each image padded by 4 pixels of 128, and mirror it where drawn.

    Args:
        images: [B, 32, 32, 3] uint8.
        drawn: one decision an image.
        flip: whether mirroring is allowed at all.

    Returns:
        [B, 32, 32, 3] uint8.
    """
    size = images.shape[1]
    padded = torch.nn.functional.pad(images, (0, 0, PAD, PAD, PAD, PAD), value=FILL)
    steps = torch.arange(size, device=images.device)
    rows = drawn.top[:, None] + steps
    columns = drawn.left[:, None] + (
        torch.where(drawn.flip[:, None], size - 1 - steps, steps) if flip else steps
    )
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    return padded[batch, rows[:, :, None], columns[:, None, :]]


def normalise(images: Tensor) -> Tensor:
    """[B, 32, 32, 3] uint8 to [B, 3, 32, 32] float32, channels last in memory: (x / 255 - mean) / std by channel."""
    centre, scale = _centre_and_scale(images.device)
    return images.float().sub_(centre).mul_(scale).permute(0, 3, 1, 2)


@functools.cache
def _centre_and_scale(device: torch.device) -> tuple[Tensor, Tensor]:
    # A difference and then a product, each rounded once, are the same bits on every device. A division is not, nor is a
    # product and then a sum: XLA rounds those together.
    mean = torch.tensor(MEAN, dtype=torch.float64)
    std = torch.tensor(STD, dtype=torch.float64)
    return (255 * mean).float().to(device), (1 / (255 * std)).float().to(device)
