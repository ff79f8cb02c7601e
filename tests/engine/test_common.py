"""`setup_common_training_handlers`: which handler does what when, and resuming with all of it."""

from __future__ import annotations

import copy
import json
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from reference.engine import Engine, Events, create_supervised_trainer
from reference.handlers import Checkpoint, JsonLinesLogger, PiecewiseLinear, common, load_checkpoint
from reference.idist import EpochSampler
from reference.metrics import Accuracy


class Run:
    """A training with everything that has state."""

    def __init__(self, folder: Path, *, save_every: int = 1, accumulate: int = 1) -> None:
        generator = torch.Generator().manual_seed(0)
        x, y = torch.randn(22, 5, generator=generator), torch.randint(3, (22,), generator=generator)
        self.loader = DataLoader(
            TensorDataset(x, y), batch_size=4, sampler=EpochSampler(22, shuffle=True, seed=7)
        )
        torch.manual_seed(1)
        self.model = nn.Linear(5, 3)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.trainer = create_supervised_trainer(
            self.model,
            self.optimizer,
            functional.cross_entropy,
            amp_mode="fp16",
            output_transform=lambda x, y, y_pred, loss: {"loss": loss.detach(), "pair": (y_pred.detach(), y)},
            gradient_accumulation_steps=accumulate,
        )
        schedule = PiecewiseLinear(self.optimizer, "lr", [(0, 0.0), (6, 0.1), (18, 0.0)])
        accuracy = Accuracy(output_transform=lambda output: output["pair"])
        accuracy.attach(self.trainer, "accuracy")
        self.events = JsonLinesLogger(folder / "events.jsonl")
        to_save = {
            "trainer": self.trainer,
            "model": self.model,
            "optimizer": self.optimizer,
            "schedule": schedule,
            "scaler": self.trainer.state.scaler,
            "accuracy": accuracy,
            "events": self.events,
        }
        self.checkpoint = common.setup_common_training_handlers(
            self.trainer,
            train_sampler=self.loader.sampler,
            to_save=to_save,
            save_every_iters=save_every,
            output_path=folder,
            lr_scheduler=schedule,
            output_names=["loss"],
            log_every_iters=2,
            with_pbars=False,
            n_saved=None,
            include_self=True,
        )
        # added after the handler that saves, and still logged before it saves
        common.setup_logging(self.events, self.trainer, self.optimizer, log_every_iters=1)
        self.events.attach_output_handler(
            self.trainer, Events.EPOCH_COMPLETED, "epoch", metric_names=["accuracy"]
        )

    def go(self) -> Run:
        self.trainer.run(self.loader, max_epochs=3)
        self.events.close()
        return self


def lines(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "time"} for line in found]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@pytest.mark.parametrize("accumulate", [1, 2])
def test_resuming_anywhere_is_bit_identical_in_everything(accumulate: int, tmp_path: Path) -> None:
    whole = Run(tmp_path / "whole", accumulate=accumulate).go()
    saved = sorted(int(path.stem.split("_")[-1]) for path in (tmp_path / "whole").glob("*.pt"))
    # 6 iterations an epoch; a group of accumulated gradients ends at each second
    assert saved == list(range(1, 19)) if accumulate == 1 else saved == list(range(2, 19, 2))
    for step in saved:
        folder = tmp_path / f"from-{step}"
        folder.mkdir()
        (folder / "events.jsonl").write_bytes((tmp_path / "whole" / "events.jsonl").read_bytes())
        resumed = Run(folder, accumulate=accumulate)
        content = load_checkpoint(tmp_path / "whole" / f"training_checkpoint_{step}.pt")
        Checkpoint.load_objects(resumed.checkpoint.to_save, content)
        resumed.go()
        assert lines(folder) == lines(tmp_path / "whole"), step
        if step < 18:
            final = "training_checkpoint_18.pt"
            a, b = load_checkpoint(folder / final), load_checkpoint(tmp_path / "whole" / final)
            del a["events"], b["events"]  # a size in bytes: the times of lines differ in length
            assert same(a, b), step
        assert same(resumed.model.state_dict(), whole.model.state_dict())


def simple(outputs: list[Any], **arguments: Any) -> tuple[Engine, Checkpoint | None]:
    trainer = Engine(lambda engine, batch: batch)
    checkpoint = common.setup_common_training_handlers(trainer, with_pbars=False, **arguments)
    trainer.run(outputs)
    return trainer, checkpoint


def test_outputs_by_key_by_place_and_alone() -> None:
    for output, names in [({"a": 1.0, "b": 2.0}, ["a", "b"]), ((1.0, 2.0), ["a", "b"]), (1.0, ["a"])]:
        trainer, _ = simple([output] * 3, output_names=names, log_every_iters=2)
        assert trainer.state.metrics == {"a": 1.0, "b": 2.0} if len(names) == 2 else {"a": 1.0}


def test_torch_schedulers_start_with_the_first_value() -> None:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    trainer = Engine(lambda engine, batch: optimizer.step())
    rates: list[float] = []
    trainer.add_event_handler(Events.ITERATION_STARTED, lambda: rates.append(optimizer.param_groups[0]["lr"]))
    common.setup_common_training_handlers(trainer, lr_scheduler=scheduler, with_pbars=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns when the first value was skipped
        trainer.run(range(3))
    assert rates == [1.0, 0.5, 0.25]


def test_a_state_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    thing = copy.deepcopy(nn.Linear(1, 1))
    outputs = [1.0] * 6 + [math.nan] + [1.0] * 20
    trainer, checkpoint = simple(
        outputs, to_save={"x": thing}, output_path=tmp_path, save_every_iters=4, log_every_iters=100
    )
    assert trainer.state.iteration == 8  # seen at 7, decided before the checkpoint at 8
    assert checkpoint is not None and checkpoint.last_checkpoint == "training_x_4.pt"
    trainer, _ = simple(outputs, stop_on_nan=False)
    assert trainer.state.iteration == len(outputs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "one place"),
        ({"output_path": "a", "save_handler": "b"}, "one place"),
        ({"output_path": ".", "save_every_iters": 0}, "save_every_iters"),
        ({"output_path": ".", "n_saved": 0}, "n_saved"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        simple([1.0], to_save={"x": nn.Linear(1, 1)}, **arguments)
