"""Metrics that are exact over all ranks: sums and counts are reduced together, before anything is divided.

Updating never waits for the device and never communicates. `compute` is collective: every rank has to call it,
also one that saw no sample. Results are Python floats.
"""

from __future__ import annotations

from reference.metrics.averages import Accuracy, Loss, RunningAverage
from reference.metrics.base import Metric
from reference.metrics.throughput import Throughput

__all__ = ["Accuracy", "Loss", "Metric", "RunningAverage", "Throughput"]
