"""Metrics in one process, against sums by hand. Worlds of several ranks: test_engine_worlds.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from torch.nn import functional

from reference.engine import Engine, Events
from reference.metrics import Accuracy, Loss, Metric, RunningAverage, Throughput


def feed(metric: Metric, *outputs: Any) -> float:
    metric.reset()
    for output in outputs:
        metric.update(output)
    return metric.compute()


def test_multiclass_accuracy() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs = [
        (torch.randn(n, 5, generator=generator), torch.randint(5, (n,), generator=generator))
        for n in (7, 1, 4)
    ]
    right = sum(
        int(numpy.argmax(row) == label)
        for p, y in outputs
        for row, label in zip(p.numpy(), y.numpy(), strict=True)
    )
    metric = Accuracy()
    value = feed(metric, *outputs)
    assert type(value) is float and value == right / 12
    assert metric.count == 12


def test_accuracy_of_pixels() -> None:
    y = torch.tensor([[[0, 1], [2, 1]]])
    logits = functional.one_hot(torch.tensor([[[0, 1], [2, 2]]]), 3).permute(0, 3, 1, 2).float()
    assert feed(Accuracy(), (logits, y)) == 0.75


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
@pytest.mark.parametrize("shape", [(4,), (4, 1), (2, 2)])
def test_binary_accuracy(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    predicted, wanted = torch.tensor([0, 1, 1, 0]).reshape(shape), torch.tensor([0, 1, 0, 0]).reshape(shape)
    assert feed(Accuracy(), (predicted.to(dtype), wanted)) == 0.75


@pytest.mark.parametrize(
    ("predicted", "wanted"),
    [((4, 3), (5,)), ((4, 3), (4, 2)), ((4, 1), (4,)), ((4,), (4, 1)), ((4, 3, 2), (4, 3)), ((), ())],
)
def test_shapes_that_do_not_belong_together(predicted: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="don't belong together"):
        Accuracy().update((torch.zeros(predicted), torch.zeros(wanted, dtype=torch.int64)))


def test_probabilities_and_float_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="threshold"):
        feed(Accuracy(), (torch.tensor([0.2, 0.9]), torch.tensor([0, 1])))
    with pytest.raises(ValueError, match="whole numbers"):
        feed(Accuracy(), (torch.zeros(2, 3), torch.tensor([0.0, 1.0])))


def test_loss_is_weighted_by_batch_size() -> None:
    generator = torch.Generator().manual_seed(0)
    p = torch.randn(11, 3, generator=generator)
    y = torch.randint(3, (11,), generator=generator)
    metric = Loss(functional.cross_entropy)
    value = feed(metric, (p[:8], y[:8]), (p[8:], y[8:]))
    oracle = -numpy.mean(
        [
            numpy.log(numpy.exp(row)[k] / numpy.exp(row).sum())
            for row, k in zip(p.double().numpy(), y, strict=True)
        ]
    )
    assert type(value) is float and value == pytest.approx(oracle, rel=1e-6)
    assert metric.count == 11
    assert (
        feed(Loss(functional.mse_loss, batch_size=lambda y: y.numel()), (torch.ones(2, 3), torch.zeros(2, 3)))
        == 1
    )
    assert feed(Loss(functional.mse_loss), (torch.ones(2), torch.zeros(2), {"reduction": "mean"})) == 1.0


def test_loss_of_half_precision_predictions_is_computed_in_float32() -> None:
    p, y = torch.randn(64, 10, generator=torch.Generator().manual_seed(0)).bfloat16(), torch.arange(64) % 10
    assert feed(Loss(functional.cross_entropy), (p, y)) == functional.cross_entropy(p.float(), y).item()


def test_many_small_terms_do_not_lose_precision() -> None:
    metric = Loss(lambda p, y: p.mean())
    outputs = [(torch.tensor([0.1]), torch.zeros(1))] * 20_000
    assert feed(metric, *outputs) == pytest.approx(torch.tensor(0.1).item(), rel=1e-13)  # 1e-4 in float32


def test_wrong_losses() -> None:
    with pytest.raises(ValueError, match="mean over the batch"):
        Loss(lambda p, y: p - y).update((torch.ones(2), torch.ones(2)))


def test_nothing_at_all_is_an_error_that_names_the_metric() -> None:
    evaluator = Engine(lambda engine, batch: batch, evaluation=True)
    Accuracy().attach(evaluator, "top-1")
    with pytest.raises(ValueError, match=r"'top-1' .* no rank saw a sample"):
        evaluator.run([])
    for metric in (Loss(functional.mse_loss), RunningAverage(), Throughput(1)):
        with pytest.raises(ValueError, match=type(metric).__name__):
            metric.compute()


def test_one_metric_on_two_engines() -> None:
    metrics = {"accuracy": Accuracy(), "loss": Loss(functional.mse_loss)}
    engines = [Engine(lambda engine, batch: batch, evaluation=True) for _ in range(2)]
    for engine in engines:
        for name, metric in metrics.items():
            metric.attach(engine, name)
    ones, zeros = torch.ones(2), torch.zeros(2)
    engines[0].run([(ones, zeros), (ones, ones)])
    engines[1].run([(ones, zeros)])
    assert engines[0].state.metrics == {"accuracy": 0.5, "loss": 0.5}
    assert engines[1].state.metrics == {"accuracy": 0.0, "loss": 1.0}
    engines[0].run([(ones, ones)], max_epochs=2)
    assert engines[0].state.metrics == {"accuracy": 1.0, "loss": 0.0}


def test_an_output_transform() -> None:
    metric = Accuracy(output_transform=lambda output: (output["logits"], output["y"]))
    evaluator = Engine(lambda engine, batch: batch, evaluation=True)
    metric.attach(evaluator, "accuracy")
    evaluator.run([{"logits": torch.eye(2), "y": torch.tensor([0, 0])}])
    assert evaluator.state.metrics["accuracy"] == 0.5


def moving(values: list[float], alpha: float) -> list[float]:
    result = values[:1]
    for value in values[1:]:
        result.append(alpha * result[-1] + (1 - alpha) * value)
    return result


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("bound", [False, True])
def test_running_average(as_tensor: bool, bound: bool) -> None:
    numbers = [3.0, -1.0, 4.0, 1.0, -5.0, 9.0]
    trainer = Engine(lambda engine, batch: {"loss": torch.tensor(batch) if as_tensor else batch})
    average = RunningAverage(alpha=0.7, output_transform=lambda output: output["loss"], epoch_bound=bound)
    average.attach(trainer, "loss")
    seen: list[float] = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e: seen.append(e.state.metrics["loss"]))
    trainer.run(numbers, max_epochs=2)
    wanted = moving(numbers, 0.7) * 2 if bound else moving(numbers * 2, 0.7)
    assert all(type(value) is float for value in seen)
    numpy.testing.assert_allclose(seen, wanted, rtol=1e-12)


def test_running_average_of_a_metric_and_at_other_events() -> None:
    trainer = Engine(lambda engine, batch: (torch.eye(2)[torch.tensor(batch)], torch.tensor([0, 0])))
    RunningAverage(Accuracy(), alpha=0.5).attach(trainer, "accuracy", Events.ITERATION_COMPLETED(every=2))
    seen: list[Any] = []
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda e: seen.append(e.state.metrics.get("accuracy"))
    )
    trainer.run([[0, 0], [0, 1], [1, 1]])
    assert seen == [None, 0.75, 0.75]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RunningAverage(alpha=0.0),
        lambda: RunningAverage(alpha=1.1),
        lambda: RunningAverage(Accuracy(), output_transform=len),
        lambda: RunningAverage().update(torch.zeros(2)),
        lambda: Throughput(0),
        lambda: Throughput(1, warmup=-1),
    ],
)
def test_wrong_arguments(make: Any) -> None:
    with pytest.raises(ValueError):
        make()


class Clock:
    """A clock that only moves when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("reference.metrics.throughput.time.perf_counter", lambda: self.now)

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


