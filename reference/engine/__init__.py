"""The training loop: an engine that runs a step function over data and fires events on the way."""

from __future__ import annotations

from reference.engine.dispatch import RemovableEventHandle
from reference.engine.events import EventChoice, Events, State
from reference.engine.loop import Engine
from reference.engine.supervised import (
    create_supervised_evaluator,
    create_supervised_trainer,
    prepare_batch,
)

__all__ = [
    "Engine",
    "EventChoice",
    "Events",
    "RemovableEventHandle",
    "State",
    "create_supervised_evaluator",
    "create_supervised_trainer",
    "prepare_batch",
]
