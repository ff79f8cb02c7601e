"""The reference implementation of the idist workbench: distributed API, training engine and trainers."""

__version__ = "0.1.0"
