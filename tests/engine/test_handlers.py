"""Schedules, stopping, progress and the loggers."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from rich.console import Console
from torch import nn

from reference.engine import Engine, Events
from reference.handlers import (
    EarlyStopping,
    JsonLinesLogger,
    PiecewiseLinear,
    ProgressBar,
    TensorboardLogger,
    TerminateOnNan,
    global_step_from_engine,
    load_checkpoint,
)


def engine(step: Callable[[Engine, Any], Any] = lambda engine, batch: batch) -> Engine:
    return Engine(step)


def sgd(groups: int = 1, lr: float = 0.5) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": nn.Linear(1, 1).parameters(), "lr": lr} for _ in range(groups)], lr=lr)


# ---- schedules


def seen_by_iterations(
    optimizer: torch.optim.Optimizer, schedule: PiecewiseLinear, count: int
) -> list[float]:
    trainer, values = engine(), []
    trainer.add_event_handler(Events.ITERATION_STARTED, schedule)
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda: values.append(optimizer.param_groups[0][schedule.param_name])
    )
    trainer.run(range(count))
    return values


@pytest.mark.parametrize(
    "milestones",
    [
        [(0, 0.0), (5, 0.4), (20, 0.0)],  # warm-up, then linear decay
        [(3, 0.1), (4, 0.2), (11, -0.7), (12, 5.0)],
        [(7, 0.3)],
        [(100, 1.0), (200, 2.0)],
    ],
)
def test_piecewise_linear_is_interpolation(milestones: list[tuple[int, float]]) -> None:
    optimizer = sgd()
    values = seen_by_iterations(optimizer, PiecewiseLinear(optimizer, "lr", milestones), 25)
    wanted = numpy.interp(range(25), *zip(*milestones, strict=True))
    numpy.testing.assert_array_equal(values, wanted)


def test_piecewise_linear_goes_on_from_its_state_and_survives_the_optimizers() -> None:
    milestones = [(0, 0.0), (4, 1.0), (9, 0.0)]
    whole = sgd()
    wanted = seen_by_iterations(whole, PiecewiseLinear(whole, "lr", milestones), 9)
    first = sgd()
    schedule = PiecewiseLinear(first, "lr", milestones)
    values = seen_by_iterations(first, schedule, 3)
    second = sgd()
    resumed = PiecewiseLinear(second, "lr", milestones)
    second.load_state_dict(first.state_dict())
    resumed.load_state_dict(schedule.state_dict())
    assert values + seen_by_iterations(second, resumed, 6) == wanted


def test_piecewise_linear_of_one_group_and_another_parameter() -> None:
    optimizer = sgd(groups=2)
    PiecewiseLinear(optimizer, "momentum", [(0, 0.9)], param_group_index=1)()
    assert [group["momentum"] for group in optimizer.param_groups] == [0, 0.9]


@pytest.mark.parametrize(
    "make",
    [
        lambda o: PiecewiseLinear(o, "lr", []),
        lambda o: PiecewiseLinear(o, "lr", [(0, 1.0), (0, 2.0)]),
        lambda o: PiecewiseLinear(o, "lr", [(5, 1.0), (3, 2.0)]),
        lambda o: PiecewiseLinear(o, "lr", [(0.5, 1.0)]),
        lambda o: PiecewiseLinear(o, "learning_rate", [(0, 1.0)]),
        lambda o: PiecewiseLinear(o, "lr", [(0, 1.0)], param_group_index=1),
    ],
)
def test_wrong_schedules(make: Callable[[Any], Any]) -> None:
    with pytest.raises(ValueError, match=r"milestones|param_name|param_group_index"):
        make(sgd())


# ---- stopping


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda v: v,
        lambda v: {"loss": v, "text": "x", "count": 3},
        lambda v: [1.0, (v,)],
        lambda v: torch.tensor([0.0, v]),
        lambda v: (torch.zeros(2), {"a": torch.tensor(v)}, 1.0),
    ],
)
def test_terminate_on_nan(bad: float, wrap: Callable[[float], Any]) -> None:
    for every, end in ((1, 3), (4, 4), (5, 5)):
        trainer = engine(lambda engine, batch: wrap(bad if batch == 3 else 1.0))
        guard = TerminateOnNan(every=every)
        trainer.add_event_handler(Events.ITERATION_COMPLETED, guard)
        assert trainer.run(range(1, 10)).iteration == end
        assert guard.triggered
    trainer = engine(lambda engine, batch: wrap(float(batch)))
    trainer.add_event_handler(Events.ITERATION_COMPLETED, guard)
    assert trainer.run(range(1, 10)).iteration == 9
    assert not guard.triggered


@pytest.mark.parametrize(
    ("scores", "arguments", "evaluations"),
    [
        ([1, 2, 3, 4, 5], {}, 5),
        ([1, 0.9, 0.8, 2], {}, 3),
        ([1, 0.9, 2, 1.9, 1.8, 9], {}, 5),
        ([math.nan, math.nan, 3], {}, 2),
        ([1, math.nan, 2, math.nan, math.nan, 5], {}, 5),
        # rises of 0.4 with min_delta=0.5: two of them together are one improvement, if they are counted together
        ([1, 1.4, 1.8, 2.2], {"min_delta": 0.5}, 3),
        ([1, 1.4, 1.8, 2.2], {"min_delta": 0.5, "cumulative_delta": True}, 4),
    ],
)
def test_early_stopping(scores: list[float], arguments: dict[str, Any], evaluations: int) -> None:
    trainer, evaluator = engine(), Engine(lambda engine, batch: batch, evaluation=True)
    values = iter(scores)
    stopping = EarlyStopping(2, lambda e: e.state.output, trainer, **arguments)
    evaluator.add_event_handler(Events.COMPLETED, stopping)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run([next(values)]))
    assert trainer.run([0], max_epochs=len(scores)).epoch == evaluations
    again = EarlyStopping(2, lambda e: e.state.output, trainer)
    again.load_state_dict(stopping.state_dict())
    assert (again.counter, again.best_score) == (stopping.counter, stopping.best_score)


def test_wrong_stopping() -> None:
    for make in (
        lambda: TerminateOnNan(every=0),
        lambda: EarlyStopping(0, lambda e: 0.0, engine()),
        lambda: EarlyStopping(1, lambda e: 0.0, engine(), min_delta=-1.0),
    ):
        with pytest.raises(ValueError, match="at least"):
            make()


# ---- progress


def draw(over: str, terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=200)
    trainer = engine(lambda engine, batch: engine.state.metrics.update(loss=1 / batch))
    ProgressBar(over, console).attach(trainer, ["loss", "absent"])
    trainer.run([1, 2, 3], max_epochs=2)
    return out.getvalue()


def test_the_bar_on_a_terminal_and_elsewhere() -> None:
    text = draw("epoch", terminal=True)
    assert text.count("\n") == 2  # one line stays per epoch
    assert "epoch 1/2" in text and "epoch 2/2" in text and "3/3" in text and "loss: 0.3333" in text
    text = draw("run", terminal=True)
    assert text.count("\n") == 1 and "6/6" in text.splitlines()[-1]
    assert draw("epoch", terminal=False) == ""
    with pytest.raises(ValueError, match="over="):
        ProgressBar("batches")


# ---- JSON lines


def lines(path: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    found = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    for line in found:
        assert type(line.pop("time")) is float
    return found


def test_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "new" / "events.jsonl"
    optimizer = sgd(groups=2)
    trainer, evaluator = engine(), Engine(lambda engine, batch: batch, evaluation=True)
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda e: e.state.metrics.update(loss=0.5, count=3, text="no number")
    )
    evaluator.add_event_handler(Events.EPOCH_COMPLETED, lambda e: e.state.metrics.update(accuracy=math.nan))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run([0]))
    with JsonLinesLogger(path) as logger:
        logger.log("start", config={"käse": [1, math.inf]})
        logger.attach_output_handler(trainer, Events.ITERATION_COMPLETED(every=2), "training", "all")
        logger.attach_output_handler(
            trainer,
            Events.ITERATION_COMPLETED(once=3),
            "output",
            metric_names=["loss", "absent"],
            output_transform=lambda output: {"x": torch.tensor(output)},
        )
        logger.attach_opt_params_handler(trainer, Events.EPOCH_STARTED(once=2), optimizer)
        step = global_step_from_engine(trainer)
        logger.attach_output_handler(
            evaluator, Events.COMPLETED, "val", ["accuracy"], global_step_transform=step
        )
        trainer.run([1, 2], max_epochs=2)
        assert len(lines(path)) == 7  # flushed, while the file is open
    training = {"event": "training", "metrics": {"loss": 0.5, "count": 3}}
    assert lines(path) == [
        {"event": "start", "config": {"käse": [1, "inf"]}},
        {**training, "step": 2},
        {"event": "val", "step": 1, "metrics": {"accuracy": "nan"}},
        {"event": "optimizer", "step": 2, "metrics": {"lr/group_0": 0.5, "lr/group_1": 0.5}},
        {"event": "output", "step": 3, "metrics": {"loss": 0.5, "x": 1}},
        {**training, "step": 4},
        {"event": "val", "step": 2, "metrics": {"accuracy": "nan"}},
    ]


def test_json_lines_and_crashes(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    first = JsonLinesLogger(path)
    first.log("kept")
    state = first.state_dict()
    first.log("after the checkpoint", text="x" * 200_000)
    first.close()
    whole = path.read_bytes()
    for cut in (len(whole), len(whole) - 1, len(whole) - 100_000, whole.index(b"\n") + 2):
        path.write_bytes(whole[:cut])
        second = JsonLinesLogger(path)  # repairs the last line
        assert [line["event"] for line in lines(path)] == ["kept", "after the checkpoint"][
            : 2 if cut == len(whole) else 1
        ]
        second.log("more")
        second.load_state_dict(state)
        second.log("again")
        second.close()
        assert [line["event"] for line in lines(path)] == ["kept", "again"]
    other = JsonLinesLogger(tmp_path / "other.jsonl")
    other.load_state_dict(state)  # another run's folder: nothing to remove
    other.log("first")
    other.close()
    assert [line["event"] for line in lines(tmp_path / "other.jsonl")] == ["first"]
    path.write_bytes(b"torn")
    JsonLinesLogger(path).close()
    assert path.read_bytes() == b""


def test_loggers_refuse_what_they_cannot_log(tmp_path: Path) -> None:
    trainer = engine(lambda engine, batch: "text")
    logger = JsonLinesLogger(tmp_path / "x")
    with pytest.raises(ValueError, match="nothing to log"):
        logger.attach_output_handler(trainer, Events.COMPLETED, "x")
    logger.attach_output_handler(trainer, Events.COMPLETED, "x", output_transform=lambda output: output)
    with pytest.raises(ValueError, match=r"cannot log \['output'\]"):
        trainer.run([0])
    logger.close()


# ---- TensorBoard


def test_tensorboard_scalars_can_be_read_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    optimizer = sgd()
    trainer = engine(lambda engine, batch: {"loss": 0.25 * batch})
    with TensorboardLogger(tmp_path) as logger:
        logger.attach_output_handler(
            trainer, Events.ITERATION_COMPLETED(every=2), "training", output_transform=lambda output: output
        )
        logger.attach_opt_params_handler(trainer, Events.EPOCH_STARTED, optimizer)
        trainer.run([1, 2, 3, 4], max_epochs=2)
    accumulator = EventAccumulator(str(tmp_path))
    accumulator.Reload()
    scalars = {
        tag: [(s.step, s.value) for s in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }
    assert scalars == {
        "training/loss": [(2, 0.5), (4, 1.0), (6, 0.5), (8, 1.0)],
        "lr/group_0": [(1, 0.5), (2, 0.5)],
    }


# ---- ClearML

CLEARML = """
import sys
from pathlib import Path
from clearml import Task
Task.set_offline(True)
from torch import nn
from reference.engine import Engine, Events
from reference.handlers import Checkpoint, ClearMLLogger, ClearMLSaver

