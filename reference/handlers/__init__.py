"""Handlers for engines: checkpoints, schedules, stopping, progress and logging.

TensorBoard, ClearML and rich are imported when a handler that needs them is made.
"""

from __future__ import annotations

from reference.handlers import common
from reference.handlers.checkpoint import Checkpoint, DiskSaver, load_checkpoint
from reference.handlers.clearml import ClearMLLogger, ClearMLSaver
from reference.handlers.loggers import JsonLinesLogger, TensorboardLogger, global_step_from_engine
from reference.handlers.progress import ProgressBar
from reference.handlers.schedules import PiecewiseLinear
from reference.handlers.stopping import EarlyStopping, TerminateOnNan

__all__ = [
    "Checkpoint",
    "ClearMLLogger",
    "ClearMLSaver",
    "DiskSaver",
    "EarlyStopping",
    "JsonLinesLogger",
    "PiecewiseLinear",
    "ProgressBar",
    "TensorboardLogger",
    "TerminateOnNan",
    "common",
    "global_step_from_engine",
    "load_checkpoint",
]
