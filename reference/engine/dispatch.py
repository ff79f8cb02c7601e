"""Handlers: how they are added to an engine, taken away and called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from reference.engine.events import EventChoice, EventFilter, Events, State, accepts, as_choice


class Registration:
    """A handler with its event, its filter and the extra arguments it was added with."""

    def __init__(
        self,
        handler: Callable[..., Any],
        accept: EventFilter | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.handler = handler
        self.accept = accept
        self.args = args
        self.kwargs = kwargs
        self.active = True  # False once removed: it no longer runs, even in a firing that is under way
        self.leading = 0  # how many of (engine, *event arguments) the handler takes

    def fit(self, offered: int) -> None:
        """Work out how many leading arguments the handler takes, at most `offered`; ValueError if none fits."""
        for leading in range(offered, -1, -1):
            if accepts(self.handler, leading, self.args, self.kwargs):
                self.leading = leading
                return
        raise ValueError(
            f"handler {self.handler!r} cannot be called with the engine first, nor without it, "
            f"and the arguments it was added with: {self.args!r} {self.kwargs!r}"
        )


class RemovableEventHandle:
    """What `add_event_handler` returns; `remove()`, or the end of a `with` block, takes the handler away."""

    def __init__(self, entries: Sequence[tuple[list[Registration], Registration]]) -> None:
        self._entries = entries

    def remove(self) -> None:
        """Take the handler away; nothing happens if that was done before."""
        for registered, entry in self._entries:
            if entry in registered:
                registered.remove(entry)
            entry.active = False

    def __enter__(self) -> RemovableEventHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class EventSource:
    """Keeps handlers and calls them; the base of `Engine`."""

    def __init__(self) -> None:
        self.state = State()
        self.last_event: Events | None = None
        self._handlers: dict[Events, list[Registration]] = {event: [] for event in Events}

    def add_event_handler(
        self, event_name: Events | EventChoice, handler: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> RemovableEventHandle:
        """Call `handler(engine, *args, **kwargs)` at an event, or without the engine if it doesn't take it.

        Handlers run in the order in which they were added. One that is added while its event is being fired
        runs from the next firing on.

        Raises:
            ValueError: not an event, or a handler that can't be called with these arguments.
        """
        entries = []
        for event, accept in as_choice(event_name).parts:
            entry = Registration(handler, accept, args, kwargs)
            entry.fit(2 if event is Events.EXCEPTION_RAISED else 1)
            self._handlers[event].append(entry)
            entries.append((self._handlers[event], entry))
        return RemovableEventHandle(entries)

    def on(
        self, event_name: Events | EventChoice, *args: Any, **kwargs: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """`add_event_handler` as a decorator."""

        def add(handler: Callable[..., Any]) -> Callable[..., Any]:
            self.add_event_handler(event_name, handler, *args, **kwargs)
            return handler

        return add

    def has_event_handler(
        self, handler: Callable[..., Any], event_name: Events | EventChoice | None = None
    ) -> bool:
        """Whether the handler is registered for the event (for any of several; for any at all without one)."""
        events = tuple(Events) if event_name is None else [event for event, _ in as_choice(event_name).parts]
        return any(entry.handler == handler for event in events for entry in self._handlers[event])

    def remove_event_handler(self, handler: Callable[..., Any], event_name: Events | EventChoice) -> None:
        """Take the handler away from an event; ValueError if it isn't there."""
        for event, _ in as_choice(event_name).parts:
            found = [
                (self._handlers[event], entry) for entry in self._handlers[event] if entry.handler == handler
            ]
            if not found:
                raise ValueError(f"{handler!r} is not a handler of {event.name}")
            RemovableEventHandle(found).remove()

    def _call_handlers(self, event: Events, *event_args: Any) -> None:
        self.last_event = event
        if entries := self._handlers[event]:
            count = self.state.count(event)
            for entry in tuple(entries):  # a copy: what a handler adds waits for the next firing
                if entry.active and (entry.accept is None or entry.accept(self, count)):
                    entry.handler(*(self, *event_args)[: entry.leading], *entry.args, **entry.kwargs)
