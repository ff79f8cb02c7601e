"""The command line, checked before fire sees it.

Fire calls a function first and complains about arguments that are left over afterwards, which is after the training.
So every argument is looked at here: what comes out is a command and its options, in the one form `--name=value` that
fire cannot read in two ways. Errors are one line. Nothing slow is imported.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reference.cifar10.config import Config, DownloadOptions
from reference.cifar10.options import OptionError, help_text, hint, kind_of, names_of, spec_of

PROGRAM = "python -m reference.cifar10"
COMMANDS: dict[str, type] = {"run": Config, "check": Config, "data": DownloadOptions}
_HELP = {"--help", "-h", "-help", "help"}

_OVERVIEW = f"""\
usage: {PROGRAM} run   [--name=value ...] [--config=file.yaml]
       {PROGRAM} check [--name=value ...] [--config=file.yaml]
       {PROGRAM} data  [--name=value ...]

run    train on CIFAR-10, an image folder, or the digits that need no download
check  look at the options of a run, without starting it
data   download the official CIFAR-10 files

All options: {PROGRAM} run --help"""

_RUN_HELP = f"""\
usage: {PROGRAM} run [--name=value ...] [--config=file.yaml]

Train and evaluate, and leave everything about the run in a folder of its own under output_path.

  {PROGRAM} run                                         # one process
  {PROGRAM} run --backend=gloo --nproc_per_node=2       # starts two processes by itself
  torchrun --nproc_per_node=2 -m reference.cifar10 run --backend=gloo

--config=FILE reads options from YAML lines such as `batch_size: 256`; flags win over the file.
Exit codes: 0 done (also after stop_iteration), 1 the run failed, 2 the command is wrong,
128 + N stopped by signal N after writing a checkpoint (SIGTERM 143, SIGUSR1 138, SIGUSR2 140).
"""

_DATA_HELP = f"""\
usage: {PROGRAM} data [--name=value ...]

Download the official CIFAR-10 files (170 MB): goes on where a broken download stopped, checks every file's md5, and
leaves nothing half-written.
"""


class Command(NamedTuple):
    """A checked command line: the command, its options as texts, and the YAML file of `--config` (run and check)."""

    name: str
    options: dict[str, str]
    config_file: str | None

    def fire_arguments(self) -> list[str]:
        """The same command in the form `name --option=value ...`."""
        config = [f"--config={self.config_file}"] if self.config_file is not None else []
        return [self.name, *config, *(f"--{name}={value}" for name, value in self.options.items())]


@dataclass(frozen=True)
class _Flags:
    """Reads the arguments that follow a command."""

    options: type
    extra: tuple[str, ...]

    def read(self, arguments: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        rest = list(arguments)
        known = [*names_of(self.options), *self.extra]
        while rest:
            argument = rest.pop(0)
            typed, equals, value = argument.partition("=")
            name = typed.lstrip("-").replace("-", "_")
            if not argument.startswith("--") or argument == "--":
                raise OptionError(
                    f"{argument!r} is not an option: write --name=value{hint(name, known, '--')}"
                )
            positive = name.removeprefix("no").lstrip("_")
            if not equals and positive != name and self._is_switch(positive):
                name, value = positive, "false"
            elif name not in known:
                raise OptionError(f"unknown option {typed}{hint(name, known, '--')}")
            elif not equals:
                value = self._next_value(name, rest)
            found[name] = value
        return found

    def _is_switch(self, name: str) -> bool:
        return name in names_of(self.options) and kind_of(self.options, name)[0] is bool

    def _next_value(self, name: str, rest: list[str]) -> str:
        if rest and (not rest[0].startswith("-") or re.fullmatch(r"-\.?\d.*", rest[0])):
            return rest.pop(0)
        if self._is_switch(name) or (
            name not in self.extra and "true" in spec_of(self.options, name).metadata["aliases"]
        ):
            return "true"
        raise OptionError(f"--{name} needs a value: --{name}=...")


def without_local_rank(arguments: Sequence[str]) -> list[str]:
    """Drop the `--local-rank` that torch.distributed.launch puts in; LOCAL_RANK in the environment says the same.

    Raises:
        OptionError: its value is not a whole number.
    """
    kept: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, value = argument.partition("=")
        if name not in ("--local-rank", "--local_rank"):
            kept.append(argument)
            continue
        if not equals:
            value = rest.pop(0) if rest else ""
        if not value.isdecimal():
            raise OptionError(f"{name} must be a whole number, got {value!r}")
    return kept


def help_for(arguments: Sequence[str]) -> str | None:
    """The text of `--help` (also after `--`, as fire has it) for a command line that asks for it, else None."""
    if not arguments or not _HELP.intersection(arguments):
        return None
    command = next((argument for argument in arguments if argument in COMMANDS), None)
    if command is None:
        return _OVERVIEW
    return (_DATA_HELP if command == "data" else _RUN_HELP) + help_text(COMMANDS[command])


def parse(arguments: Sequence[str]) -> Command:
    """The command that `arguments` (without the program's name) ask for.

    Raises:
        OptionError: no or an unknown command, an unknown or mistyped flag, a value that is missing, or a positional
            argument that is left over.
    """
    rest = without_local_rank(arguments)
    if not rest:
        raise OptionError(f"no command: {PROGRAM} run, or {PROGRAM} --help")
    name = rest.pop(0)
    if name not in COMMANDS:
        known = f"{' or '.join(COMMANDS)} must come first"
        raise OptionError(f"unknown command {name!r}: {known}{hint(name, COMMANDS)}")
    extra = () if name == "data" else ("config",)
    options = _Flags(COMMANDS[name], extra).read(rest)
    return Command(name, options, options.pop("config", None))
