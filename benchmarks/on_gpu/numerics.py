"""Whether the device computes what it should: a training step beside float64 on the CPU, and the pixels of the augmentation.

Errors are relative: |loss - loss64| / |loss64|, and the norm of the difference of all gradients by the norm of the gradients.
Those of the gradients are about the square root of the rounding: an activation that is 0 up to rounding falls on the other side
of ReLU, and has another gradient. So the bounds are wide, two to four times what fp32 (24 bits), fp16 (11) and bf16 (8) gave on
a CPU; TF32 rounds like fp16. A wrong computation is off by 1 and more.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.on_gpu.rows import Given, Rows, arguments
from reference.cifar10 import augment, model

SEED = 543
SCALE = 2.0**10  # of the loss in fp16, so that small gradients do not vanish


class Mode(NamedTuple):
    """A format, and the largest relative errors of loss and gradients."""

    name: str
    dtype: torch.dtype
    tf32: bool
    loss: float
    gradients: float


class StepResult(NamedTuple):
    """What one training step gave: the loss, and all gradients in one vector on the CPU, both in float64."""

    loss: float
    gradients: Tensor


MODES = (
    Mode("fp32, TF32 off", torch.float32, False, 1e-5, 2e-2),
    Mode("fp32, TF32 on", torch.float32, True, 1e-3, 2e-1),
    Mode("bf16 autocast", torch.bfloat16, True, 1e-2, 5e-1),
    Mode("fp16 autocast", torch.float16, True, 1e-3, 2e-1),
)


def main() -> None:
    """Check everything."""
    given = arguments()
    rows = Rows("numerics", given)
    check_pixels(given, rows)
    check_step(given, rows)


def check_pixels(given: Given, rows: Rows) -> None:
    """The augmentation of the same images, on CPU and device, bit for bit."""
    images, _ = batch(1024 if not given.quick else 64)
    indices = torch.arange(len(images))
    found = []
    for device in ("cpu", given.device):
        drawn = augment.draws(indices.to(device), seed=SEED, epoch=3)
        cut = augment.crop_and_flip(images.to(device), drawn, flip=True)
        found.append((cut.cpu(), augment.normalise(cut).cpu()))
    (cut, floats), (other_cut, other_floats) = found
    same = torch.equal(cut, other_cut) and torch.equal(floats, other_floats)
    different = int((floats != other_floats).sum())
    rows.add(
        "augmentation beside the CPU", "equal" if same else f"{different:,} values differ", f"{len(images):,} images, bit for bit", same
    )  # fmt: skip


def batch(size: int) -> tuple[Tensor, Tensor]:
    """[size, 32, 32, 3] uint8 random images and [size] labels, the same ones every time."""
    generator = torch.Generator().manual_seed(SEED)
    images = torch.randint(0, 256, (size, 32, 32, 3), dtype=torch.uint8, generator=generator)
    return images, torch.randint(0, 10, (size,), generator=generator)


def check_step(given: Given, rows: Rows) -> None:
    """Loss and gradients of `resnet18_cifar` in every format."""
    images, labels = batch(64 if not given.quick else 4)
    x = augment.normalise(images)
    truth = step(x, labels, "cpu", torch.float64)
    for mode in MODES if given.device == "cuda" else MODES[:1]:
        torch.backends.cuda.matmul.allow_tf32 = mode.tf32
        torch.backends.cudnn.allow_tf32 = mode.tf32
        loss, gradients = errors(step(x, labels, given.device, mode.dtype), truth)
        rows.add(
            f"training step in {mode.name} beside float64",
            f"loss {loss:.1e}, gradients {gradients:.1e}",
            f"relative errors; at most {mode.loss:.0e} and {mode.gradients:.0e}",
            loss <= mode.loss and gradients <= mode.gradients,
        )


def step(x: Tensor, labels: Tensor, device: str, dtype: torch.dtype) -> StepResult:
    """One forward and backward pass with the same weights every time.

    Args:
        x: [B, 3, 32, 32] float32.
        dtype: float64 and float32 throughout; bfloat16 and float16 by autocast.
    """
    torch.manual_seed(SEED)
    low = dtype in (torch.bfloat16, torch.float16)
    net: nn.Module = model.build(model.OWN).to(memory_format=torch.channels_last)
    net = net.to(device, torch.float32 if low else dtype)
    scale = SCALE if dtype == torch.float16 else 1.0
    with torch.autocast(device, dtype if low else torch.bfloat16, enabled=low):
        output = net(x.to(device, torch.float32 if low else dtype))
        loss = nn.functional.cross_entropy(output, labels.to(device))
    (loss * scale).backward()
    gradients = [
        p.grad.detach().double().cpu().flatten() / scale for p in net.parameters() if p.grad is not None
    ]
    return StepResult(loss.detach().double().item(), torch.cat(gradients))


def errors(found: StepResult, truth: StepResult) -> tuple[float, float]:
    """Relative errors of the loss and of the gradients."""
    loss = abs(found.loss - truth.loss) / abs(truth.loss)
    return loss, ((found.gradients - truth.gradients).norm() / truth.gradients.norm()).item()


if __name__ == "__main__":
    main()
