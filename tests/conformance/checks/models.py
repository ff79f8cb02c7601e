"""auto_model, auto_optim, unwrap, sync_buffers, and training with them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import reference.idist as idist
from tests.conformance.listen import refusal
from tests.conformance.oracle import assert_close, assert_same, uniform
from tests.conformance.registry import check
from tests.conformance.world import World


class Net(nn.Module):
    """Layers with and without a bias, a buffer, and a 0-d parameter; float64. The same seed makes the same net."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4).double()
        self.second = nn.Linear(4, 2, bias=False).double()
        self.scale = nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
        self.register_buffer("shift", torch.tensor([float(seed)], dtype=torch.float64))
        with torch.no_grad():
            for index, parameter in enumerate(self.parameters()):
                parameter.copy_(uniform(seed, torch.float64, parameter.shape, salt=100 + index))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))) * self.scale + self.shift


def values(module: nn.Module) -> list[Tensor]:
    """Copies of all parameters and buffers, on the CPU."""
    return [tensor.detach().cpu().clone() for tensor in (*module.parameters(), *module.buffers())]


@check("auto_model", "auto_model(model): every rank starts with rank 0's parameters and buffers")
def check_auto_model_starts_equal(world: World) -> None:
    model = idist.auto_model(Net(seed=world.rank))
    for actual, expected in zip(values(idist.unwrap(model)), values(Net(seed=0)), strict=True):
        assert_same(actual, expected)


@check("auto_model", "auto_model(model): on the device, and never DataParallel")
def check_auto_model_device(world: World) -> None:
    net = Net(seed=0)
    model = idist.auto_model(net)
    assert idist.unwrap(model) is net
    assert not isinstance(model, nn.DataParallel)
    assert isinstance(model, nn.parallel.DistributedDataParallel) == (idist.model_name() == "native-dist")
    assert {tensor.device for tensor in net.state_dict().values()} == {idist.device()}


@check("auto_model", "auto_model(model) with a keyword that the backend has no use for", outcome="ValueError")
def check_auto_model_refuses_keyword(world: World) -> None:
    text = refusal(ValueError, lambda: idist.auto_model(Net(seed=0), colour="red"))
    assert text == f"auto_model: colour has no meaning with backend={world.backend!r}: remove it"


@check("auto_model", "auto_model(model, **kwargs of DistributedDataParallel)")
def check_auto_model_passes_keywords(world: World) -> None:
    keywords: dict[str, Any] = {"find_unused_parameters": True, "gradient_as_bucket_view": True}
    if idist.model_name() == "native-dist":
        model = idist.auto_model(Net(seed=0), **keywords)
        assert model.find_unused_parameters and model.gradient_as_bucket_view
    else:
        text = refusal(ValueError, lambda: idist.auto_model(Net(seed=0), **keywords))
        listed = "find_unused_parameters, gradient_as_bucket_view"
        assert text == f"auto_model: {listed} has no meaning with backend={world.backend!r}: remove it"


@check("sync_buffers", "sync_buffers(model): every rank gets rank 0's buffers")
def check_sync_buffers(world: World) -> None:
    model = nn.Module()
    for name, dtype in (("a", torch.float32), ("b", torch.int64), ("c", torch.float32)):
        model.register_buffer(name, torch.full((2,), 10 + world.rank, dtype=dtype))
    model.register_buffer("empty", torch.empty(0))
    model.register_buffer("count", torch.tensor(7 + world.rank))
    model.to(idist.device())
    idist.sync_buffers(model)
    assert [buffer.cpu().tolist() for buffer in model.buffers()] == [[10.0] * 2, [10] * 2, [10.0] * 2, [], 7]


