"""The benchmark of the engine's loop: that both sides do the same, and that the handlers are the trainer's."""

import math

import pytest
import torch

from benchmarks import engine as benchmark
from benchmarks.starting import Bench
from benchmarks.worlds import loop, training_handlers
from reference.cifar10.config import Config
from reference.cifar10.trainer import training
from reference.engine import Engine, Events


def test_rows_of_a_trial(tmp_path):
    rows = benchmark.measure(Bench(folder=tmp_path, repeats=2, quick=True))
    assert len({row.name for row in rows}) == len(rows)
    assert {row.unit for row in rows} == {"us"}
    assert all(row.at_most is not None and row.command for row in rows)
    alone = [row for row in rows if row.theirs is None]
    assert len(alone) == 2
    for row in rows:
        for samples in (row.ours, row.theirs or row.ours):
            assert [len(start) for start in samples] == [2, 2]
            assert all(math.isfinite(value) for start in samples for value in start)
    for row in (row for row in rows if row.theirs is not None):
        assert all(value > 0 for samples in (row.ours, row.theirs) for start in samples for value in start)


def test_all_trainings_have_the_same_losses():
    data = loop.batches(5)
    losses = {name: torch.stack(make()(data)) for name, make in loop.trainings().items()}
    assert set(losses) >= {"by_hand", "supervised"}
    assert len(set(losses["by_hand"].tolist())) == 5  # it learns
    for name, found in losses.items():
        assert torch.equal(found, losses["by_hand"]), name


def test_blocks_take_turns_after_one_of_each_that_does_not_count():
    calls = []
    sides = {name: lambda n, name=name: calls.append((name, n)) for name in ("a", "b")}
    found = loop.measure_in_turns(sides, 2, 7)
    assert calls == [(name, 7) for name in "ababba"]
    assert {name: len(blocks) for name, blocks in found.items()} == {"a": 2, "b": 2}


def test_excess_is_over_the_neighbour_with_the_bare_loop():
    found = [{"engine": [5.0, 7.0], "bare": [1.0, 2.0]}, {"engine": [4.0, 4.0], "bare": [1.0, 3.0]}]
    assert benchmark._excess(found, "engine", "bare") == [[4.0, 5.0], [3.0, 1.0]]


class _SetUpError(Exception):
    """The engine is set up."""


def _handlers(engine):
    """What is called in an iteration, by event. The way to stop is written on the spot in both programs."""
    events = (
        Events.GET_BATCH_STARTED,
        Events.GET_BATCH_COMPLETED,
        Events.ITERATION_STARTED,
        Events.ITERATION_COMPLETED,
    )
    names = {
        event.name: sorted(
            getattr(e.handler, "__qualname__", type(e.handler).__name__) for e in engine._handlers[event]
        )
        for event in events
    }
    stops = [
        name
        for name in names["ITERATION_COMPLETED"]
        if name in ("train.<locals>.stop_if_asked", "trainer.<locals>.stop_if_asked")
    ]
    assert len(stops) == 1
    names["ITERATION_COMPLETED"].remove(stops[0])
    return names


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_handlers_are_those_of_the_trainer(tmp_path, monkeypatch, threads):
    found = []

    def run(self, *args, **kwargs):
        self._fire(Events.STARTED)  # the handler that saves is added then
        found.append(_handlers(self))
        raise _SetUpError

    with training_handlers.trainer(tmp_path / "bench", 100) as engine:
        engine._fire(Events.STARTED)
        ours = _handlers(engine)
    monkeypatch.setattr(Engine, "run", run)
    with pytest.raises(_SetUpError):
        training(0, Config(dataset="digits", batch_size=64, output_path=str(tmp_path / "real")))
    assert len(ours["ITERATION_COMPLETED"]) > 5
    assert [ours] == found


def test_handlers_do_their_work_with_an_empty_step(tmp_path):
    with training_handlers.handled(tmp_path, 30) as run:
        run(30)
        run(30)
    (events,) = tmp_path.glob("*/events.jsonl")
    assert (
        sum('"training/' in line or "training" in line for line in events.read_text().splitlines()) >= 2 * 3
    )
