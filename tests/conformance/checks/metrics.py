"""Accuracy and Loss over all ranks: exact, also when ranks saw different numbers of samples, or none."""

from __future__ import annotations

import torch
from torch import nn

import reference.idist as idist
from reference.metrics import Accuracy, Loss
from tests.conformance.listen import refusal
from tests.conformance.oracle import uniform
from tests.conformance.registry import check
from tests.conformance.world import World

_BATCHES = {  # sizes of the batches of each rank
    "equal": ((4, 4), (4, 4), (4, 4), (4, 4)),
    "uneven": ((7, 1), (3,), (5, 5, 2), (1,)),
    "one rank empty": ((6, 3), (), (2,), ()),
    "only the last": ((), (), (), (5,)),
}


@check("metrics", "Accuracy and Loss, {sizes}", sizes=_BATCHES)
def check_metrics(world: World, sizes: str) -> None:
    batches = _BATCHES[sizes][: world.size]
    if sizes == "only the last":
        batches = (((),) * (world.size - 1)) + ((5,),)
    accuracy, loss = Accuracy(), Loss(nn.CrossEntropyLoss())
    right, total, count = 0, 0.0, 0
    for rank in world.ranks:
        for index, size in enumerate(batches[rank]):
            logits = uniform(rank, torch.float64, (size, 3), salt=index)
            labels = (uniform(rank, torch.float64, (size,), salt=10 + index) * 1.5 + 1.5).long()
            for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
                right += row.index(max(row)) == label
                total += torch.tensor(row, dtype=torch.float64).logsumexp(0).item() - row[label]
                count += 1
            if rank == world.rank:
                output = logits.to(idist.device()), labels.to(idist.device())
                accuracy.update(output)
                loss.update(output)
    assert accuracy.compute() == right / count
    assert abs(loss.compute() - total / count) < 1e-12
    assert accuracy.count == loss.count == count


@check("metrics", "Accuracy and Loss when no rank saw a sample", outcome="ValueError")
def check_metrics_empty(world: World) -> None:
    for metric in (Accuracy(), Loss(nn.MSELoss())):
        text = refusal(ValueError, metric.compute)
        assert text.endswith("has nothing to compute from: no rank saw a sample")
