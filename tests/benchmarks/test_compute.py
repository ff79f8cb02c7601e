"""The benchmark of the choices about a step: a trial of it, and that a choice is really on on one side and off on the other."""

import math
from dataclasses import fields

import pytest
import torch

from benchmarks import compute as benchmark
from benchmarks.results import ResultError
from benchmarks.starting import Bench
from benchmarks.worlds import compute as world

MODEL = "shufflenet_v2_x0_5"
CHOICES = {**world.ALONE, **world.DDP}


@pytest.mark.slow
def test_rows_of_a_trial(tmp_path):
    rows = benchmark.measure(Bench(folder=tmp_path, repeats=1, quick=True))
    expected = {f"{name}, one process" for name in world.ALONE if name != "torch.compile"}
    assert {row.name for row in rows} == expected | {f"{name}, 2 ranks" for name in world.DDP}
    for row in rows:
        assert (row.unit, row.what, row.than) == ("s/step", "with", "without")
        assert row.at_least is None and row.at_most is None
        for side in (row.ours, row.theirs):
            assert [len(start) for start in side] == [2]  # a number for each block
            assert all(math.isfinite(value) and value > 0 for block in side for value in block)


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_one_difference(name):
    choice = CHOICES[name]
    different = [
        f.name for f in fields(world.Make) if getattr(choice.on, f.name) != getattr(choice.off, f.name)
    ]
    assert len(different) == 1


def test_the_sides_differ_in_what_they_say(monkeypatch):
    seen = {}
    optimizer, build = torch.optim.SGD, world.model.build

    class Watched(optimizer):
        def __init__(self, parameters, **options):
            seen["fused"] = options["fused"]
            super().__init__(parameters, **options)

        def zero_grad(self, set_to_none=True):
            seen["set_to_none"] = set_to_none
            super().zero_grad(set_to_none)

    def watched(name):
        net = build(name)
        first = next(module for module in net.modules() if isinstance(module, torch.nn.Conv2d))

        def look(module, inputs, output):
            seen["channels_last"] = inputs[0].is_contiguous(memory_format=torch.channels_last)
            seen["bf16"] = output.dtype == torch.bfloat16
            seen["evaluate"] = (
                "inference_mode"
                if output.is_inference()
                else "no_grad"
                if not torch.is_grad_enabled()
                else None
            )

        first.register_forward_hook(look)
        return net

    monkeypatch.setattr(torch.optim, "SGD", Watched)
    monkeypatch.setattr(world.model, "build", watched)
    for name, choice in world.ALONE.items():
        for make in (choice.on, choice.off):
            if make.compiled:
                continue
            seen.clear()
            world.step_of(make, MODEL, 2, ddp=False)()
            assert seen, name
            assert {key: getattr(make, key) for key in seen} == seen, name


def test_both_sides_train_on():
    step = world.step_of(world.PLAIN, MODEL, 8, ddp=False)
    losses = [step().item() for _ in range(20)]
    assert losses[-1] < losses[1]  # two batches by heart


def test_another_loss_is_an_error():
    benchmark.check_loss("fused SGD", {"with": 2.3, "without": 2.3001})
    benchmark.check_loss("bf16 autocast", {"with": 2.33, "without": 2.3})
    with pytest.raises(ResultError, match="first step"):
        benchmark.check_loss("fused SGD", {"with": 2.33, "without": 2.3})
    with pytest.raises(ResultError, match="first step"):
        benchmark.check_loss("bf16 autocast", {"with": float("nan"), "without": 2.3})
