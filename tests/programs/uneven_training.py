"""Run by the tests in real processes: a training with uneven global batches, and cross-replica batch norm by hand."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import reference.idist as idist
from reference.engine import Events, create_supervised_trainer

BATCH_SIZE, EPOCHS, LEARNING_RATE = 12, 2, 0.1


class Points(Dataset[tuple[Tensor, Tensor, int]]):
    """Items `(x [2, 4, 4] float64, class, index)`, the same in every process."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(count)
        self.x = torch.randn(count, 2, 4, 4, generator=generator, dtype=torch.float64)
        self.y = torch.randint(3, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.x[index], self.y[index], index


def network() -> nn.Module:
    """A small one in float64, with the same weights in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        layers = (
            nn.Conv2d(2, 5, 3, bias=False),
            nn.BatchNorm2d(5),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(20, 3),
        )
        return nn.Sequential(*layers).double()


def train(local_rank: int, counts: tuple[int, ...], weighted: bool) -> list[dict[str, Any]]:
    """One training for each size of the data set, on every rank."""
    torch.set_num_threads(1)
    return [_train(Points(count), weighted) for count in counts]


def _train(points: Points, weighted: bool) -> dict[str, Any]:
    loader = idist.auto_dataloader(points, batch_size=BATCH_SIZE, shuffle=True)
    model = idist.auto_model(network(), sync_bn=True)
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9))
    losses: list[float] = []
    order: list[list[int]] = []  # [step] indices of the global batch, repeated ones included

    def prepare(batch: Any, device: Any, non_blocking: bool) -> tuple[Tensor, Tensor]:
        order.append(list(chain.from_iterable(idist.all_gather(batch[2].tolist()))))
        return batch[0], batch[1]

    trainer = create_supervised_trainer(
        model, optimizer, nn.CrossEntropyLoss(), prepare_batch=prepare, loader=loader if weighted else None
    )
    trainer.add_event_handler(Events.EPOCH_STARTED, lambda: loader.sampler.set_epoch(trainer.state.epoch - 1))
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED,
        lambda: losses.append(idist.all_reduce(float(trainer.state.output), "AVERAGE")),
    )
    trainer.run(loader, max_epochs=EPOCHS)
    state = {name: value.tolist() for name, value in idist.unwrap(model).state_dict().items()}
    return {
        "losses": losses,
        "state": state,
        "order": order,
        "same": len(set(map(str, idist.all_gather(state)))) == 1,
    }


def normalise(local_rank: int, sizes: tuple[int, ...], shape: tuple[int, ...]) -> dict[str, Tensor]:
    """Rank r's part of the samples through cross-replica batch norm and back: output, gradients, statistics of all ranks."""
    x, upstream = samples(sum(sizes), shape)
    own = slice(sum(sizes[:local_rank]), sum(sizes[: local_rank + 1]))
    layer = batch_norm(shape)
    convert = idist.auto_model(nn.Sequential(layer), sync_bn=True)
    mine = x[own].clone().requires_grad_()
    output = idist.unwrap(convert)(mine)  # without DDP: the gradients of this rank alone
    (output * upstream[own]).sum().backward()
    shapes = [(size, *shape) for size in sizes]
    assert mine.grad is not None and layer.weight.grad is not None and layer.bias.grad is not None
    return {
        "output": torch.cat(idist.all_gather_tensors_with_shapes(output, shapes)),
        "x": torch.cat(idist.all_gather_tensors_with_shapes(mine.grad, shapes)),
        "weight": idist.all_reduce(layer.weight.grad),
        "bias": idist.all_reduce(layer.bias.grad),
        "running_mean": layer.running_mean,
        "running_var": layer.running_var,
    }


def samples(count: int, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """x and the gradient that arrives at the output, [count, *shape] float64."""
    generator = torch.Generator().manual_seed(11)
    x, upstream = (torch.randn(count, *shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return 3 * x + 5, upstream


def batch_norm(shape: tuple[int, ...]) -> Any:
    """A batch norm in float64 with weights that are not 1 and 0."""
    layer = (nn.BatchNorm1d if len(shape) == 1 else nn.BatchNorm2d)(shape[0]).double()
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(0.5, 2, shape[0]))
        layer.bias.copy_(torch.linspace(-1, 1, shape[0]))
    return layer
