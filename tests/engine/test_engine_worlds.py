"""Metrics, evaluation, checkpoints and stopping on 2 and 4 gloo ranks with uneven and empty shares."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional

import reference.idist as idist
from reference.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from reference.handlers import (
    Checkpoint,
    JsonLinesLogger,
    TensorboardLogger,
    TerminateOnNan,
    common,
    load_checkpoint,
)
from reference.metrics import Accuracy, Loss, RunningAverage, Throughput
from reference.utils import setup_logger

SHARES = {2: [11, 0], 4: [7, 0, 4, 1]}  # samples of each rank


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(12, 6, generator=generator), torch.randint(3, (12,), generator=generator)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()


def my_batches(size: int = 3) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's share, in batches, some of them smaller."""
    shares = SHARES[idist.get_world_size()]
    start = sum(shares[: idist.get_rank()])
    x, y = (t[start : start + shares[idist.get_rank()]] for t in samples())
    return [(x[i : i + size].double(), y[i : i + size]) for i in range(0, len(x), size)]


def world(local_rank: int, folder: str) -> list[dict[str, Any]]:
    """Everything that needs several ranks, in one world. Returns what each rank saw."""
    torch.set_num_threads(1)
    rank, seen = idist.get_rank(), {}
    seen["evaluation"] = evaluation()
    seen["nothing"] = nothing_anywhere()
    seen["averages"] = averages(rank)
    seen["states"] = states(rank)
    seen["throughput"] = throughput(rank)
    seen["training"] = training(rank, Path(folder))
    seen["nan"] = one_nan(rank)
    return idist.all_gather(seen)


def evaluation() -> dict[str, Any]:
    model = idist.auto_model(net())
    with torch.no_grad():
        model.module[1].running_mean += 5 * idist.get_rank()  # as local batches leave it
    metrics = {"accuracy": Accuracy(), "loss": Loss(functional.cross_entropy)}
    evaluator = create_supervised_evaluator(model, metrics)
    result = dict(evaluator.run(my_batches()).metrics)
    return result | {"count": metrics["accuracy"].count, "iterations": evaluator.state.iteration}


def nothing_anywhere() -> str:
    evaluator = Engine(lambda engine, batch: batch, evaluation=True)
    Accuracy().attach(evaluator, "accuracy")
    try:
        evaluator.run([])
    except ValueError as error:
        return str(error)
    return "no error"


def averages(rank: int) -> list[float]:
    """Each iteration's average over ranks of different values."""
    trainer = Engine(lambda engine, batch: torch.tensor(float(batch * (rank + 1))))
    RunningAverage(alpha=0.5).attach(trainer, "value")
    values: list[float] = []
    trainer.add_event_handler(Events.ITERATION_COMPLETED, lambda e: values.append(e.state.metrics["value"]))
    trainer.run([1, 5, -3])
    return values


def states(rank: int) -> list[Any]:
    """Metrics saved in the middle, restored on this world, and on a world of another size."""
    accuracy, average = Accuracy(), RunningAverage()
    if rank != 1:
        accuracy.update((torch.tensor([1, 0]), torch.tensor([1, rank % 2])))
        average.update(0.1 * (rank + 1))
    same = Accuracy(), RunningAverage()
    same[0].load_state_dict(accuracy.state_dict())
    same[1].load_state_dict(average.state_dict())
    other = Accuracy(), RunningAverage()
    other[0].load_state_dict({"ranks": [[2, 0, 3], [1, 0, 1], [0, 0, 1]]})
    other[1].load_state_dict({"ranks": [1.0, None, 3.0]})
    if rank == 0:
        other[0].update((torch.tensor([1]), torch.tensor([1])))
    return [
        *(metric.compute() for metric in (accuracy, average)),
        *(metric.compute() for metric in same),
        *(metric.compute() for metric in other),
    ]


def throughput(rank: int) -> dict[str, float | None]:
    metric = Throughput(1, warmup=0)
    metric.start()
    for _ in range(rank + 1):
        metric.update(10)
    metric.stop()
    metric._seconds = 2.0 + rank  # the slowest rank decides
    return metric.summary()


def training(rank: int, folder: Path) -> dict[str, Any]:
    """Ranks train together, all call the checkpoint handler, rank 0 writes."""
    model = idist.auto_model(net())
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    x, y = samples()
    world_size = idist.get_world_size()
    batches = [(x[rank::world_size].double(), y[rank::world_size])] * 5
    trainer = create_supervised_trainer(
        model, optimizer, functional.cross_entropy, gradient_accumulation_steps=2
    )
    to_save = {"trainer": trainer, "model": model, "optimizer": optimizer}
    saver = common.setup_common_training_handlers(
        trainer,
        to_save=to_save,
        save_every_iters=3,
        output_path=folder / "checkpoints",
        output_names=["loss"],
        log_every_iters=2,
        n_saved=None,
        with_pbars=False,
    )
    events, board = JsonLinesLogger(folder / "events.jsonl"), TensorboardLogger(folder / "tb")
    for logger in (events, board):
        common.setup_logging(logger, trainer, optimizer, log_every_iters=2)
    logger = setup_logger("worlds", filepath=str(folder / f"log-{rank}"))
    logger.info("on rank %d", rank)
    reductions = count_reductions(model)
    trainer.run(batches)
    for scalars in (events, board):
        scalars.close()
    fresh = idist.auto_model(net())
    Checkpoint.load_objects({"model": fresh}, folder / "checkpoints" / "training_checkpoint_4.pt")
    return {
        "saved": saver.last_checkpoint,
        "reductions": reductions[0],
        "parameters": [p.tolist() for p in model.parameters()],
        "loaded": [p.tolist() for p in fresh.parameters()],
        "average": trainer.state.metrics["loss"],
    }


