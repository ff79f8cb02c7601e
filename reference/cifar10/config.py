"""Every option of the trainer and of the download, with meaning, unit, default and limits. Pure: no torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from reference.cifar10.options import OptionError, convert, convert_all, option
from reference.cifar10.presets import DESCRIPTION, PRESETS

BACKENDS = ("gloo", "nccl", "mpi", "horovod", "xla-tpu")
DATASETS = ("auto", "cifar10", "images", "digits", "fake")
NUM_CLASSES = 10


@dataclass(frozen=True, kw_only=True)
class Config:
    """One training run. Values are checked when an instance is made.

    Raises:
        OptionError: a value has the wrong type or is impossible, alone or together with another one.
    """

    dataset: str = option(
        "auto",
        "What to train on. auto takes the official CIFAR-10 files if they are in data_path, else an image folder if data_path"
        " holds train/ and test/, else the digits that come with scikit-learn.",
        section="Data", choices=DATASETS,
    )  # fmt: skip
    data_path: str | None = option(None, "Folder with the data set.", section="Data", unset="data")
    batch_size: int = option(
        512, "Global batch size, shared out over all processes.", section="Data", unit="images", low=1
    )
    pipeline: str = option(
        "batched", "How batches are made. batched: cut out of one array and augmented in bulk on the training device; torchvision:"
        " sample by sample with torchvision's transforms, as tutorials do it, to compare with (the random numbers are then those of"
        " the processes that load).", section="Data", choices=("batched", "torchvision"),
    )  # fmt: skip
    num_workers: int = option(
        0, "Loader processes on each node. Only --pipeline=torchvision needs any.", section="Data", unit="processes", low=0,
    )  # fmt: skip
    max_train_samples: int | None = option(
        None, "Train on this many images only, evenly spread over the training set.", section="Data", unit="images", low=1,
        unset="all",
    )  # fmt: skip
    max_eval_samples: int | None = option(
        None, "Evaluate on this many images only, evenly spread over the test set.", section="Data", unit="images", low=1,
        unset="all",
    )  # fmt: skip

    preset: str | None = option(
        None, f"Other defaults for the options below and batch_size: a recipe. {DESCRIPTION}", section="Training",
        choices=tuple(PRESETS), unset="none",
    )  # fmt: skip
    model: str = option(
        "resnet18",
        "Any torchvision classification model, or resnet18_cifar (3x3 stem, made for 32x32 images).",
        section="Training",
    )
    num_epochs: int = option(5, "Passes over the training set.", section="Training", unit="epochs", low=1)
    learning_rate: float = option(
        0.4, "Peak learning rate: rises from 0 during warm-up, then falls to 0.", section="Training", low=0
    )
    num_warmup_epochs: int = option(
        1, "Length of the warm-up; at most num_epochs.", section="Training", unit="epochs", low=0
    )
    momentum: float = option(
        0.9, "Momentum of SGD (Nesterov's form; 0 is plain SGD).", section="Training", low=0, below=1
    )
    weight_decay: float = option(1e-4, "L2 penalty of SGD.", section="Training", low=0)
    label_smoothing: float = option(
        0.0,
        "Share of each training target that is spread over all classes.",
        section="Training",
        low=0,
        below=1,
    )
    with_amp: str | None = option(
        None, "Mixed precision; auto is fp16 on a GPU and bf16 elsewhere.", section="Training",
        choices=("fp16", "bf16", "auto"), aliases={"true": "auto", "false": None}, unset="off",
    )  # fmt: skip
    compile: bool = option(
        False, "Compile the training step with torch.compile: faster steps, after a first one that takes a minute or more.",
        section="Training",
    )  # fmt: skip
    sync_bn: bool = option(
        False, "Batch norm over the global batch instead of each process's share.", section="Training"
    )
    seed: int = option(
        543,
        "Decides initial weights, sample order and augmentation.",
        section="Training",
        low=0,
        high=2**32 - 1,
    )
    deterministic: bool = option(
        False, "Only operations that give the same bits every time; others are an error.", section="Training"
    )
    threads: int | None = option(
        None, "CPU threads of each process; set the same way by every launcher, OMP_NUM_THREADS is not looked at.",
        section="Training", unit="threads", low=1, unset="cores / processes on the node",
    )  # fmt: skip

    output_path: str = option(
        "output-cifar10", "Each run makes a folder of its own in here.", section="Records"
    )
    validate_every: int = option(
        3,
        "Evaluate on the test set every so many epochs, and at the end.",
        section="Records",
        unit="epochs",
        low=1,
    )
    train_metrics: str = option(
        "running", "Training accuracy and loss: running takes the epoch's batches as they were trained on; full makes an"
        " extra evaluation pass over the training set.", section="Records", choices=("running", "full"),
    )  # fmt: skip
    log_every_iters: int = option(
        15,
        "Log loss, learning rate and speed every so many iterations (0: never).",
        section="Records",
        unit="iterations",
        low=0,
    )
    with_tensorboard: bool = option(True, "Write TensorBoard events.", section="Records")
    with_clearml: bool = option(
        False, "Report to ClearML (CLEARML_OFFLINE_MODE=1 needs no server).", section="Records"
    )

    checkpoint_every: int = option(
        200,
        "Write a checkpoint every so many iterations, and at the end.",
        section="Checkpoints",
        unit="iterations",
        low=1,
    )
    n_saved: int = option(2, "Training checkpoints to keep.", section="Checkpoints", unit="files", low=1)
    resume_from: str | None = option(
        None, "Go on from a checkpoint file, from the newest one of a run folder, from the newest valid one under"
        " output_path (auto), or from the newest valid one of this job when a launcher has started it again (restart).", section="Checkpoints", unset="start anew",
    )  # fmt: skip
    stop_iteration: int | None = option(
        None, "Write a checkpoint after this iteration and end.", section="Checkpoints", unit="iterations", low=1,
        unset="train to the end",
    )  # fmt: skip

    backend: str | None = option(
        None,
        "How processes talk to each other.",
        section="Processes",
        choices=BACKENDS,
        unset="none, a single process",
    )
    nproc_per_node: int | None = option(
        None, "Start this many processes here. Leave it out under torchrun and other launchers.", section="Processes",
        unit="processes", low=1, unset="1, or what the launcher started",
    )  # fmt: skip
    nnodes: int | None = option(
        None, "Machines that take part.", section="Processes", unit="nodes", low=1, unset="1"
    )
    node_rank: int | None = option(None, "Which of them this is, from 0.", section="Processes", low=0)
    master_addr: str | None = option(None, "Address of node 0.", section="Processes")
    master_port: int | None = option(None, "Free port on node 0.", section="Processes", low=1, high=65535)
    start_method: str | None = option(
        None, "How processes are started; fork is for notebooks.", section="Processes",
        choices=("spawn", "fork", "forkserver"), unset="spawn",
    )  # fmt: skip
    timeout: float = option(
        600.0,
        "A process that waits longer than this for the others gives up.",
        section="Processes",
        unit="seconds",
        low=1,
    )

    def __post_init__(self) -> None:
        for spec in fields(self):
            object.__setattr__(self, spec.name, convert(type(self), spec.name, getattr(self, spec.name)))
        if self.num_warmup_epochs > self.num_epochs:
            raise OptionError(
                f"num_warmup_epochs ({self.num_warmup_epochs}) must not be more than num_epochs ({self.num_epochs})"
            )
        if self.max_train_samples is not None and self.max_train_samples < self.batch_size:
            raise OptionError(
                f"max_train_samples ({self.max_train_samples}) must be at least one batch (batch_size is {self.batch_size})"
            )
        if self.nproc_per_node is not None:
            check_divisible(self.batch_size, self.nproc_per_node * (self.nnodes or 1))
        if self.compile and self.backend == "xla-tpu":
            raise OptionError("compile is for CPUs and GPUs: XLA compiles every step by itself")

    @property
    def data_dir(self) -> Path:
        """The folder that `data_path` means."""
        return Path(self.data_path if self.data_path is not None else "data").expanduser()

    @property
    def spawn_options(self) -> dict[str, Any]:
        """The launch arguments of `idist.Parallel` that were given."""
        names = ("nproc_per_node", "nnodes", "node_rank", "master_addr", "master_port", "start_method")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def changed(self) -> dict[str, Any]:
        """The options whose value is not the default, or not that of the preset."""
        given = PRESETS.get(self.preset or "", {})
        return {
            spec.name: getattr(self, spec.name)
            for spec in fields(self)
            if getattr(self, spec.name) != given.get(spec.name, spec.default)
        }

    def to_dict(self) -> dict[str, Any]:
        """All options by name, plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class DownloadOptions:
    """Where the official CIFAR-10 files come from and go to."""

    data_path: str = option("data", "Folder that receives cifar-10-batches-py/.", section="Options")
    mirror: str | None = option(
        None, "Address of a copy: the folder that holds cifar-10-python.tar.gz, or the file itself (http, https or file).",
        section="Options", unset="CIFAR10_MIRROR, else the official site",
    )  # fmt: skip
    retries: int = option(5, "Attempts after a broken connection.", section="Options", unit="attempts", low=0)

    def __post_init__(self) -> None:
        for spec in fields(self):
            object.__setattr__(self, spec.name, convert(type(self), spec.name, getattr(self, spec.name)))


