"""Checkpoint files: plain content, written atomically, read without executing anything."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import reference.idist as idist

SCHEMA = 1
"""Version of the layout of a checkpoint: `{"schema": SCHEMA, name: state_dict, ...}`."""


def plain(value: Any, where: str = "checkpoint") -> Any:
    """A copy of plain dicts, lists, tuples, numbers, strings, bytes, None and tensors on the CPU.

    Raises:
        ValueError: anything else, named by its place, because it could not be loaded safely.
    """
    if value is None or type(value) in (bool, int, float, str, bytes):
        return value
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu()
        # torch.save writes the whole storage that a view looks at
        partial = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
        return tensor.clone() if partial else tensor
    if isinstance(value, Mapping):
        return {
            plain(key, f"a key of {where}"): plain(item, f"{where}[{key!r}]") for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        items = [plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    for number in (bool, int, float, str):
        if isinstance(value, number):
            return number(value)
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        return plain(value.item(), where)
    raise ValueError(
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold: use plain types or tensors"
    )


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint that `Checkpoint` wrote, with its tensors on the CPU. No code in it is executed.

    Raises:
        ValueError: there is no such file, it is truncated, or it is something else; the message names the file.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(
            f"checkpoint {str(path)!r} does not exist" if not path.exists() else f"{str(path)!r} is no file"
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).strip().split("\n")[0][:200]
        raise ValueError(f"{str(path)!r} is truncated or not a checkpoint: {reason}") from error
    if not isinstance(content, dict) or "schema" not in content:
        raise ValueError(f"{str(path)!r} was not written by this program: it has no schema version")
    if content["schema"] != SCHEMA:
        raise ValueError(
            f"{str(path)!r} has schema {content['schema']!r}, this program reads schema {SCHEMA}"
        )
    return content


class DiskSaver:
    """Writes checkpoints into a directory, on rank 0: first completely to a temporary file, then renamed.

    A crash or a full disk at any moment leaves every earlier checkpoint as it was.

    Args:
        dirname: the directory.
        create_dir: make it if it isn't there.
        require_empty: refuse a directory that has checkpoints (`*.pt`).

    Raises:
        ValueError: the directory isn't there, or not empty.
    """

    def __init__(
        self, dirname: str | os.PathLike[str], create_dir: bool = True, require_empty: bool = True
    ) -> None:
        self.dirname = Path(dirname)
        if idist.get_rank() != 0:
            return
        if create_dir:
            self.dirname.mkdir(parents=True, exist_ok=True)
        if not self.dirname.is_dir():
            raise ValueError(f"directory {str(dirname)!r} does not exist")
        if require_empty and any(self.dirname.glob("*.pt")):
            raise ValueError(
                f"directory {str(dirname)!r} has checkpoints already: choose another, or pass require_empty=False"
            )

    def __call__(
        self, checkpoint: Mapping[str, Any], filename: str, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Write a checkpoint on rank 0; OSError if that fails."""
        if idist.get_rank() == 0:
            save_atomically(checkpoint, self.dirname / filename)

    def remove(self, filename: str) -> None:
        """Delete a checkpoint, on rank 0; nothing happens if it is gone."""
        if idist.get_rank() == 0:
            (self.dirname / filename).unlink(missing_ok=True)


def save_atomically(checkpoint: Mapping[str, Any], path: Path) -> None:
    """`torch.save` that either completes or leaves nothing behind; OSError naming the file if it fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # opened by descriptor: a file with a name would be registered as a model by ClearML's patch of torch.save
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), "wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except (OSError, RuntimeError) as error:
        cause = _os_error(error)
        reason = cause.strerror or str(cause) if cause else str(error)
        message = f"cannot write checkpoint {str(path)!r}: {reason}; earlier checkpoints are intact"
        raise OSError(cause.errno if cause and cause.errno else errno.EIO, message) from error
    finally:
        temporary.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    """Make the rename itself survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _os_error(error: BaseException | None) -> OSError | None:
    """The first OSError behind an error: torch's zip writer raises its own while it closes a file that is broken."""
    while error is not None:
        if isinstance(error, OSError):
            return error
        error = error.__cause__ or error.__context__
    return None