def count_reductions(model: nn.Module) -> list[int]:
    """How often DistributedDataParallel reduces gradients."""
    count = [0]

    def hook(state, bucket):  # torch looks at the annotations themselves, so there are none
        count[0] += 1
        return allreduce_hook(state, bucket)

    model.register_comm_hook(None, hook)
    return count


def one_nan(rank: int) -> list[int]:
    """A NaN on the last rank only, in iteration 3: everyone stops, at once or at the next look."""
    stopped = []
    for every in (1, 4):
        last = rank == idist.get_world_size() - 1
        trainer = Engine(lambda engine, batch, last=last: math.nan if last and batch == 3 else 1.0)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan(every=every))
        stopped.append(trainer.run(range(1, 9)).iteration)
    return stopped


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("size", [2, 4])
def test_a_world(size: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with idist.Parallel(backend="gloo", nproc_per_node=size) as parallel:
        ranks = parallel.run(world, str(tmp_path))
    assert len(ranks) == size

    # evaluation: every rank has the values of all samples, with rank 0's statistics
    count = sum(SHARES[size])
    x, y = (t[:count] for t in samples())
    with torch.no_grad():
        logits = net().eval()(x.double()).numpy()
    log_sum = numpy.log(numpy.exp(logits).sum(axis=1))
    loss = (log_sum - logits[numpy.arange(count), y.numpy()]).mean()
    for share, seen in zip(SHARES[size], ranks, strict=True):
        assert seen["evaluation"]["accuracy"] == (logits.argmax(axis=1) == y.numpy()).mean()
        assert seen["evaluation"]["loss"] == pytest.approx(loss, rel=1e-12)
        assert seen["evaluation"]["count"] == count
        assert seen["evaluation"]["iterations"] == -(-share // 3)
        assert "'accuracy'" in seen["nothing"] and "no rank saw a sample" in seen["nothing"]

    # running averages: the mean over ranks
    mean_rank = (size + 1) / 2
    wanted = [1 * mean_rank, 3 * mean_rank, 0.0]
    for seen in ranks:
        numpy.testing.assert_allclose(seen["averages"], wanted, rtol=1e-12, atol=1e-12)

    # states
    pairs = [(rank, [1, rank % 2]) for rank in range(size) if rank != 1]
    accuracy = sum((a == 1) + (b == 0) for _, (a, b) in pairs) / (2 * len(pairs))
    average = sum(0.1 * (rank + 1) for rank, _ in pairs) / len(pairs)
    for seen in ranks:
        assert seen["states"][0] == seen["states"][2] == accuracy
        assert seen["states"][1] == seen["states"][3] == pytest.approx(average, rel=1e-15)
        assert seen["states"][4:] == [(3 + 1) / (5 + 1), 2.0]

    # throughput: samples of all ranks by the seconds of the slowest
    for seen in ranks:
        steps = size * (size + 1) // 2
        assert (seen["throughput"]["samples"], seen["throughput"]["steps"]) == (10 * steps, steps)
        assert seen["throughput"]["samples_per_second"] == 10 * steps / (2.0 + size - 1)

    # training: 5 iterations in groups of 2, 2 and 1; saved at 3, moved to the end of its group
    files = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert files == ["training_checkpoint_4.pt"]
    content = load_checkpoint(tmp_path / "checkpoints" / files[0])
    assert not any(key.startswith("module.") for key in content["model"])
    assert content["trainer"]["iteration"] == 4
    for seen in ranks:
        assert seen["training"] == {**ranks[0]["training"], "reductions": 3}
        assert seen["training"]["saved"] == files[0]
    assert ranks[0]["training"]["loaded"] != ranks[0]["training"]["parameters"]
    assert len((tmp_path / "events.jsonl").read_text().splitlines()) == 2 * 2
    assert len(list((tmp_path / "tb").iterdir())) == 1
    logs = [(tmp_path / f"log-{rank}").read_text() for rank in range(size)]
    assert all(f"on rank {rank}" in text for rank, text in enumerate(logs))
    shown = capfd.readouterr()
    assert "on rank 0" in shown.err and "on rank 1" not in shown.err + shown.out

    assert all(seen["nan"] == [3, 4] for seen in ranks)
