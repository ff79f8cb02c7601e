"""Supervised engines against loops written by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from reference.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer

Batches = list[tuple[torch.Tensor, torch.Tensor]]


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def batches(count: int, size: int = 4) -> Batches:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(size, 6, generator=generator), torch.randint(3, (size,), generator=generator))
        for _ in range(count)
    ]


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)


def values(net: nn.Module) -> list[torch.Tensor]:
    return [value.clone() for value in net.state_dict().values()]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def by_hand(data: Batches, epochs: int, *, amp: torch.dtype | None = None, scaled: bool = False) -> Any:
    net = model()
    optimizer = sgd(net)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    losses = []
    for _ in range(epochs):
        for x, y in data:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=amp or torch.bfloat16, enabled=amp is not None):
                loss = functional.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return values(net), losses


@pytest.mark.parametrize(
    ("mode", "dtype", "scaled"),
    [
        (None, None, False),
        ("bf16", torch.bfloat16, False),
        ("amp", torch.bfloat16, False),
        ("fp16", torch.float16, True),
    ],
)
def test_training_is_the_loop_bit_for_bit(mode: str | None, dtype: torch.dtype | None, scaled: bool) -> None:
    net = model()
    losses: list[torch.Tensor] = []
    trainer = create_supervised_trainer(net, sgd(net), functional.cross_entropy, amp_mode=mode)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e: losses.append(e.state.output))
    trainer.run(batches(5), max_epochs=3)
    wanted, wanted_losses = by_hand(batches(5), 3, amp=dtype, scaled=scaled)
    assert equal(values(net), wanted)
    assert [loss.item() for loss in losses] == wanted_losses
    # what is kept is a number on the device, with no graph behind it
    assert all(not loss.requires_grad and loss.dim() == 0 for loss in losses)
    assert (trainer.state.scaler is not None) == scaled


def test_a_scaler_of_ones_own_and_none() -> None:
    net = model()
    own = torch.amp.GradScaler("cpu", init_scale=8.0)
    for scaler, wanted in ((own, own), (False, None)):
        trainer = create_supervised_trainer(
            net, sgd(net), functional.cross_entropy, amp_mode="fp16", scaler=scaler
        )
        assert trainer.state.scaler is wanted


def accumulated(sizes: list[int], steps: int, epochs: int) -> tuple[nn.Module, list[bool]]:
    torch.manual_seed(0)
    net = nn.Linear(6, 3).double()
    data = [(x.double(), y) for x, y in batches(len(sizes))]
    trainer = create_supervised_trainer(
        net, sgd(net), functional.cross_entropy, gradient_accumulation_steps=steps
    )
    pending: list[bool] = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e: pending.append(e.state.accumulating))
    trainer.run(data, max_epochs=epochs)
    return net, pending


def test_accumulated_batches_are_one_big_batch_also_the_leftover_ones() -> None:
    net, pending = accumulated([4] * 8, steps=3, epochs=2)
    assert pending == [True, True, False, True, True, False, True, False] * 2
    torch.manual_seed(0)
    wanted = nn.Linear(6, 3).double()
    optimizer = sgd(wanted)
    data = batches(8)
    for _ in range(2):
        for group in (data[:3], data[3:6], data[6:]):
            x, y = torch.cat([x for x, _ in group]).double(), torch.cat([y for _, y in group])
            optimizer.zero_grad()
            functional.cross_entropy(wanted(x), y).backward()
            optimizer.step()
    for a, b in zip(net.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_accumulation_and_states() -> None:
    net = model()
    trainer = create_supervised_trainer(
        net, sgd(net), functional.cross_entropy, gradient_accumulation_steps=2
    )
    with pytest.raises(ValueError, match="epoch_length"):
        trainer.run(iter(batches(4)))
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=3), trainer.terminate)
    trainer.run(batches(4))
    with pytest.raises(ValueError, match=r"iteration 3 .* accumulated"):
        trainer.state_dict()
    trainer.run(batches(4))  # goes on with the gradients that it holds
    assert trainer.state_dict()["iteration"] == 4
    whole = model()
    create_supervised_trainer(whole, sgd(whole), functional.cross_entropy, gradient_accumulation_steps=2).run(
        batches(4)
    )
    assert equal(values(net), values(whole))


def test_the_output_transform_gets_everything() -> None:
    net = model()
    seen: list[Any] = []

    def transform(
        x: torch.Tensor, y: torch.Tensor, y_pred: torch.Tensor, loss: torch.Tensor
    ) -> dict[str, float]:
        seen.append((x.shape, y.shape, y_pred.shape))
        return {"batch loss": loss.item()}

    def prepare(batch: Any, device: torch.device, non_blocking: bool) -> Any:
        seen.append((device.type, non_blocking))
        return batch["x"], batch["y"]

    trainer = create_supervised_trainer(
        net,
        sgd(net),
        functional.cross_entropy,
        "cpu",
        True,
        prepare_batch=prepare,
        output_transform=transform,
    )
    x, y = batches(1)[0]
    assert list(trainer.run([{"x": x, "y": y}]).output) == ["batch loss"]
    assert seen == [("cpu", True), ((4, 6), (4,), (4, 3))]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"amp_mode": "fp32"}, "amp_mode='fp32'"),
        ({"amp_mode": "fp16", "device": "xla"}, "XLA"),
        ({"scaler": True}, "without amp_mode"),
        ({"gradient_accumulation_steps": 0}, "at least 1"),
        ({"gradient_accumulation_steps": 1.5}, "at least 1"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    net = model()
    with pytest.raises(ValueError, match=message):
        create_supervised_trainer(net, sgd(net), functional.cross_entropy, **arguments)


def test_evaluation_sees_the_model_in_evaluation_mode_and_training_puts_it_back() -> None:
    net = model()
    data = batches(3)
    trainer = create_supervised_trainer(net, sgd(net), functional.cross_entropy)
    evaluator = create_supervised_evaluator(net)
    outputs: list[torch.Tensor] = []
    evaluator.add_event_handler(Events.ITERATION_COMPLETED, lambda e: outputs.append(e.state.output[0]))
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: evaluator.run(data))
    modes: list[bool] = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda: modes.append(net.training))
    trainer.run(data, max_epochs=2)
    assert modes == [False] * 6
    assert equal(values(net), by_hand(data, 2)[0])
    assert all(output.is_inference() and not output.requires_grad for output in outputs)
    net.eval()
    with torch.no_grad():
        assert equal(outputs[-3:], [net(x) for x, _ in data])


def test_frozen_parts_of_a_model_stay_in_evaluation_mode_between_evaluations() -> None:
    net = model()
    net[1].eval()
    create_supervised_trainer(net, sgd(net), functional.cross_entropy).run(batches(2))
    assert net.training and not net[1].training


def test_evaluation_in_mixed_precision() -> None:
    net = model()
    output = create_supervised_evaluator(net, amp_mode="bf16").run(batches(1)).output
    assert output[0].dtype is torch.bfloat16
    assert isinstance(create_supervised_evaluator(net), Engine)


class Waiting(torch.Tensor):
    """A tensor that fails when the host reads its value."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("item", "__bool__", "__float__", "__int__", "tolist", "numpy", "cpu"):
            raise AssertionError(f"the step waits for the device in {name}")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_step_and_the_metrics_do_not_wait_for_the_device() -> None:
    from reference.handlers import TerminateOnNan
    from reference.metrics import Accuracy, Loss, RunningAverage

    net = model()
    data = [(x.as_subclass(Waiting), y) for x, y in batches(3)]
    trainer = create_supervised_trainer(net, sgd(net), functional.cross_entropy)
    RunningAverage(epoch_bound=False).attach(trainer, "loss", Events.ITERATION_COMPLETED(once=99))
    trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan(every=99))
    trainer.run(data)
    assert isinstance(trainer.state.output, Waiting)
    with pytest.raises(AssertionError, match="item"):
        trainer.state.output.item()
    for metric in (Accuracy(), Loss(functional.cross_entropy)):
        for x, y in data:
            metric.update((net(x), y))
