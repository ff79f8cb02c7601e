"""Augmentation against a definition written per sample in plain Python integers and numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference.cifar10.augment import MEAN, STD, Draws, crop_and_flip, draws, hash64, normalise

WORD = 2**64


def splitmix(state: int, number: int) -> int:
    """Output `number` (from 0) of SplitMix64 started at `state`, as its authors' C code defines it."""
    z = (state + (number + 1) * 0x9E3779B97F4A7C15) % WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % WORD
    return z ^ (z >> 31)


def decisions(seed: int, epoch: int, index: int) -> tuple[int, int, bool]:
    """Crop offsets and flip of one sample."""
    bits = splitmix(splitmix(splitmix(0, seed), epoch), index)
    return (bits % 2**24) * 9 // 2**24, (bits // 2**24 % 2**24) * 9 // 2**24, bits >= 2**63


def augment_one(image: np.ndarray, top: int, left: int, mirrored: bool) -> np.ndarray:
    """Pixel by pixel, straight from the definition."""
    result = np.empty_like(image)
    for row in range(32):
        for column in range(32):
            y, x = top + row - 4, left + (31 - column if mirrored else column) - 4
            result[row, column] = image[y, x] if 0 <= y < 32 and 0 <= x < 32 else 128
    return result


def test_first_outputs_are_those_of_splitmix64() -> None:
    # Published first outputs for the state 1234567.
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    found = [value % WORD for value in hash64(torch.arange(5), 1234567).tolist()]
    assert found == expected


@settings(deadline=None, max_examples=200)
@given(seed=st.integers(0, 2**32 - 1), epoch=st.integers(0, 10**6), index=st.integers(0, 2**62))
def test_draws_follow_the_definition(seed: int, epoch: int, index: int) -> None:
    drawn = draws(torch.tensor([index]), seed=seed, epoch=epoch)
    assert (int(drawn.top), int(drawn.left), bool(drawn.flip)) == decisions(seed, epoch, index)


@pytest.mark.parametrize("flip", [True, False])
def test_pixels_follow_the_definition(flip: bool) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    index = torch.arange(1000, 1040)
    found = crop_and_flip(torch.from_numpy(images), draws(index, seed=3, epoch=2), flip=flip).numpy()
    for position, sample in enumerate(index.tolist()):
        top, left, mirrored = decisions(3, 2, sample)
        np.testing.assert_array_equal(
            found[position], augment_one(images[position], top, left, mirrored and flip)
        )


def test_every_corner_offset() -> None:
    image = np.random.default_rng(1).integers(0, 256, (1, 32, 32, 3), dtype=np.uint8)
    for top in (0, 4, 8):
        for left in (0, 4, 8):
            for mirrored in (True, False):
                drawn = Draws(torch.tensor([top]), torch.tensor([left]), torch.tensor([mirrored]))
                found = crop_and_flip(torch.from_numpy(image), drawn, flip=True)[0].numpy()
                np.testing.assert_array_equal(found, augment_one(image[0], top, left, mirrored))


def test_a_sample_does_not_depend_on_its_batch() -> None:
    images = torch.randint(0, 256, (64, 32, 32, 3), dtype=torch.uint8)
    index = torch.randperm(50_000)[:64]
    whole = crop_and_flip(images, draws(index, seed=543, epoch=4), flip=True)
    for part in (slice(0, 1), slice(5, 23), slice(63, 64)):
        assert torch.equal(
            whole[part], crop_and_flip(images[part], draws(index[part], seed=543, epoch=4), flip=True)
        )


def test_epochs_seeds_and_samples_differ() -> None:
    index = torch.arange(10_000)

    def code(seed: int, epoch: int) -> torch.Tensor:
        drawn = draws(index, seed=seed, epoch=epoch)
        return (drawn.top * 9 + drawn.left) * 2 + drawn.flip

    reference = code(543, 1)
    for other in (code(543, 2), code(544, 1), code(1, 543), reference.roll(1)):
        same = (reference == other).double().mean().item()  # 1 / 162 for independent draws
        assert abs(same - 1 / 162) < 5 * math.sqrt(1 / 162 / 10_000)


def test_decisions_are_uniform_and_independent() -> None:
    # Chi-squared over all 162 combinations; mean 161, standard deviation sqrt(2 * 161).
    drawn = draws(torch.arange(200_000), seed=543, epoch=7)
    counts = torch.bincount((drawn.top * 9 + drawn.left) * 2 + drawn.flip, minlength=162).double()
    expected = 200_000 / 162
    chi_squared = ((counts - expected) ** 2 / expected).sum().item()
    assert len(counts) == 162
    assert abs(chi_squared - 161) < 5 * math.sqrt(2 * 161)


def test_normalise() -> None:
    images = torch.randint(0, 256, (8, 32, 32, 3), dtype=torch.uint8)
    found = normalise(images)
    expected = (images.numpy() / 255.0 - np.array(MEAN)) / np.array(STD)
    assert found.dtype == torch.float32 and found.shape == (8, 3, 32, 32)
    assert found.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_allclose(found.numpy(), expected.transpose(0, 3, 1, 2), rtol=0, atol=5e-7)


def test_same_pixels_as_torchvisions_transforms() -> None:
    from torchvision.transforms import functional

    images = torch.randint(0, 256, (16, 32, 32, 3), dtype=torch.uint8)
    index = torch.arange(16)
    drawn = draws(index, seed=1, epoch=1)
    found = normalise(crop_and_flip(images, drawn, flip=True))
    for position in range(16):
        padded = functional.pad(images[position].permute(2, 0, 1), [4], fill=128)
        one = functional.crop(padded, int(drawn.top[position]), int(drawn.left[position]), 32, 32)
        one = functional.hflip(one) if drawn.flip[position] else one
        one = functional.normalize(one.float() / 255, list(MEAN), list(STD))
        torch.testing.assert_close(found[position], one, rtol=0, atol=5e-7)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cpu_and_gpu_agree_bit_for_bit() -> None:
    images = torch.randint(0, 256, (512, 32, 32, 3), dtype=torch.uint8)
    index = torch.arange(512) * 97
    results = []
    for device in ("cpu", "cuda"):
        drawn = draws(index.to(device), seed=543, epoch=3)
        results.append(normalise(crop_and_flip(images.to(device), drawn, flip=True)).cpu())
    assert torch.equal(*results)