def test_throughput_leaves_out_warm_up_and_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    durations = iter([50.0, 7.0, *(float(n) for n in range(1, 19))])  # two warm-up steps, then 18
    trainer = Engine(lambda engine, batch: clock.pass_by(next(durations)))
    trainer.add_event_handler(Events.STARTED, clock.pass_by, 0.5)
    throughput = Throughput(lambda batch: len(batch), warmup=2, from_batch=True)
    throughput.attach(trainer, "images/s")
    trainer.add_event_handler(Events.EPOCH_COMPLETED, clock.pass_by, 1000.0)  # validation
    state = trainer.run([[0] * 4] * 10, max_epochs=2)
    summary = throughput.summary()
    assert summary["seconds"] == sum(range(1, 19))
    assert (summary["samples"], summary["steps"]) == (72, 18)
    assert state.metrics["images/s"] == throughput.compute() == 72 / sum(range(1, 19))
    assert summary["step_p50"] == state.metrics["images/s/step_p50"] == 9
    assert summary["step_p95"] == state.metrics["images/s/step_p95"] == 18
    assert summary["time_to_first_step"] == 50.0
    assert summary["total_seconds"] == 57 + sum(range(1, 19)) and summary["input_share"] is None
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=1), trainer.terminate)
    durations = iter([1.0])
    trainer.run([[0]])
    assert throughput.summary()["samples_per_second"] is None  # everything was warm-up


