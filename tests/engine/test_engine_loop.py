"""Runs: lengths, ends, failures, and continuing at any iteration."""

from __future__ import annotations

import itertools
import time
import traceback
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from reference.engine import Engine, Events


class Order(Sampler[int]):
    """A shuffled order per epoch, for one process. It can start in the middle if `can_start`."""

    def __init__(self, length: int, can_start: bool = True) -> None:
        self.length, self.epoch = length, 0
        if can_start:
            self.start_index = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        start = getattr(self, "start_index", 0)
        if start:
            self.start_index = 0
        order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        return iter(order[start:])

    def __len__(self) -> int:
        return self.length


class Numbers(Dataset[int]):
    """The numbers from 0; counts what was read."""

    def __init__(self, length: int) -> None:
        self.length, self.reads = length, 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        return index


class Unsized:
    """Restarts, but doesn't tell its length."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = list(items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


def collecting() -> tuple[Engine, list[Any]]:
    batches: list[Any] = []
    return Engine(lambda engine, batch: batches.append(batch)), batches


# ---- lengths


def test_data_with_and_without_length_and_epoch_length() -> None:
    for data in ([1, 2, 3], Unsized([1, 2, 3])):
        trainer, batches = collecting()
        state = trainer.run(data, max_epochs=2)
        assert (batches, state.epoch_length, state.iteration, state.epoch) == ([1, 2, 3] * 2, 3, 6, 2)


@pytest.mark.parametrize("data", [range(5), Unsized(range(5))])
@pytest.mark.parametrize("epoch_length", [1, 3, 5, 7, 12])
def test_epoch_length_continues_and_restarts_the_data(data: Any, epoch_length: int) -> None:
    trainer, batches = collecting()
    passes: list[tuple[int, int]] = []
    trainer.add_event_handler(
        Events.PASS_STARTED, lambda e: passes.append((e.state.data_pass, e.state.iteration))
    )
    trainer.run(data, max_epochs=4, epoch_length=epoch_length)
    assert batches == list(itertools.islice(itertools.cycle(range(5)), 4 * epoch_length))
    assert passes == [(p, 5 * p) for p in range(-(-4 * epoch_length // 5))]


def test_an_iterator_serves_several_epochs_and_then_ends_with_an_error() -> None:
    trainer, batches = collecting()
    trainer.run(itertools.count(), max_epochs=3, epoch_length=2)
    assert batches == list(range(6))
    trainer, batches = collecting()
    with pytest.raises(ValueError, match=r"ended after 7 batches .* iteration 2 of an epoch of 3"):
        trainer.run(iter(range(7)), max_epochs=3, epoch_length=3)
    assert batches == list(range(7))
    trainer, _ = collecting()
    with pytest.raises(ValueError, match="ended after 0 batches"):
        trainer.run(iter(range(7)), max_epochs=2)  # the first epoch takes all


def test_data_without_batches() -> None:
    trainer, _ = collecting()
    for data in ([], Unsized([]), DataLoader(Numbers(3), batch_size=4, drop_last=True)):
        with pytest.raises(ValueError, match="no batch"):
            trainer.run(data, max_epochs=2)
    for data in ([], Unsized([])):
        fired = []
        evaluator = Engine(lambda engine, batch: 1 / 0, evaluation=True)
        for event in (Events.STARTED, Events.EPOCH_STARTED, Events.EPOCH_COMPLETED, Events.COMPLETED):
            evaluator.add_event_handler(event, fired.append, event)
        state = evaluator.run(data)
        assert (state.iteration, state.epoch, len(fired)) == (0, 1, 4)


@pytest.mark.parametrize("arguments", [{"max_epochs": 0}, {"max_epochs": 1.5}, {"epoch_length": 0}])
def test_wrong_counts_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        collecting()[0].run([1], **arguments)


def test_times_and_state() -> None:
    trainer, _ = collecting()
    seen: dict[str, float] = {}
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda e: seen.update(e.state.times))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, time.sleep, 0.05)
    state = trainer.run([1, 2])
    assert 0 <= seen["EPOCH_COMPLETED"] < 0.05 <= state.times["EPOCH_COMPLETED"] <= state.times["COMPLETED"]
    assert state.batch is None


# ---- ends


def test_terminate_ends_after_the_event_and_skips_the_rest() -> None:
    for event, wanted in [
        (Events.STARTED, []),
        (Events.EPOCH_STARTED(once=2), [0, 1, 2]),
        (Events.GET_BATCH_STARTED(once=5), [0, 1, 2, 0]),
        (Events.ITERATION_STARTED(once=5), [0, 1, 2, 0]),
        (Events.ITERATION_COMPLETED(once=5), [0, 1, 2, 0, 1]),
        (Events.EPOCH_COMPLETED(once=2), [0, 1, 2] * 2),
    ]:
        trainer, batches = collecting()
        log: list[str] = []
        trainer.add_event_handler(event, trainer.terminate)
        trainer.add_event_handler(event, log.append, "same event")
        trainer.add_event_handler(
            Events.EPOCH_COMPLETED, lambda e, log=log: log.append(f"epoch {e.state.epoch}")
        )
        trainer.add_event_handler(Events.TERMINATE, log.append, "terminate")
        trainer.add_event_handler(Events.COMPLETED, log.append, "completed")
        trainer.run(range(3), max_epochs=4)
        assert batches == wanted
        epochs = [f"epoch {n + 1}" for n in range(len(wanted) // 3)]
        assert sorted(log[:-2]) == sorted([*epochs, "same event"])
        assert log[-2:] == ["terminate", "completed"]


def test_terminate_from_the_step() -> None:
    def step(engine: Engine, batch: int) -> None:
        if batch == 1:
            engine.terminate()

    assert Engine(step).run(range(9)).iteration == 2


def test_terminate_epoch_starts_a_new_pass() -> None:
    for batches_per_epoch in (2, 3):  # 3 is the whole epoch: the pass ends only once
        trainer, batches = collecting()
        passes: list[int] = []
        trainer.add_event_handler(Events.PASS_STARTED, lambda e, p=passes: p.append(e.state.data_pass))
        trainer.add_event_handler(
            Events.ITERATION_COMPLETED(lambda e, n, b=batches_per_epoch: e.state.epoch_iteration == b),
            trainer.terminate_epoch,
        )
        completed: list[int] = []
        trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda e, c=completed: c.append(e.state.epoch))
        state = trainer.run(range(3), max_epochs=3)
        assert batches == list(range(batches_per_epoch)) * 3
        assert (completed, passes, state.iteration) == ([1, 2, 3], [0, 1, 2], 3 * batches_per_epoch)


def test_a_finished_engine_starts_again_or_goes_on() -> None:
    trainer, batches = collecting()
    trainer.run([1, 2], max_epochs=2)
    assert trainer.run([1, 2], max_epochs=3).iteration == 6  # one more
    assert trainer.run([1, 2], max_epochs=3).iteration == 6  # from zero
    assert trainer.run([1, 2], max_epochs=1).iteration == 2  # from zero
    assert len(batches) == 4 + 2 + 6 + 2
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=1), trainer.terminate)
    trainer.run([1, 2], max_epochs=3)
    trainer.state.max_epochs = None
    assert trainer.run([7, 8]).iteration == 1  # from zero, and terminated again
    with pytest.raises(ValueError, match="epoch_length=5"):
        trainer.run([7, 8], epoch_length=5)


def test_an_evaluation_always_starts_from_zero() -> None:
    evaluator = Engine(lambda engine, batch: None, evaluation=True)
    evaluator.add_event_handler(Events.ITERATION_COMPLETED(once=2), evaluator.terminate)
    assert evaluator.run(range(5)).iteration == 2
    assert evaluator.run(range(5)).iteration == 2


# ---- failures


class Broken(RuntimeError):
    pass


def broken_step(engine: Engine, batch: Any) -> None:
    raise Broken("in the step")


def broken_data() -> Iterator[int]:
    yield 1
    raise Broken("in the data")


@pytest.mark.parametrize("place", ["broken_step", "broken_data", "broken_handler"])
def test_exceptions_keep_their_traceback(place: str) -> None:
    def broken_handler() -> None:
        raise Broken("in the handler")

    trainer = Engine(broken_step if place == "broken_step" else lambda engine, batch: None)
    if place == "broken_handler":
        trainer.add_event_handler(Events.EPOCH_COMPLETED, broken_handler)
    with pytest.raises(Broken) as caught:
        trainer.run(broken_data() if place == "broken_data" else [1])
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == place
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_handlers_of_exceptions_replace_the_raising() -> None:
    caught: list[Any] = []
    trainer = Engine(broken_step)
    trainer.add_event_handler(
        Events.EXCEPTION_RAISED, lambda e, error: caught.append((e is trainer, str(error)))
    )
    trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda: caught.append("no arguments"))
    trainer.add_event_handler(Events.COMPLETED, lambda: caught.append("completed"))
    trainer.run([1])
    assert caught == [(True, "in the step"), "no arguments"]

    def reraise(e: Engine, error: Exception) -> None:
        raise error

    trainer.add_event_handler(Events.EXCEPTION_RAISED, reraise)
    with pytest.raises(Broken) as raised:
        trainer.run([1])
    assert "broken_step" in [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]


def test_an_interrupt_is_not_swallowed_and_the_run_can_go_on() -> None:
    def interrupted(engine: Engine, batch: int) -> None:
        if batch == 3 and not seen.count(3):
            seen.append(3)
            raise KeyboardInterrupt
        seen.append(batch)

    seen: list[int] = []
    trainer = Engine(interrupted)
    trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        trainer.run(range(5))
    assert trainer.state_dict()["iteration"] == 3  # complete ones
    assert trainer.run(range(5)).iteration == 5
    assert seen == [0, 1, 2, 3, 3, 4]  # the interrupted batch was taken again


# ---- continuing


def traced(data: Any, epochs: int, length: int | None, stop: int | None, state: Any) -> tuple[list[Any], Any]:
    """Events with counts and batches of a run up to iteration `stop` (None: the end); the state there."""
    trace: list[Any] = []
    saved: list[Any] = []
    trainer = Engine(lambda engine, batch: batch)
    if hasattr(data, "sampler"):
        trainer.add_event_handler(Events.PASS_STARTED, lambda e: data.sampler.set_epoch(e.state.data_pass))

    def note(e: Engine) -> None:
        batch = str(e.state.batch) if e.last_event is Events.ITERATION_COMPLETED else None
        trace.append((e.last_event.name, e.state.epoch, e.state.iteration, e.state.epoch_iteration, batch))

    trainer.add_event_handler(Events.ITERATION_COMPLETED | Events.EPOCH_COMPLETED, note)
    if stop is not None:
        trainer.add_event_handler(
            Events.ITERATION_COMPLETED(once=stop), lambda e: (saved.append(e.state_dict()), e.terminate())
        )
    if state is not None:
        trainer.load_state_dict(state)
    trainer.run(data, max_epochs=epochs, epoch_length=length)
    return trace, saved[0] if saved else None


def loader(can_start: bool) -> DataLoader[Any]:
    return DataLoader(Numbers(9), batch_size=2, sampler=Order(9, can_start))


@pytest.mark.parametrize("length", [None, 3, 5, 8])
@pytest.mark.parametrize(
    "make", [lambda: loader(True), lambda: loader(False), lambda: Unsized(range(5)), lambda: list(range(5))]
)
def test_resuming_at_every_iteration_gives_the_uninterrupted_run(make: Any, length: int | None) -> None:
    whole, _ = traced(make(), 4, length, None, None)
    for stop in range(1, 4 * (length or 5) + 1):
        before, state = traced(make(), 4, length, stop, None)
        assert all(type(value) is int or value is None for key, value in state.items() if key != "metrics")
        after, _ = traced(make(), 4, length, None, state)
        assert before + after == whole, f"stopped after iteration {stop}"


def test_continuing_in_the_same_process_after_terminate() -> None:
    for data in (loader(True), loader(False), list(range(5)), iter(range(15))):
        trainer, batches = collecting()
        if isinstance(data, DataLoader):
            trainer.add_event_handler(
                Events.PASS_STARTED, lambda e, d=data: d.sampler.set_epoch(e.state.data_pass)
            )
        trainer.add_event_handler(Events.ITERATION_COMPLETED(once=[3, 7]), trainer.terminate)
        for _ in range(3):
            state = trainer.run(data, max_epochs=3, epoch_length=5)
        assert state.iteration == 15
        whole, wanted = collecting()
        if isinstance(data, DataLoader):
            whole.add_event_handler(
                Events.PASS_STARTED, lambda e, d=data: d.sampler.set_epoch(e.state.data_pass)
            )
        whole.run(range(15) if isinstance(data, Iterator) else data, max_epochs=3, epoch_length=5)
        assert [str(batch) for batch in batches] == [str(batch) for batch in wanted]


def test_start_index_saves_reading() -> None:
    data = DataLoader(Numbers(100), batch_size=2, sampler=Order(100))
    state = {
        "iteration": 40, "epochs_completed": 0, "epoch_iteration": 40, "data_pass": 0, "data_position": 40,
        "epoch_length": 50, "max_epochs": 1, "metrics": {},
    }  # fmt: skip
    traced(data, 1, None, None, state)
    assert data.dataset.reads == 20


def test_states_taken_in_other_events() -> None:
    for event, wanted in [
        (Events.EPOCH_COMPLETED(once=2), {"epochs_completed": 2, "epoch_iteration": 0, "iteration": 6}),
        (Events.ITERATION_STARTED(once=5), {"epochs_completed": 1, "epoch_iteration": 1, "iteration": 4}),
        (Events.EPOCH_STARTED(once=2), {"epochs_completed": 1, "epoch_iteration": 0, "iteration": 3}),
        (Events.COMPLETED, {"epochs_completed": 3, "epoch_iteration": 0, "iteration": 9}),
    ]:
        trainer, _ = collecting()
        saved: list[dict[str, Any]] = []
        trainer.add_event_handler(event, lambda e, s=saved: s.append(e.state_dict()))
        trainer.run(range(3), max_epochs=3)
        assert {key: saved[0][key] for key in wanted} == wanted
        resumed, batches = collecting()
        resumed.load_state_dict(saved[0])
        assert resumed.run(range(3)).iteration == 9
        assert len(batches) == 9 - wanted["iteration"]


def test_a_finished_run_that_is_resumed_only_completes() -> None:
    trainer, _ = collecting()
    trainer.run(range(3), max_epochs=2)
    resumed, batches = collecting()
    completed: list[int] = []
    resumed.add_event_handler(Events.COMPLETED, lambda e: completed.append(e.state.epoch))
    resumed.load_state_dict(trainer.state_dict())
    resumed.run(range(3), max_epochs=2)
    assert (batches, completed) == ([], [2])
    resumed.load_state_dict(trainer.state_dict())
    with pytest.raises(ValueError, match="max_epochs=1"):
        resumed.run(range(3), max_epochs=1)


@pytest.mark.parametrize("change", [{"iteration": None}, {"iteration": -1}, {"extra": 1}, {"data_pass": "0"}])
def test_foreign_states_are_refused(change: dict[str, Any]) -> None:
    trainer, _ = collecting()
    with pytest.raises(ValueError, match="not the state of an engine"):
        trainer.load_state_dict({**trainer.state_dict(), **change})


def test_resuming_with_less_data_is_refused() -> None:
    _, state = traced(list(range(5)), 2, None, 4, None)
    with pytest.raises(ValueError, match=r"batch 4 .* only 3 batches"):
        traced(list(range(3)), 2, None, None, state)
