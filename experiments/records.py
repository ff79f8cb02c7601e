"""What a cell of the matrix leaves: one JSON file, described here field by field.

A record is complete in itself: whoever has the file needs neither the matrix nor the machine to report on it. All times are
in seconds, all sizes in bytes. `SCHEMA` counts up whenever a field changes its meaning, goes, or is added without a default.

    <matrix run>/plan.json                        the cells that were planned, and the reasons of those that were not
    <matrix run>/cells/<cell>/record.json         this module's `Record`
    <matrix run>/cells/<cell>/result.json         this module's `Measured`, written by the program
    <matrix run>/cells/<cell>/events.jsonl        the program's log: one JSON line for each logged step
    <matrix run>/cells/<cell>/logs/               the supervisor's files: one for each rank, launcher.log, result.json
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from reference.files import write_atomically

SCHEMA: Literal[1] = 1
RECORD = "record.json"
Program = Literal["idist", "native_ddp", "horovod_native", "xla_native", "ignite"]
Backend = Literal["none", "gloo", "nccl", "horovod", "xla-tpu"]
Launcher = Literal[
    "plain",
    "torchrun",
    "torch_distributed_launch",
    "spawn",
    "horovodrun",
    "mpirun",
    "slurm",
    "slurm_torchrun",
]
State = Literal["ok", "failed", "skipped", "interrupted"]


class RecordError(ValueError):
    """A file is no record, or records cannot be compared; the message is one line that names the file."""


class Part(BaseModel):
    """What all parts of a record have in common: they cannot be changed, and know all of their fields."""

    # JSON has no infinity, but a training that diverged has
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class Settings(Part):
    """The training itself: what decides the loss curve, whatever distributes it. Names and defaults are the programs' options."""

    dataset: Literal["cifar10", "images", "digits", "fake"] = "digits"
    data_path: str = Field(default="data", description="folder with the data set")
    model: str = Field(default="small", description="small, resnet18_cifar or a classifier of torchvision")
    batch_size: int = Field(default=64, ge=1, description="global: shared out over all processes")
    num_epochs: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=0.05, ge=0, description="peak, after the warm-up")
    max_train_samples: int | None = Field(default=None, ge=1, description="None: all")
    max_eval_samples: int | None = Field(default=None, ge=1, description="None: all")
    seed: int = Field(default=543, ge=0, lt=2**32, description="of weights, order and augmentation")
    threads: int | None = Field(
        default=None, ge=1, description="of each process; None: cores / processes on the node"
    )

    @property
    def digest(self) -> str:
        """Six characters that stand for these settings in names; where the data lie on a machine is no part of them."""
        return hashlib.sha256(self.model_dump_json(exclude={"data_path"}).encode()).hexdigest()[:6]


class Cell(Part):
    """One start of one program: a point of the matrix, and which repeat of it."""

    program: Program
    backend: Backend
    launcher: Launcher
    processes: int = Field(ge=1, description="on each node")
    nodes: int = Field(default=1, ge=1)
    settings: Settings = Settings()
    repeat: int = Field(default=1, ge=1)

    @property
    def world_size(self) -> int:
        """Processes (XLA: replicas) on all nodes."""
        return self.processes * self.nodes

    @property
    def key(self) -> str:
        """The name without the repeat: cells with the same key measure the same thing."""
        layout = f"{self.nodes}x{self.processes}"
        training = f"{self.settings.dataset}-{self.settings.model}-{self.settings.digest}"
        return f"{self.program}-{self.backend}-{self.launcher}-{layout}-{training}"

    @property
    def name(self) -> str:
        """Unique in a matrix, and fit for a file name."""
        return f"{self.key}-r{self.repeat}"


class RankFacts(Part):
    """What one rank used. XLA on the CPU: replicas are threads of a process, and tell the numbers of that process."""

    rank: int
    threads: int = Field(description="of the process, as torch sees them")
    cpu_s: float = Field(description="user and system time of the process during the training loop")
    loop_s: float = Field(description="wall time of the training loop, all epochs, without evaluation")
    peak_memory_bytes: int = Field(
        description="largest resident memory of the process from its start (VmHWM)"
    )
    peak_device_memory_bytes: int | None = Field(description="largest memory that torch had on the GPU")


class Communication(Part):
    """How many bytes a rank gives to all-reduce for gradients. Worked out, not measured: see `how`."""

    bytes_per_step: int = Field(description="payload of a rank; 0 in a single process")
    steps: int
    total_bytes: int
    how: str = Field(description="the rule, for the report's footnote")


class Data(Part):
    """The images that were trained on."""

    title: str
    checksum: str = Field(description="over all pixels and labels of the data set")
    train_images: int = Field(description="used, after max_train_samples")
    test_images: int = Field(description="used, after max_eval_samples")


class Host(Part):
    """A machine. Of several nodes, rank 0's."""

    name: str
    system: str
    processor: str
    cores: int | None
    memory_bytes: int
    devices: list[str] = Field(default_factory=list, description="names of the GPUs that torch sees")


