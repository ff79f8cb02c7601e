"""Checkpoint files: names, what is kept, atomicity, and what is refused."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from reference.engine import Engine, Events
from reference.handlers import Checkpoint, DiskSaver, global_step_from_engine, load_checkpoint
from reference.handlers.storage import plain, save_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def scored(scores: list[float], folder: Path, **arguments: Any) -> Checkpoint:
    """Run an evaluator once per score, with the trainer's epoch as the step."""
    trainer = Engine(lambda engine, batch: None)
    evaluator = Engine(lambda engine, batch: None, evaluation=True)
    values = iter(scores)
    evaluator.add_event_handler(
        Events.EPOCH_COMPLETED, lambda e: e.state.metrics.update(Accuracy=next(values))
    )
    handler = Checkpoint(
        {"model": nn.Linear(1, 1)},
        folder,
        filename_prefix="best",
        score_name="val_accuracy",
        score_function=Checkpoint.get_default_score_fn("Accuracy"),
        global_step_transform=global_step_from_engine(trainer),
        **arguments,
    )
    evaluator.add_event_handler(Events.COMPLETED, handler)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run([0]))
    trainer.run([0], max_epochs=len(scores))
    return handler


def periodic(folder: Path, iterations: int, **arguments: Any) -> Checkpoint:
    trainer = Engine(lambda engine, batch: None)
    handler = Checkpoint(
        {"trainer": trainer, "model": nn.Linear(1, 1)}, folder, filename_prefix="training", **arguments
    )
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=200), handler)
    trainer.run(range(iterations))
    return handler


# ---- names and numbers of files


def test_names_of_the_tutorial(tmp_path: Path) -> None:
    scored([0.56991], tmp_path / "best")
    assert names(tmp_path / "best") == ["best_model_1_val_accuracy=0.5699.pt"]
    handler = periodic(tmp_path / "training", 500)
    assert names(tmp_path / "training") == ["training_checkpoint_400.pt"]
    assert handler.last_checkpoint == "training_checkpoint_400.pt"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({}, "m_7.pt"),
        ({"filename_prefix": "a"}, "a_m_7.pt"),
        ({"score_function": lambda e: 3}, "m_7_3.pt"),
        ({"score_function": lambda e: -0.25, "score_name": "loss"}, "m_7_loss=-0.2500.pt"),
        ({"filename_pattern": "{name}-{global_step:04d}.{ext}"}, "m-0007.pt"),
        ({"filename_pattern": "last.pt"}, "last.pt"),
        (
            {"filename_pattern": "{score_name}~{score}", "score_function": lambda e: 0.5, "score_name": "s"},
            "s~0.5000",
        ),
    ],
)
def test_patterns(tmp_path: Path, arguments: dict[str, Any], name: str) -> None:
    trainer = Engine(lambda engine, batch: None)
    handler = Checkpoint({"m": nn.Linear(1, 1)}, str(tmp_path), **arguments)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=7), handler)
    trainer.run(range(9))
    assert names(tmp_path) == [name]


@pytest.mark.parametrize(
    ("keep", "equal", "epochs"),
    [
        (1, False, [4]),
        (2, False, [2, 4]),
        (2, True, [4, 5]),
        (3, False, [2, 4, 5]),
        (None, False, [1, 2, 3, 4, 5]),
    ],
)
def test_the_best_are_kept(tmp_path: Path, keep: int | None, equal: bool, epochs: list[int]) -> None:
    scores = [0.1, 0.5, 0.2, 0.6, 0.5]
    handler = scored(scores, tmp_path, n_saved=keep, greater_or_equal=equal)
    assert names(tmp_path) == [f"best_model_{n}_val_accuracy={scores[n - 1]:.4f}.pt" for n in epochs]
    assert handler.last_checkpoint == "best_model_4_val_accuracy=0.6000.pt"


def test_not_a_number_is_the_worst_score(tmp_path: Path) -> None:
    scored([float("nan"), 0.1, float("nan")], tmp_path)
    assert names(tmp_path) == ["best_model_2_val_accuracy=0.1000.pt"]


def test_the_newest_are_kept_also_after_a_new_start(tmp_path: Path) -> None:
    trainer = Engine(lambda engine, batch: None)
    handler = Checkpoint({"trainer": trainer}, tmp_path, n_saved=2)
    trainer.add_event_handler(Events.ITERATION_COMPLETED, handler)
    trainer.run(range(5))
    assert names(tmp_path) == ["trainer_4.pt", "trainer_5.pt"]
    trainer.run(range(1))  # steps begin again: this one is the newest nevertheless
    assert names(tmp_path) == ["trainer_1.pt", "trainer_5.pt"]


def test_the_default_step_is_the_epoch_at_epoch_events(tmp_path: Path) -> None:
    trainer = Engine(lambda engine, batch: None)
    trainer.add_event_handler(
        Events.EPOCH_COMPLETED, Checkpoint({"trainer": trainer}, tmp_path, n_saved=None)
    )
    trainer.run(range(3), max_epochs=2)
    assert names(tmp_path) == ["trainer_1.pt", "trainer_2.pt"]


