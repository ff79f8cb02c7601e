"""Scalars and models to ClearML, also in its offline mode."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import reference.idist as idist
from reference.handlers.loggers import ScalarLogger
from reference.handlers.storage import DiskSaver


class ClearMLLogger(ScalarLogger):
    """Reports scalars to a ClearML task: `tag` is the title of the plot, `name` the series.

    Args:
        kwargs: of `clearml.Task.init` (`project_name`, `task_name`, ...), used if there is no current task.

    Raises:
        ImportError: clearml is not installed.
        ValueError: there is no current task and no `project_name` to begin one.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        if not self.active:
            return
        task_class = clearml_task("ClearMLLogger")
        self.task = task_class.current_task()
        self._own_task = self.task is None
        if self._own_task:
            if "project_name" not in kwargs:
                raise ValueError(
                    "ClearMLLogger: there is no current task: call clearml.Task.init, or give project_name"
                )
            self.task = task_class.init(**kwargs)

    def write(self, tag: str, scalars: Mapping[str, float], step: int) -> None:
        """See `ScalarLogger.write`."""
        for name, value in scalars.items():
            title, _, series = (f"{tag}/{name}" if tag else name).rpartition("/")
            self.task.get_logger().report_scalar(title or series, series, iteration=step, value=value)

    def close(self) -> None:
        """Send what is pending; close the task if this logger began it."""
        if self.active:
            self.task.flush(wait_for_uploads=True)
            if self._own_task:
                self.task.close()


class ClearMLSaver:
    """Save handler for `Checkpoint`: writes the file to a directory and stores it as a model of the current task.

    In offline mode the model file becomes part of the session archive. Removing a checkpoint deletes the local file;
    ClearML keeps its copy.

    Args:
        dirname: directory of the files; default: a new temporary one.
        output_uri: where ClearML uploads models to; default: the task's.

    Raises:
        ImportError: clearml is not installed.
        ValueError: at the first save, if there is no current task.
    """

    def __init__(self, dirname: str | os.PathLike[str] | None = None, output_uri: str | None = None) -> None:
        self._output_uri = output_uri
        if idist.get_rank() == 0:
            self._task_class = clearml_task("ClearMLSaver")
            dirname = dirname or tempfile.mkdtemp(prefix="clearml-checkpoints-")
        self._disk = DiskSaver(dirname or ".", require_empty=False)

    def __call__(
        self, checkpoint: Mapping[str, Any], filename: str, metadata: Mapping[str, Any] | None = None
    ) -> None:
        """Write and register a checkpoint on rank 0; OSError if it can't be written."""
        if idist.get_rank() != 0:
            return
        task = self._task_class.current_task()
        if task is None:
            raise ValueError("ClearMLSaver: there is no current task: call clearml.Task.init first")
        self._disk(checkpoint, filename)
        metadata = metadata or {}
        comment = ", ".join(f"{key}={value}" for key, value in metadata.items() if value is not None)
        model = _model_class()(task=task, name=Path(filename).stem, framework="PyTorch", comment=comment)
        model.update_weights(
            weights_filename=str(self._disk.dirname / filename),
            upload_uri=self._output_uri,
            target_filename=filename,
            auto_delete_file=False,
            iteration=metadata.get("global_step"),
            async_enable=False,
        )

    def remove(self, filename: str) -> None:
        """Delete the local file."""
        self._disk.remove(filename)


def _model_class() -> Any:
    from clearml import OutputModel, Task

    if not Task.is_offline():
        return OutputModel

    class OfflineModel(OutputModel):
        """clearml 2.1.12 fails when it asks an offline model, which it cannot have published, whether it is."""

        published = False

    return OfflineModel


def clearml_task(user: str) -> Any:
    """ClearML's `Task`, which reports from threads of this process.

    Its default on Linux, a process that it forks off, hangs now and then when the training has threads, and then the
    training waits for it for ever at its end. The same setting in a clearml.conf: `sdk.development.report_use_subprocess`.

    Raises:
        ImportError: clearml is not installed; the message names `user`.
    """
    try:
        from clearml import Task
    except ImportError as error:
        raise ImportError(f"{user} needs clearml: pip install clearml") from error
    Task._report_subprocess_enabled = False  # type: ignore[assignment]
    return Task
