"""auto_model(sync_bn=True) against torch's own BatchNorm on the batch of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import reference.idist as idist
from tests.conformance.oracle import assert_close, uniform
from tests.conformance.registry import check
from tests.conformance.world import World

_TOLERANCE = 1e-12
_EVALUATION = 1e-8  # torch's own layer works then: torch_xla keeps its eps in float32
_RATE = 0.25  # of the one step of SGD through which gradients are seen, however the backend averages them

_LAYERS: dict[str, Any] = {
    "BatchNorm1d": lambda: nn.BatchNorm1d(3),
    "BatchNorm2d": lambda: nn.BatchNorm2d(3, momentum=0.3, eps=1e-3),
    "BatchNorm3d": lambda: nn.BatchNorm3d(3, momentum=None),
    "no affine": lambda: nn.BatchNorm2d(3, affine=False),
    "no running statistics": lambda: nn.BatchNorm1d(3, track_running_stats=False),
}
_REST = {"BatchNorm1d": (), "BatchNorm2d": (4, 2), "BatchNorm3d": (2, 1, 3), "no affine": (2, 2)}


class _Net(nn.Module):
    """A layer between two parameters, so that something needs a gradient on both sides."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.before = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
        self.layer = layer.double()
        if isinstance(layer.weight, nn.Parameter):
            with torch.no_grad():
                layer.weight.copy_(torch.tensor([1.5, -0.5, 2.0]))
                layer.bias.copy_(torch.tensor([0.1, 0.2, -0.3]))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * self.before.view(1, -1, *[1] * (x.dim() - 2)))


@check(
    "auto_model",
    "auto_model(model, sync_bn=True): {layer}",
    layer=_LAYERS,
    sizes=("equal", "uneven", "one rank empty"),
)
def check_sync_bn(world: World, layer: str, sizes: str) -> None:
    """Two steps in training, then one in evaluation: outputs, input gradients, parameters and running statistics."""
    counts = {"equal": [3] * 4, "uneven": [5, 1, 2, 4], "one rank empty": [4, 0, 3, 2]}[sizes][: world.size]
    oracle, net = _Net(_LAYERS[layer]()), _Net(_LAYERS[layer]())
    plain = torch.optim.SGD(oracle.parameters(), lr=_RATE / world.size)
    model = idist.auto_model(net, sync_bn=True)
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=_RATE))
    mine = slice(sum(counts[: world.rank]), sum(counts[: world.rank + 1]))
    for step in range(2):
        shape = (sum(counts), 3, *_REST.get(layer, ()))
        batch, weights = (uniform(each, torch.float64, shape, salt=50 + step) for each in (0, 1))
        whole = batch.clone().requires_grad_()
        local = batch[mine].clone().to(idist.device()).requires_grad_()
        expected, actual = oracle(whole), model(local)
        for output, weight, stepper in ((expected, weights, plain), (actual, weights[mine], optimizer)):
            stepper.zero_grad()
            (output.square() * weight.to(output.device)).sum().backward()
            stepper.step()
        assert_close(actual, expected[mine], _TOLERANCE)
        assert_close(local.grad, whole.grad[mine], _TOLERANCE)
        for ours, theirs in zip(idist.unwrap(model).parameters(), oracle.parameters(), strict=True):
            assert_close(ours, theirs, _TOLERANCE)
        for ours, theirs in zip(idist.unwrap(model).buffers(), oracle.buffers(), strict=True):
            assert_close(ours, theirs, _TOLERANCE)
    if layer != "no running statistics":
        oracle.eval(), idist.unwrap(model).eval()
        assert_close(idist.unwrap(model)(local), oracle(whole[mine]), _EVALUATION)


@check(
    "auto_model", "auto_model(model, sync_bn=True): the layers stay BatchNorm, parameters the same objects"
)
def check_sync_bn_keeps_objects(world: World) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).to(
        idist.device()
    )  # which itself may make new ones
    parameters, keys = list(net.parameters()), list(net.state_dict())
    inner = idist.unwrap(idist.auto_model(net, sync_bn=True))
    assert all(a is b for a, b in zip(inner.parameters(), parameters, strict=True))
    assert list(inner.state_dict()) == keys
    assert isinstance(inner[1], nn.modules.batchnorm._BatchNorm)