@check("auto_optim", "auto_optim(optimizer): still an Optimizer, for schedulers and state dicts")
def check_auto_optim_is_an_optimizer(world: World) -> None:
    model = idist.auto_model(Net(seed=0))
    plain = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    optimizer = idist.auto_optim(plain)
    if idist.model_name() in ("serial", "native-dist"):
        assert optimizer is plain
    assert isinstance(optimizer, torch.optim.Optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.1)
    _step(model, optimizer, uniform(world.rank, torch.float64, (2, 3)))
    scheduler.step()
    assert abs(optimizer.param_groups[0]["lr"] - 0.05) < 1e-15
    state = optimizer.state_dict()
    assert len(state["state"]) == len(list(model.parameters()))
    optimizer.load_state_dict(state)
    assert abs(optimizer.param_groups[0]["lr"] - 0.05) < 1e-15


@check(
    "auto_optim", "auto_optim(optimizer) with a keyword that the backend has no use for", outcome="ValueError"
)
def check_auto_optim_refuses_keyword(world: World) -> None:
    optimizer = torch.optim.SGD(idist.auto_model(Net(seed=0)).parameters(), lr=0.1)
    text = refusal(ValueError, lambda: idist.auto_optim(optimizer, colour="red"))
    assert text == f"auto_optim: colour has no meaning with backend={world.backend!r}: remove it"


_OPTIMIZERS: dict[str, Any] = {
    "SGD": lambda parameters: torch.optim.SGD(
        parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2
    ),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
}
_GLOBAL_BATCH, _STEPS = 8, 5


@check(
    "auto_optim",
    "training: parameters after some steps are those of one process ({optimizer})",
    optimizer=_OPTIMIZERS,
)
def check_training(world: World, optimizer: str) -> None:
    """Different data on every rank, float64; the oracle sees the whole batch in a plain torch loop."""
    x = uniform(0, torch.float64, (_STEPS * _GLOBAL_BATCH, 3), salt=7)
    y = uniform(1, torch.float64, (_STEPS * _GLOBAL_BATCH, 2), salt=7)
    oracle = Net(seed=0)
    plain = _OPTIMIZERS[optimizer](oracle.parameters())
    for step in range(_STEPS):
        batch = slice(step * _GLOBAL_BATCH, (step + 1) * _GLOBAL_BATCH)
        _step(oracle, plain, x[batch], y[batch])

    model = idist.auto_model(Net(seed=world.rank))
    ours = idist.auto_optim(_OPTIMIZERS[optimizer](model.parameters()))
    data = torch.utils.data.TensorDataset(x, y, torch.arange(len(x)))
    loader = idist.auto_dataloader(data, batch_size=_GLOBAL_BATCH)
    seen = []
    for inputs, targets, indices in loader:
        _step(model, ours, inputs.to(idist.device()), targets.to(idist.device()))
        seen.append(indices.cpu().tolist())
    everyone = world.exchange("seen", seen)
    for step in range(_STEPS):
        together = sorted(sample for each in everyone for sample in each[step])
        assert together == list(range(step * _GLOBAL_BATCH, (step + 1) * _GLOBAL_BATCH))
    for actual, expected in zip(values(idist.unwrap(model)), values(oracle), strict=True):
        assert_close(actual, expected, 1e-12)


@check("auto_optim", "optimizer.step(closure)")
def check_closure(world: World) -> None:
    x = [uniform(rank, torch.float64, (4, 3), salt=9) for rank in world.ranks]
    oracle = Net(seed=0)
    plain = torch.optim.SGD(oracle.parameters(), lr=0.1)
    _step(oracle, plain, torch.cat(x))

    model = idist.auto_model(Net(seed=world.rank))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    mine = x[world.rank].to(idist.device())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(mine).square().mean()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    assert_close(loss, loss_of(Net(seed=0), x[world.rank]), 1e-12)
    for actual, expected in zip(values(idist.unwrap(model)), values(oracle), strict=True):
        assert_close(actual, expected, 1e-12)


def loss_of(net: Net, x: Tensor) -> Tensor:
    return net(x).square().mean().detach()


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor | None = None) -> None:
    x = x.to(next(model.parameters()).device)
    optimizer.zero_grad()
    output = model(x)
    (output if y is None else output - y).square().mean().backward()
    optimizer.step()
