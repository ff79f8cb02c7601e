"""From a checked configuration to running processes, and the summary at the end."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import shutil
import signal
from typing import Any

import psutil
import torch

import reference.idist as idist
from reference.cifar10 import datasets, model
from reference.cifar10.config import Config, check_divisible
from reference.cifar10.options import OptionError
from reference.cifar10.outcome import STOPPED_BY
from reference.cifar10.resuming import find_checkpoint
from reference.cifar10.summary import show
from reference.cifar10.trainer import training
from reference.idist import environment

_FEW_ITERATIONS = 10


def launch(config: Config) -> int:
    """Check what can be checked before processes start, train, and show the summary; the exit code of the run.

    Raises:
        OptionError: the configuration cannot be run here.
        Exception: what the training raised.
    """
    started = psutil.Process().create_time()
    try:
        layout = environment.detect(os.environ)
        spawn = {**config.spawn_options, **({} if config.backend is None else {"timeout": config.timeout})}
        parallel = idist.Parallel(backend=config.backend, **spawn)
    except (ValueError, RuntimeError) as error:
        raise OptionError(str(error)) from None
    speaks = layout.rank == 0 if layout is not None else config.node_rank in (None, 0)
    config = with_data(config, report=speaks)
    if layout is not None and config.backend is not None:
        check_divisible(config.batch_size, layout.world_size)
    checkpoint = find_checkpoint(config)
    if checkpoint is not None:
        config = dataclasses.replace(config, resume_from=str(checkpoint.absolute()))
    if config.model not in model.KNOWN_GOOD:
        model.check(config.model)
    check_tools(config)
    with parallel:
        result: dict[str, Any] = parallel.run(training, config, started=started)
    if speaks:
        show(result)
    return exit_code(result)


def with_data(config: Config, *, report: bool) -> Config:
    """The configuration with the data set that "auto" means, after a look at its files; says which one it is.

    Raises:
        OptionError: data is missing or wrong, or too small for a batch.
    """
    name = datasets.resolve(config.dataset, config.data_dir)
    say = functools.partial(print, flush=True) if report else _nothing
    say(f"Data: {_description(config, name)}.")
    try:
        sizes = datasets.prepare(name, config.data_dir, functools.partial(print, flush=True))
    except datasets.DataError as error:
        raise OptionError(str(error)) from None
    train = sizes.train if config.max_train_samples is None else config.max_train_samples
    test = sizes.test if config.max_eval_samples is None else config.max_eval_samples
    for option, wanted, there in (
        ("max_train_samples", train, sizes.train),
        ("max_eval_samples", test, sizes.test),
    ):
        if wanted > there:
            raise OptionError(f"{option} ({wanted}) is more than the {there:,} images of this data set")
    if config.batch_size > train:
        raise OptionError(f"batch_size ({config.batch_size}) is more than the {train:,} training images")
    say(f"Training on {train:,} images in batches of {config.batch_size}, testing on {test:,}.")
    iterations = train // config.batch_size
    if iterations < _FEW_ITERATIONS:
        say(
            f"An epoch has only {iterations} iterations: a smaller --batch_size learns more from so few images."
        )
    return dataclasses.replace(config, dataset=name)


def check_tools(config: Config) -> None:
    """Refuse options whose tools are not installed.

    Raises:
        OptionError: it says which.
    """
    if config.pipeline == "torchvision" and importlib.util.find_spec("torchvision") is None:
        raise OptionError(
            "--pipeline=torchvision needs torchvision, which is not installed; --pipeline=batched does not"
        )
    on_gpu = torch.cuda.is_available() and config.backend not in ("gloo", "mpi")
    compiler = os.environ.get("CXX", "g++")
    if config.compile and not on_gpu and shutil.which(compiler) is None:
        raise OptionError(f"--compile needs a C++ compiler on CPUs, and there is no {compiler} here")


def _nothing(line: str) -> None:
    """Another rank says it."""


def _description(config: Config, name: str) -> str:
    if name == "digits" and config.dataset == "auto":
        here = f"no CIFAR-10 in {config.data_dir}{os.sep} (`python -m reference.cifar10 data` brings it)"
        return f"{here}, so the digits that come with scikit-learn"
    return {
        "cifar10": f"CIFAR-10, the official files in {config.data_dir}",
        "images": f"image files in {config.data_dir}",
        "digits": "the digits that come with scikit-learn",
        "fake": "random images, for measuring speed",
    }[name]


def exit_code(result: dict[str, Any]) -> int:
    """0 for a run that did what it was asked to, 128 + N for one that signal N stopped."""
    reason: str = result["exit_reason"]
    return 128 + signal.Signals[reason.removeprefix(STOPPED_BY)] if reason.startswith(STOPPED_BY) else 0