def test_files_of_other_runs_are_left_alone_and_a_resumed_run_goes_on_with_its_own(tmp_path: Path) -> None:
    (tmp_path / "training_checkpoint_1.pt").write_text("somebody's")
    first = periodic(tmp_path, 400, n_saved=2, include_self=True)
    content = load_checkpoint(tmp_path / "training_checkpoint_400.pt")
    trainer = Engine(lambda engine, batch: None)
    again = Checkpoint(
        {"trainer": trainer, "model": nn.Linear(1, 1)}, tmp_path, "training", n_saved=2, include_self=True
    )
    Checkpoint.load_objects(again.to_save, content)
    trainer.state.max_epochs = None
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=600), again)
    trainer.run(range(600))
    assert names(tmp_path) == [
        "training_checkpoint_1.pt", "training_checkpoint_400.pt", "training_checkpoint_600.pt",
    ]  # fmt: skip
    assert first.last_checkpoint == "training_checkpoint_400.pt"


# ---- content


class Thing:
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def round_trip(state: Any, folder: Path) -> Any:
    trainer = Engine(lambda engine, batch: None)
    trainer.add_event_handler(Events.COMPLETED, Checkpoint({"thing": Thing(state)}, folder))
    trainer.run([0])
    return load_checkpoint(folder / "thing_1.pt")["thing"]


def test_plain_content(tmp_path: Path) -> None:
    state = {
        "numbers": [1, 2.5, True, None, 2**80, float("inf")],
        "text": ("käse", b"\x00\xff"),
        3: {"nested": [{}]},
        "numpy": numpy.float64(0.1),
    }
    loaded = round_trip(state, tmp_path)
    assert loaded == state
    assert type(loaded["numpy"]) is float


def test_a_view_does_not_bring_its_whole_storage(tmp_path: Path) -> None:
    big = torch.zeros(1_000_000)
    round_trip({"row": big[:10]}, tmp_path)
    assert (tmp_path / "thing_1.pt").stat().st_size < 10_000


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: 0, [{"deep": Path("x")}]])
def test_what_is_not_plain_is_refused_by_its_place(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ValueError, match=r"thing.*cannot hold"):
        round_trip({"bad": value}, tmp_path)
    assert names(tmp_path) == []


def test_wrapped_models_are_saved_and_loaded_without_their_wrappers(tmp_path: Path) -> None:
    compiled = torch.compile(nn.Linear(2, 2))
    trainer = Engine(lambda engine, batch: None)
    trainer.add_event_handler(Events.COMPLETED, Checkpoint({"model": compiled}, tmp_path))
    trainer.run([0])
    path = tmp_path / "model_1.pt"
    assert list(load_checkpoint(path)["model"]) == ["weight", "bias"]
    for target in (nn.Linear(2, 2), torch.compile(nn.Linear(2, 2))):
        Checkpoint.load_objects({"model": target}, path)
        assert torch.equal(target.weight, compiled.weight)