def check_divisible(batch_size: int, world_size: int) -> None:
    """Refuse a global batch that cannot be shared out evenly.

    Raises:
        OptionError: naming the nearest sizes that can.
    """
    if batch_size % world_size:
        lower, upper = batch_size // world_size * world_size, -(-batch_size // world_size) * world_size
        sizes = f"{lower} or {upper}" if lower else f"{upper}"
        raise OptionError(
            f"batch_size {batch_size} cannot be shared out over {world_size} processes: take {sizes}"
        )


def read_yaml(path: str) -> dict[str, Any]:
    """The options that a YAML file sets, converted and checked one by one.

    Raises:
        OptionError: the file is missing, is not YAML, is not a mapping, or sets a wrong or unknown option.
    """
    import yaml  # only a run with --config pays for it

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"--config={path}: {error.strerror or error}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise OptionError(f"--config={path} is not YAML: {' '.join(str(error).split())}") from None
    if content is None:
        return {}
    if not isinstance(content, Mapping) or not all(isinstance(name, str) for name in content):
        raise OptionError(
            f"--config={path} must hold lines like `batch_size: 256`, got {type(content).__name__}"
        )
    return convert_all(Config, content, where=f"{path}: ")


def make_config(flags: Mapping[str, Any], config_file: str | None = None) -> Config:
    """The run that the YAML file and the flags describe; flags win over the file, and both over a preset.

    Args:
        flags: option name to text or plain value, as given on the command line.
        config_file: path of a YAML file with options, or None.

    Raises:
        OptionError: anything wrong, in one line.
    """
    from_file = read_yaml(config_file) if config_file is not None else {}
    chosen = {**from_file, **convert_all(Config, flags)}
    preset = PRESETS.get(str(chosen.get("preset")), {})  # an unknown one is refused below
    return Config(**{**preset, **chosen})