def test_the_share_of_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    class Data:
        def __len__(self) -> int:
            return 4

        def __iter__(self) -> Iterator[int]:
            for number in range(4):
                clock.pass_by(2.0)
                yield number

    throughput = Throughput(1, warmup=3)
    prepare = throughput.timed(lambda batch: clock.pass_by(1.0))

    def step(engine: Engine, batch: int) -> None:
        prepare(batch)
        clock.pass_by(7.0)

    trainer = Engine(step)
    trainer.add_event_handler(Events.GET_BATCH_COMPLETED, clock.pass_by, 0.5)
    throughput.attach(trainer, "images/s")
    trainer.add_event_handler(Events.EPOCH_COMPLETED, clock.pass_by, 1000.0)
    trainer.run(Data(), max_epochs=2)
    summary = throughput.summary()
    assert (summary["steps"], summary["seconds"], summary["total_seconds"]) == (5, 52.5, 84.0)
    assert summary["input_share"] == pytest.approx(
        3.5 / 10.5
    )  # until the batch is prepared, whatever came in between


def test_throughput_stops_when_terminated_and_counts_what_happens_within_an_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    trainer = Engine(lambda engine, batch: clock.pass_by(1.0))
    throughput = Throughput(10, warmup=0)
    throughput.attach(trainer, "images/s")
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), clock.pass_by, 3.0)  # a checkpoint
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=3), trainer.terminate)
    trainer.add_event_handler(Events.COMPLETED, clock.pass_by, 1000.0)
    trainer.run(range(10))
    assert throughput.compute() == 30 / 6.0


def test_states_go_on_where_they_were() -> None:
    ones, zeros = torch.ones(4), torch.zeros(4)
    for make, outputs in [
        (Accuracy, [(ones, zeros), (ones, ones), (zeros, zeros)]),
        (lambda: Loss(functional.mse_loss), [(ones, zeros), (ones, ones), (ones * 0.1, zeros)]),
        (lambda: RunningAverage(alpha=0.9), [0.1, 0.2, 0.7]),
    ]:
        whole = feed(make(), *outputs)
        first = make()
        first.update(outputs[0])
        second = make()
        second.load_state_dict(first.state_dict())
        for output in outputs[1:]:
            second.update(output)
        assert second.compute() == whole
