"""`python -m reference.cifar10 run` trains, `python -m reference.cifar10 data` downloads CIFAR-10.

What is wrong with a command is said in one line on stderr, with exit code 2, before torch is imported and before any
process starts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import fire

from reference.cifar10 import arguments
from reference.cifar10.config import DownloadOptions, make_config
from reference.cifar10.options import OptionError, convert_all


def run(*, config: str | None = None, **options: Any) -> None:
    """Train with these options; `config` names a YAML file that may set any of them."""
    checked = make_config(options, config)
    from reference.cifar10.launch import launch  # imports torch, so only once the options are right

    code = launch(checked)
    if code:
        raise SystemExit(code)


def check(*, config: str | None = None, **options: Any) -> None:
    """Refuse wrong options of a run before a launcher starts its processes."""
    make_config(options, config)


def data(**options: Any) -> None:
    """Download the official CIFAR-10 files."""
    checked = DownloadOptions(**convert_all(DownloadOptions, options))
    from reference.cifar10.datasets.download import DataError, download_cifar10

    try:
        download_cifar10(checked)
    except DataError as error:
        refuse(str(error), code=1)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line `argv` (default: the program's own).

    Raises:
        SystemExit: 2 for a wrong command, the run's own exit code when it is not 0.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    text = arguments.help_for(given)
    if text is not None:
        print(text)
        return
    try:
        command = arguments.parse(given)
        # Texts stay texts: the option's type decides, not what a text looks like to fire.
        keep = fire.decorators.SetParseFn(str)
        fire.Fire(
            {"run": keep(run), "check": keep(check), "data": keep(data)},
            command=command.fire_arguments(),
            name=arguments.PROGRAM,
        )
    except OptionError as error:
        refuse(str(error))


def refuse(message: str, code: int = 2) -> NoReturn:
    """Say in one line what is wrong, and exit; code 2 is for a wrong command."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