def test_loading_checks_first(tmp_path: Path) -> None:
    trainer = Engine(lambda engine, batch: None)
    model, optimizer = nn.Linear(2, 2), Thing({"lr": 1})
    trainer.add_event_handler(
        Events.COMPLETED, Checkpoint({"model": model, "optimizer": optimizer}, tmp_path)
    )
    trainer.run([0])
    path = tmp_path / "checkpoint_1.pt"
    untouched, before = nn.Linear(2, 2), None
    before = untouched.weight.clone()
    with pytest.raises(
        ValueError, match=r"checkpoint_1.pt.* has no \['scaler'\]; it has \['model', 'optimizer'\]"
    ):
        Checkpoint.load_objects({"model": untouched, "scaler": Thing(0)}, path)
    assert torch.equal(untouched.weight, before)
    with pytest.raises(ValueError, match=r"'model' of .*checkpoint_1.pt.* does not fit"):
        Checkpoint.load_objects({"model": nn.Linear(3, 2)}, path)
    with pytest.raises(ValueError, match="no load_state_dict"):
        Checkpoint.load_objects({"model": 3}, path)
    Checkpoint.load_objects({"model": nn.Linear(2, 2, bias=False)}, torch.load(path), strict=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to_save": {}}, "empty"),
        ({"to_save": [nn.Linear(1, 1)]}, "dictionary"),
        ({"to_save": {"x": 3}}, "'x' has no state_dict"),
        ({"to_save": {"schema": Thing(0)}}, "reserved"),
        ({"n_saved": 0}, "n_saved"),
        ({"score_name": "accuracy"}, "score_function"),
        ({"save_handler": 3}, "save_handler"),
        ({"filename_pattern": "{nmae}.pt"}, "nmae"),
        ({"filename_pattern": "{score}.pt"}, "fields"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Checkpoint(**{"to_save": {"x": Thing(0)}, "save_handler": tmp_path, **arguments})
    with pytest.raises(ValueError, match="score_sign"):
        Checkpoint.get_default_score_fn("loss", 2.0)


# ---- reading


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (str(Path(os.environ["EVIL"])),)


def broken_files(folder: Path) -> Iterator[tuple[Path, str]]:
    good = folder / "good.pt"
    save_atomically({"schema": 1, "x": torch.zeros(1000)}, good)
    content = good.read_bytes()
    for size in (0, 1, 100, len(content) // 2, len(content) - 1):
        path = folder / f"cut-{size}.pt"
        path.write_bytes(content[:size])
        yield path, "truncated or not a checkpoint"
    for name, data in (
        ("text.pt", b"hello"),
        ("old.pt", pickle.dumps({"schema": 1})),
        ("evil.pt", pickle.dumps(Evil())),
    ):
        (folder / name).write_bytes(data)
        yield folder / name, "truncated or not a checkpoint"
    torch.save(Evil(), folder / "evil-zip.pt")
    yield folder / "evil-zip.pt", "truncated or not a checkpoint"
    torch.save({"weight": torch.zeros(1)}, folder / "foreign.pt")
    yield folder / "foreign.pt", "no schema version"
    torch.save([1], folder / "list.pt")
    yield folder / "list.pt", "no schema version"
    torch.save({"schema": 2}, folder / "new.pt")
    yield folder / "new.pt", "has schema 2, this program reads schema 1"
    yield folder / "missing.pt", "does not exist"
    yield folder, "is no file"


def test_files_that_are_refused_by_name_without_running_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVIL", str(tmp_path / "evil-was-here"))
    for path, message in broken_files(tmp_path):
        with pytest.raises(ValueError, match=message) as caught:
            load_checkpoint(path)
        assert str(path) in str(caught.value)
    assert not (tmp_path / "evil-was-here").exists()
    assert load_checkpoint(tmp_path / "good.pt")["schema"] == 1


# ---- writing


def test_disk_saver_checks_its_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        DiskSaver(tmp_path / "none", create_dir=False)
    (tmp_path / "a.pt").touch()
    with pytest.raises(ValueError, match="require_empty"):
        DiskSaver(tmp_path)
    saver = DiskSaver(tmp_path, require_empty=False)
    saver.remove("a.pt")
    saver.remove("a.pt")  # gone already
    assert names(tmp_path) == []


FULL_DISK = """
import resource, sys, torch
from reference.engine import Engine, Events
from reference.handlers import Checkpoint

class Thing:
    size = 10
    def state_dict(self): return {"x": torch.arange(self.size)}

thing = Thing()
trainer = Engine(lambda engine, batch: None)
handler = Checkpoint({"thing": thing}, sys.argv[1], n_saved=1)
trainer.add_event_handler(Events.ITERATION_COMPLETED, handler)
trainer.add_event_handler(Events.ITERATION_STARTED(once=2), lambda: setattr(thing, "size", 1_000_000))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    trainer.run(range(3))
except OSError as error:
    print(type(error).__name__, error.errno, handler.last_checkpoint, error)
"""


def test_a_file_that_cannot_be_written_leaves_the_last_one(tmp_path: Path) -> None:
    # the limit on file sizes acts as a full disk does: write() fails in the middle of the file
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    kind, code, last, message = result.stdout.split(" ", 3)
    assert (kind, int(code), last) == ("OSError", errno.EFBIG, "thing_1.pt")
    assert "thing_2.pt" in message and os.strerror(errno.EFBIG) in message and "intact" in message
    assert names(tmp_path) == ["thing_1.pt"]
    assert load_checkpoint(tmp_path / "thing_1.pt")["thing"]["x"].tolist() == list(range(10))


def test_a_full_file_system(tmp_path: Path) -> None:
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small file system")
    program = FULL_DISK.replace("resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))", "")
    script = 'mount -t tmpfs -o size=1m none "$1" && "$2" -c "$3" "$1" && ls "$1"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(tmp_path), sys.executable, program]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    report, *files = result.stdout.splitlines()
    assert report.startswith(f"OSError {errno.ENOSPC} thing_1.pt") and os.strerror(errno.ENOSPC) in report
    assert files == ["thing_1.pt"]


def test_the_old_file_goes_only_after_the_new_one_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def traced(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            steps.append(name)
            return function(*args, **kwargs)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, traced(name, getattr(os, name)))
    monkeypatch.setattr(DiskSaver, "remove", traced("remove", DiskSaver.remove))
    periodic(tmp_path, 400)
    assert steps == ["fsync", "replace", "fsync", "fsync", "replace", "fsync", "remove"]


def test_plain_keeps_shared_tensors_shared() -> None:
    tensor = torch.zeros(3)
    first, second = plain([tensor, tensor])
    assert first.data_ptr() == second.data_ptr()
