"""Batch normalisation over the global batch, on every backend: the idist collectives with the right backward.

The statistics of Ioffe and Szegedy, Batch Normalization (2015), taken over all ranks. Ranks may hold different numbers of
samples, also none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from reference.idist.backends.base import Backend
from reference.idist.collectives import all_reduce


class _SumOverRanks(torch.autograd.Function):
    """Sum of ``x`` over all ranks. Its gradient is the sum over all ranks of the incoming gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return all_reduce(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return all_reduce(grads[0])


class CrossReplicaBatchNorm(_BatchNorm):
    """Batch normalisation whose mean and variance are, in training, those of the global batch."""

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if not self.training:  # without communication, as ranks may evaluate different numbers of batches
            return super().forward(input)
        x = input.double() if input.dtype is torch.float64 else input.float()
        axes = [axis for axis in range(x.dim()) if axis != 1]
        local = torch.cat([x.sum(axes), x.new_tensor([x.numel() / x.shape[1]])])
        total = _SumOverRanks.apply(local)
        count = total[-1].detach()
        shape = [1, -1] + [1] * (x.dim() - 2)
        mean = total[:-1] / count
        centred = x - mean.view(shape)
        variance = _SumOverRanks.apply(centred.square().sum(axes)) / count  # a second pass: no cancellation
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            self._update_running(mean.detach(), variance.detach(), count)
        y = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(input.dtype)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        rate = 1.0 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)  # type: ignore[union-attr]
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), rate)  # type: ignore[union-attr]


class _BatchNorm1d(CrossReplicaBatchNorm, nn.BatchNorm1d): ...


class _BatchNorm2d(CrossReplicaBatchNorm, nn.BatchNorm2d): ...


class _BatchNorm3d(CrossReplicaBatchNorm, nn.BatchNorm3d): ...


_CROSS_REPLICA: dict[type[nn.Module], type[CrossReplicaBatchNorm]] = {
    nn.BatchNorm1d: _BatchNorm1d,
    nn.BatchNorm2d: _BatchNorm2d,
    nn.BatchNorm3d: _BatchNorm3d,
}


def convert_batchnorm(model: nn.Module, backend: Backend) -> nn.Module:
    """``model`` with every BatchNorm layer normalising over all ranks; layers and parameters stay the same objects."""
    if backend.model_name == "native-dist" and backend.device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    for module in model.modules():
        if type(module) in _CROSS_REPLICA:
            module.__class__ = _CROSS_REPLICA[type(module)]
    return model
