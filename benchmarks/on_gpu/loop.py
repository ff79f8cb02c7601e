"""A plain training loop on one batch that lies on the device already: what the model alone can do."""

from __future__ import annotations

import time

import torch
from torch import nn

from reference.cifar10 import model
from reference.programs.equivalence.training import build_model

SEED = 543


def images_per_second(
    device: str,
    *,
    quick: bool,
    batch_size: int,
    seconds: float,
    amp: torch.dtype | None = None,
    compiled: bool = False,
) -> float:
    """Train `resnet18_cifar` with SGD for that long, after the first ten steps.

    Args:
        quick: a small network and few steps instead.
        amp: format of autocast; float16 with a scaler.
    """
    torch.manual_seed(SEED)
    torch.backends.cudnn.benchmark = True
    net: nn.Module = build_model(SEED) if quick else model.build(model.OWN)
    net = net.to(device).to(memory_format=torch.channels_last)
    x = torch.randn(batch_size, 3, 32, 32, device=device).to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (batch_size,), device=device)
    optimizer = torch.optim.SGD(
        net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, nesterov=True, fused=True
    )
    scaler = torch.amp.GradScaler(device, enabled=amp == torch.float16)
    forward = torch.compile(net) if compiled else net

    def step() -> None:
        with torch.autocast(device, amp or torch.bfloat16, enabled=amp is not None):
            loss = nn.functional.cross_entropy(forward(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    for _ in range(2 if quick else 10):
        step()
    _wait(device)
    steps, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for _ in range(1 if quick else 10):
            step()
            steps += 1
        _wait(device)
    return steps * batch_size / (time.perf_counter() - begin)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
