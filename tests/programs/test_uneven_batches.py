"""Uneven global batches and cross-replica batch norm in real processes, against plain torch in one process, in float64."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
import torch
from torch import nn

import reference.idist as idist
from tests.programs import uneven_training as program

CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def oracle(count: int, order: list[list[int]]) -> tuple[list[float], dict[str, Any]]:
    """The same training without idist and without the engine, batch by batch."""
    points, model = program.Points(count), program.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=program.LEARNING_RATE, momentum=0.9)
    losses = []
    for batch in order:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points.x[batch]), points.y[batch])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


def own_samples(order: list[list[int]]) -> list[list[list[int]]]:
    """[epoch][step] samples without the repeated ones: those that were seen in the epoch before."""
    steps = len(order) // program.EPOCHS
    epochs = []
    for first in range(0, len(order), steps):
        seen: set[int] = set()
        epochs.append([])
        for batch in order[first : first + steps]:
            epochs[-1].append([index for index in batch if index not in seen])
            seen.update(batch)
    return epochs


@pytest.mark.timeout(300)
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_uneven_last_batch_counts_every_sample_once(world_size: int) -> None:
    counts = (2 * program.BATCH_SIZE + 1, program.BATCH_SIZE + world_size + 1)
    results = idist.spawn("gloo", program.train, (counts, True), nproc_per_node=world_size, timeout=120)
    for count, result in zip(counts, results, strict=True):
        epochs = own_samples(result["order"])
        for batches in epochs:
            assert sorted(chain.from_iterable(batches)) == list(range(count))
        losses, state = oracle(count, list(chain.from_iterable(epochs)))
        assert result["same"], "the ranks ended with different parameters"
        assert result["losses"] == pytest.approx(losses, rel=1e-11)
        for name, value in state.items():
            torch.testing.assert_close(torch.tensor(result["state"][name], dtype=value.dtype), value, **CLOSE)


@pytest.mark.timeout(300)
def test_without_the_weights_it_would_be_noticed() -> None:
    """The oracle of the test above tells the right average from the average of the ranks."""
    count = 2 * program.BATCH_SIZE + 3
    (result,) = idist.spawn("gloo", program.train, ((count,), False), nproc_per_node=2, timeout=120)
    batches = list(chain.from_iterable(own_samples(result["order"])))
    losses, _ = oracle(count, batches)
    even = len(losses) // program.EPOCHS - 1  # steps before the first uneven one
    assert result["losses"][:even] == pytest.approx(losses[:even], rel=1e-11)
    assert result["losses"][even] != pytest.approx(losses[even], rel=1e-4)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("sizes", "shape"), [((3, 1, 0), (4, 3, 2)), ((1, 4), (6,))], ids=["images, one rank without", "rows"]
)
def test_cross_replica_batch_norm_is_that_of_the_whole_batch(
    sizes: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    found = idist.spawn("gloo", program.normalise, (sizes, shape), nproc_per_node=len(sizes), timeout=120)
    x, upstream = program.samples(sum(sizes), shape)
    layer = program.batch_norm(shape)
    x.requires_grad_()
    output = layer(x)
    (output * upstream).sum().backward()
    expected = {
        "output": output,
        "x": x.grad,
        "weight": layer.weight.grad,
        "bias": layer.bias.grad,
        "running_mean": layer.running_mean,
        "running_var": layer.running_var,
    }
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value.detach(), **CLOSE, msg=lambda text, n=name: f"{n}: {text}"
        )
