"""The few options of all programs, and the start of a program. Pure: torch is not imported before the options are right."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import fire

from reference.cifar10.config import BACKENDS, check_divisible
from reference.cifar10.options import OptionError, convert, convert_all, help_text, option

_SETTLE = 0.5  # seconds
TIMEOUT = 300.0  # seconds: of start-up and of every collective, in every program


@dataclass(frozen=True, kw_only=True)
class Options:
    """One run of a program. Values are checked when an instance is made.

    Raises:
        OptionError: a value has the wrong type or is impossible.
    """

    dataset: str = option(
        "digits", "What to train on.", section="Training", choices=("cifar10", "images", "digits", "fake")
    )
    data_path: str = option("data", "Folder with the data set.", section="Training")
    model: str = option(
        "small", "small, resnet18_cifar, or any torchvision classification model.", section="Training"
    )
    batch_size: int = option(
        64, "Global batch size, shared out over all processes.", section="Training", unit="images", low=1
    )
    num_epochs: int = option(1, "Passes over the training set.", section="Training", unit="epochs", low=1)
    learning_rate: float = option(
        0.05,
        "Peak: rises from 0 in the first tenth of the steps, then falls to 0.",
        section="Training",
        low=0,
    )
    max_train_samples: int | None = option(
        None, "Train on this many images only.", section="Training", unit="images", low=1, unset="all"
    )
    max_eval_samples: int | None = option(
        None, "Evaluate on this many images only.", section="Training", unit="images", low=1, unset="all"
    )
    seed: int = option(
        543, "Decides weights, sample order and augmentation.", section="Training", low=0, high=2**32 - 1
    )
    threads: int | None = option(
        None,
        "CPU threads of each process.",
        section="Training",
        unit="threads",
        low=1,
        unset="OMP_NUM_THREADS",
    )
    output_path: str = option(
        "output-programs", "Folder that gets result.json and events.jsonl.", section="Records"
    )
    backend: str | None = option(
        None,
        "How processes talk to each other.",
        section="Processes",
        choices=BACKENDS,
        unset="the program's own",
    )
    nproc_per_node: int | None = option(
        None,
        "Start this many processes. Leave it out under a launcher.",
        section="Processes",
        low=1,
        unset="none",
    )
    nnodes: int | None = option(None, "Machines that take part.", section="Processes", low=1, unset="1")
    node_rank: int | None = option(None, "Which of them this is.", section="Processes", low=0, unset="0")
    master_addr: str | None = option(None, "Address of node 0.", section="Processes", unset="this machine")
    master_port: int | None = option(
        None, "Free port on node 0.", section="Processes", low=1, high=65535, unset="a free one"
    )

    def __post_init__(self) -> None:
        for spec in fields(self):
            object.__setattr__(self, spec.name, convert(type(self), spec.name, getattr(self, spec.name)))
        if self.max_train_samples is not None and self.max_train_samples < self.batch_size:
            raise OptionError(
                f"max_train_samples ({self.max_train_samples}) must be at least one batch ({self.batch_size})"
            )
        if self.nproc_per_node is not None:
            check_divisible(self.batch_size, self.nproc_per_node * (self.nnodes or 1))

    @property
    def data_dir(self) -> Path:
        """The folder that `data_path` means."""
        return Path(self.data_path).expanduser()

    @property
    def layout(self) -> dict[str, Any]:
        """The options about processes to start that were given."""
        names = ("nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port")
        return {name: value for name, value in asdict(self).items() if name in names and value is not None}


def start(
    program: str,
    main: Callable[[Options], None],
    *,
    backends: Sequence[str | None],
    spawns: bool,
    argv: Sequence[str] | None = None,
) -> None:
    """Read the command line, prepare the data once, and run the program.

    Args:
        program: its module's name, for messages.
        main: the program.
        backends: those it knows, its default first; None: it can do without.
        spawns: whether it can start processes itself.
        argv: default: the command line.

    Raises:
        SystemExit: 2 for a wrong command, 0 for `--help`.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    if {"--help", "-h"} & set(given):
        print(f"usage: python -m reference.programs.{program} [--name=value ...]\n{help_text(Options)}")
        raise SystemExit(0)
    try:
        options = _read(program, given, backends, spawns)
        from reference.cifar10 import datasets

        sizes = datasets.prepare(options.dataset, options.data_dir)
        for name, there in (("max_train_samples", sizes.train), ("max_eval_samples", sizes.test)):
            wanted = getattr(options, name)
            if wanted is not None and wanted > there:
                raise OptionError(f"{name} ({wanted}) is more than the {there:,} images of this data set")
        if options.batch_size > sizes.train:
            raise OptionError(f"batch_size ({options.batch_size}) is more than the {sizes.train:,} images")
    except ValueError as error:  # OptionError and DataError are ValueErrors
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
    main(options)
    # A thread of gloo needs the interpreter to let go of the last tensor. If that has begun to end, the process aborts
    # (torch 2.14), and DistributedDataParallel keeps the threads alive.
    time.sleep(_SETTLE)


def _read(program: str, given: Sequence[str], backends: Sequence[str | None], spawns: bool) -> Options:
    stray = [text for text in given if not text.startswith("--")]
    if stray:
        raise OptionError(f"{stray[0]!r} is not an option: write --name=value")
    found: list[Options] = []

    def collect(**values: Any) -> None:
        found.append(Options(**convert_all(Options, values)))

    # Texts stay texts: the option's type decides, not what a text looks like to fire.
    fire.Fire(fire.decorators.SetParseFn(str)(collect), command=list(given), name=program)
    options = found[0]
    if options.backend is None:
        object.__setattr__(options, "backend", backends[0])
    if options.backend not in backends:
        known = ", ".join(name for name in backends if name is not None)
        raise OptionError(f"{program} does not know backend {options.backend}: it takes {known}")
    if options.layout and not spawns:
        raise OptionError(
            f"{program} starts no processes: remove --{next(iter(options.layout))}, use a launcher"
        )
    return options


def threads_of(options: Options) -> int:
    """Threads of this process: the option, else OMP_NUM_THREADS, which the launchers set, else 1."""
    return options.threads or int(os.environ.get("OMP_NUM_THREADS") or 1)