saver = ClearMLSaver(dirname=sys.argv[1])
trainer = Engine(lambda engine, batch: {"loss": 0.25 * batch})
handler = Checkpoint({"model": nn.Linear(2, 2)}, saver, filename_prefix="training", n_saved=1)
trainer.add_event_handler(Events.ITERATION_COMPLETED(once=1), handler)
try:
    trainer.run([1, 2])
except ValueError as error:
    assert "no current task" in str(error)
try:
    ClearMLLogger()
except ValueError as error:
    assert "no current task" in str(error)
trainer.state.max_epochs = None
trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), handler)
task = Task.init("CIFAR10-Training", task_name="a run")
task.connect_configuration({"model": "resnet18", "batch_size": 512})
task.connect({"learning_rate": 0.4})
with ClearMLLogger() as logger:
    logger.attach_output_handler(trainer, Events.ITERATION_COMPLETED, "training", output_transform=lambda o: o)
    trainer.run([1, 2])
folder = Path(task.get_offline_mode_folder())
task.close()
print("ARCHIVE", folder.with_suffix(".zip") if folder.with_suffix(".zip").exists() else folder.parent / (folder.name + ".zip"))
"""


def test_clearml_offline_session_has_configuration_scalars_and_models(tmp_path: Path) -> None:
    import zipfile

    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "CLEARML_CACHE_DIR": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    result = subprocess.run(
        [sys.executable, "-c", CLEARML, str(tmp_path / "checkpoints")],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=170,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    archive = next(line.split(" ", 1)[1] for line in result.stdout.splitlines() if line.startswith("ARCHIVE"))
    with zipfile.ZipFile(archive) as session:
        task = json.loads(session.read("task.json"))
        assert task["name"] == "a run"
        assert task["configuration"]["General"]["value"].split("\n") == [
            'model = "resnet18"',
            "batch_size = 512",
        ]
        assert task["hyperparams"]["General"]["learning_rate"]["value"] == "0.4"
        registered = [
            (model["init"]["name"], model["weights"]["iteration"]) for model in task["offline_output_models"]
        ]
        assert registered == [("training_model_1", 1), ("training_model_2", 2)]
        metrics = [json.loads(line) for line in session.read("metrics.jsonl").decode().splitlines()]
        events = [event for group in metrics for event in (group if isinstance(group, list) else [group])]
        scalars = {
            (e["metric"], e["variant"], e["iter"]): e["value"]
            for e in events
            if e.get("metric") == "training"
        }
        assert scalars == {("training", "loss", 1): 0.25, ("training", "loss", 2): 0.5}
        models = [name for name in session.namelist() if name.endswith(".pt")]
        assert sorted(Path(name).name for name in models) == ["training_model_1.pt", "training_model_2.pt"]
        session.extract(models[0], tmp_path)
    assert list(load_checkpoint(tmp_path / models[0])["model"]) == ["weight", "bias"]
    # the archive keeps both, the folder the newest
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["training_model_2.pt"]


def test_third_party_packages_are_imported_only_when_needed() -> None:
    program = (
        "import sys, reference.handlers, reference.metrics, reference.engine\n"
        "print(sorted({'clearml', 'tensorboard', 'rich', 'torchvision'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert result.stdout.strip() == "[]"