class Git(Part):
    """The code: None where git or the repository is missing."""

    revision: str | None
    dirty: bool | None


class Measured(Part):
    """What a program found out: the content of its result.json. Lists have one entry for each step, of all epochs."""

    schema_version: Literal[1]
    program: Program
    backend: Backend
    world_size: int
    device: str
    parameters: int = Field(description="numbers that are trained")
    steps_per_epoch: int
    step_s: list[float] = Field(description="each step until its loss is on the host, of the slowest rank")
    losses: list[float] = Field(description="mean over the global batch, before the step's update")
    replicas_equal: bool = Field(description="whether all ranks ended with the same parameters")
    accuracy: float = Field(description="on the test images after the last epoch")
    n_evaluated: int = Field(description="images counted in it, over all ranks")
    evaluation_s: float
    train_s: float = Field(description="the training loop of the slowest rank, without evaluation")
    ranks: list[RankFacts]
    communication: Communication
    data: Data
    versions: dict[str, str] = Field(description="python and packages")
    host: Host
    git: Git

    @model_validator(mode="after")
    def _lengths(self) -> Measured:
        if not len(self.step_s) == len(self.losses) == self.communication.steps:
            raise ValueError(f"{len(self.step_s)} step times, {len(self.losses)} losses")
        if len(self.ranks) != self.world_size:
            raise ValueError(f"{len(self.ranks)} ranks in a world of {self.world_size}")
        return self


class FailedRank(Part):
    """The first process that failed, as the supervisor saw it."""

    host: str | None = None
    rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    log: str | None = Field(default=None, description="its log, relative to the record's folder")


class Times(Part):
    """Seconds after the launcher was started; None: never reached."""

    rendezvous_s: float | None = Field(default=None, description="the ranks have met")
    first_step_s: float | None = Field(default=None, description="the first training step is complete")
    wall_s: float | None = Field(default=None, description="everything has ended")


class Record(Part):
    """A cell and what became of it: ok, failed, skipped (never started) or interrupted (by Ctrl-C)."""

    schema_version: Literal[1] = SCHEMA
    cell: Cell
    state: State
    reason: str = Field(description="finished, or in one line why not")
    exit_code: int | None = Field(default=None, description="of the launcher; None: not started")
    failed: FailedRank | None = None
    command: list[str] = Field(
        description="what was started, in the root of the clone and the cell's environment"
    )
    environment: dict[str, str] = Field(description="the variables that were set for it")
    line: str = Field(
        description="the same as one line to paste into a shell; makes the environment where it is missing"
    )
    preset: str = Field(description="of the matrix")
    warmup: int = Field(ge=0, description="steps at the start that statistics leave out, of the preset")
    order: int = Field(description="place in the sequence of starts: drift of a machine goes with it")
    started: float | None = Field(default=None, description="seconds since 1970")
    times: Times = Times()
    restarts: int = 0
    image: dict[str, Any] | None = Field(
        default=None,
        description="of the container: what its build wrote down, and its name (IMAGE); None: a local environment",
    )
    host: Host = Field(description="that started the cell")
    hosts: list[str] = Field(
        default_factory=list, description="of each rank, in their order; empty: not started"
    )
    git: Git
    logs: list[str] = Field(default_factory=list, description="relative to the record's folder")
    measured: Measured | None = Field(default=None, description="None unless the program came to its end")

    @model_validator(mode="after")
    def _complete(self) -> Record:
        if self.state == "ok" and self.measured is None:
            raise ValueError("state is ok, but nothing was measured")
        return self


def write_record(folder: Path, record: Record) -> None:
    """Write a record into its folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / RECORD, record.model_dump_json(indent=1) + "\n")


def read_record(path: Path) -> Record:
    """Read one record.

    Raises:
        RecordError: the file is missing, broken, or of another schema.
    """
    content = _read(path)
    version = content.get("schema_version")
    if version != SCHEMA:
        raise RecordError(
            f"{path} has schema {version!r}, this code reads {SCHEMA}: use the code that wrote it"
        )
    return _validated(Record, content, path)


def read_measured(path: Path) -> Measured:
    """Read the result of a program.

    Raises:
        RecordError: the file is missing or broken.
    """
    return _validated(Measured, _read(path), path)


def read_records(run: Path) -> list[Record]:
    """All records of a matrix run, in the order of their starts.

    Raises:
        RecordError: one of them is broken, or there is none.
    """
    records = [read_record(path) for path in sorted(run.glob(f"cells/*/{RECORD}"))]
    if not records:
        raise RecordError(f"{run} holds no records (cells/*/{RECORD}): is it the folder of a matrix run?")
    return sorted(records, key=lambda record: record.order)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise RecordError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise RecordError(f"{path} is no record: it holds a {type(content).__name__}")
    return content


def _validated(kind: type[Any], content: dict[str, Any], path: Path) -> Any:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or kind.__name__
        raise RecordError(f"{path}: {where}: {first['msg']}") from None
