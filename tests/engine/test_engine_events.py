"""Which handler runs when, with which arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reference.engine import Engine, Events


def engine() -> Engine:
    return Engine(lambda engine, batch: batch)


def record(event: Any, *, batches: int = 6, epochs: int = 3) -> list[tuple[str, int, int]]:
    """(event, epoch, iteration) of each call of a handler of `event` in a run."""
    calls: list[tuple[str, int, int]] = []
    trainer = engine()
    trainer.add_event_handler(
        event, lambda e: calls.append((e.last_event.name, e.state.epoch, e.state.iteration))
    )
    trainer.run(range(batches), max_epochs=epochs)
    return calls


def test_the_order_of_events() -> None:
    seen = []
    trainer = engine()
    for event in Events:
        if event is not Events.EXCEPTION_RAISED:
            trainer.add_event_handler(event, lambda e: seen.append(e.last_event.name))
    trainer.run([1], max_epochs=2)
    batch = [
        "GET_BATCH_STARTED",
        "PASS_STARTED",
        "GET_BATCH_COMPLETED",
        "ITERATION_STARTED",
        "ITERATION_COMPLETED",
    ]
    epoch = ["EPOCH_STARTED", *batch, "EPOCH_COMPLETED"]
    assert seen == ["STARTED", *epoch, *epoch, "COMPLETED"]


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        (Events.ITERATION_COMPLETED(every=4), [4, 8, 12, 16]),
        (Events.ITERATION_STARTED(once=7), [7]),
        (Events.ITERATION_STARTED(once=[2, 17, 99]), [2, 17]),
        (Events.ITERATION_COMPLETED(before=3), [1, 2]),
        (Events.ITERATION_COMPLETED(after=16), [17, 18]),
        (Events.ITERATION_COMPLETED(after=5, before=12, every=5), [10]),
        (Events.ITERATION_COMPLETED(lambda engine, n: n in (3, 5)), [3, 5]),
        (Events.ITERATION_COMPLETED(event_filter=lambda e, n: e.state.epoch == 2 and n % 2 == 1), [7, 9, 11]),
    ],
)
def test_filters_on_iterations(choice: Any, wanted: list[int]) -> None:
    assert [iteration for _, _, iteration in record(choice)] == wanted


def test_filters_on_epochs_and_fetches() -> None:
    assert [epoch for _, epoch, _ in record(Events.EPOCH_COMPLETED(every=2), epochs=5)] == [2, 4]
    # the fetch for iteration 3 happens while two iterations are complete
    assert record(Events.GET_BATCH_STARTED(once=3)) == [("GET_BATCH_STARTED", 1, 2)]


def test_joined_events() -> None:
    choice = Events.EPOCH_COMPLETED(every=3) | Events.COMPLETED | Events.ITERATION_STARTED(once=1)
    assert record(choice, batches=2, epochs=5) == [
        ("ITERATION_STARTED", 1, 1), ("EPOCH_COMPLETED", 3, 6), ("COMPLETED", 5, 10),
    ]  # fmt: skip
    assert [name for name, _, _ in record(Events.STARTED | Events.COMPLETED)] == ["STARTED", "COMPLETED"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Events.STARTED(),
        lambda: Events.STARTED(every=0),
        lambda: Events.STARTED(every=1.5),
        lambda: Events.STARTED(once=0),
        lambda: Events.STARTED(once=[1, -2]),
        lambda: Events.STARTED(event_filter=lambda engine: True),
        lambda: Events.STARTED | "COMPLETED",
        lambda: engine().add_event_handler("COMPLETED", print),
    ],
)
def test_wrong_events_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"STARTED|expected an event"):
        make()


def test_handlers_with_and_without_the_engine_and_with_extra_arguments() -> None:
    calls: list[Any] = []
    trainer = engine()
    trainer.add_event_handler(Events.STARTED, lambda: calls.append("nothing"))
    trainer.add_event_handler(Events.STARTED, lambda e: calls.append(e is trainer))
    trainer.add_event_handler(Events.STARTED, lambda e, a, b: calls.append((e is trainer, a, b)), 1, b=2)
    trainer.add_event_handler(Events.STARTED, lambda a, *, b: calls.append((a, b)), 1, b=2)
    trainer.add_event_handler(Events.STARTED, calls.append, "of C, with one argument")

    @trainer.on(Events.COMPLETED, "last")
    def decorated(e: Engine, word: str) -> None:
        calls.append(word)

    trainer.run([0])
    assert calls == ["nothing", True, (True, 1, 2), (1, 2), "of C, with one argument", "last"]
    with pytest.raises(ValueError, match="cannot be called"):
        trainer.add_event_handler(Events.STARTED, lambda e, a: None)


def test_a_handler_added_during_an_event_waits_for_the_next_firing() -> None:
    calls: list[int] = []
    trainer = engine()

    def late(e: Engine) -> None:
        calls.append(e.state.iteration)

    def add(e: Engine) -> None:
        e.add_event_handler(Events.ITERATION_COMPLETED, late)

    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), add)
    trainer.run(range(4))
    assert calls == [3, 4]


def test_removing_handlers() -> None:
    calls: list[str] = []
    trainer = engine()

    def first() -> None:
        calls.append("first")
        handle.remove()

    def second() -> None:
        calls.append("second")

    def third() -> None:
        calls.append("third")

    trainer.add_event_handler(Events.ITERATION_COMPLETED, first)
    handle = trainer.add_event_handler(Events.ITERATION_COMPLETED | Events.COMPLETED, second)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=2), third)
    assert trainer.has_event_handler(second)
    assert trainer.has_event_handler(third, Events.ITERATION_COMPLETED)
    assert not trainer.has_event_handler(third, Events.COMPLETED)
    trainer.run(range(2))
    assert calls == ["first", "first", "third"]  # removed while its own event was being fired: it didn't run
    assert not trainer.has_event_handler(second)
    trainer.remove_event_handler(third, Events.ITERATION_COMPLETED)
    with pytest.raises(ValueError, match="not a handler of ITERATION_COMPLETED"):
        trainer.remove_event_handler(third, Events.ITERATION_COMPLETED)
    with trainer.add_event_handler(Events.STARTED, second):
        assert trainer.has_event_handler(second, Events.STARTED)
    assert not trainer.has_event_handler(second, Events.STARTED)


def test_bound_methods_are_found_again() -> None:
    class Owner:
        def handle(self) -> None: ...

    owner, trainer = Owner(), engine()
    trainer.add_event_handler(Events.STARTED, owner.handle)
    assert trainer.has_event_handler(owner.handle, Events.STARTED)
    assert not trainer.has_event_handler(Owner().handle, Events.STARTED)
