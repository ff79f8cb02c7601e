"""Seeds, loggers, moving data."""

from __future__ import annotations

import io
import logging
import random
import threading
from collections import namedtuple
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from reference.utils import manual_seed, setup_logger, to_device, unwrap_model


def test_manual_seed_seeds_all_three_generators() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(numpy.random.rand()), torch.rand(1).item()

    manual_seed(543)
    first = draw()
    assert draw() != first
    manual_seed(543)
    assert draw() == first
    manual_seed(544)
    assert all(a != b for a, b in zip(draw(), first, strict=True))
    manual_seed(2**40)  # more than NumPy takes


def shown(name: str, **arguments: object) -> str:
    stream = io.StringIO()
    logger = setup_logger(name, stream=stream, **arguments)  # type: ignore[arg-type]
    for level in ("debug", "info", "warning"):
        getattr(logger, level)(level)
    return stream.getvalue()


def test_ranks_and_levels() -> None:
    assert [line.split(": ")[-1] for line in shown("a").splitlines()] == ["info", "warning"]
    assert [line.split(": ")[-1] for line in shown("a", distributed_rank=3).splitlines()] == ["warning"]
    assert shown("a", level=logging.DEBUG).count("\n") == 3
    assert shown("CIFAR10-Training", format="%(name)s|%(levelname)s|%(message)s") == (
        "CIFAR10-Training|INFO|info\nCIFAR10-Training|WARNING|warning\n"
    )


def test_twice_is_not_two_lines_and_other_loggers_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    root_handlers, root_level = logging.getLogger().handlers[:], logging.getLogger().level
    parent = logging.getLogger("b")
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    parent.addHandler(Ear())
    for _ in range(3):
        logger = setup_logger("b.c")
    logger.info("once")
    assert capsys.readouterr().err.count("once") == 1
    assert heard == []  # not passed on to its parents
    assert logging.getLogger().handlers == root_handlers and logging.getLogger().level == root_level
    own = Ear()
    logger.addHandler(own)
    setup_logger("b.c").info("kept")
    assert heard == ["kept"]
    setup_logger("b.c", reset=True).info("gone")
    assert heard == ["kept"] and len(logger.handlers) == 1


def test_the_file_gets_everything_on_every_rank(tmp_path: Path) -> None:
    assert shown("d", filepath=str(tmp_path / "log"), distributed_rank=1).count("\n") == 1
    assert [line.split(": ")[-1] for line in (tmp_path / "log").read_text().splitlines()] == [
        "info",
        "warning",
    ]


def test_to_device_keeps_the_shape_of_things() -> None:
    Pair = namedtuple("Pair", "a b")
    data = {"x": [torch.zeros(2), (torch.ones(1), "text")], "pair": Pair(torch.ones(1), 3)}
    moved = to_device(data, "meta")
    assert moved["x"][0].device.type == moved["x"][1][0].device.type == moved["pair"].a.device.type == "meta"
    assert moved["x"][1][1] == "text" and moved["pair"].b == 3 and type(moved["pair"]) is Pair


def test_unwrap_model() -> None:
    model = nn.Linear(1, 1)
    assert unwrap_model(model) is model
    assert unwrap_model(torch.compile(model)) is model


def test_replicas_in_threads_share_a_logger_and_have_their_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    replica = threading.local()
    monkeypatch.setattr("reference.idist.backend", lambda: "xla-tpu")
    monkeypatch.setattr("reference.idist.get_rank", lambda: replica.rank)
    all_there = threading.Barrier(3)

    def run(rank: int) -> None:
        replica.rank = rank
        logger = setup_logger("replicas", filepath=str(tmp_path / f"log-{rank}"))
        all_there.wait()
        logger.info("from rank %d", rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(3):
        assert (tmp_path / f"log-{rank}").read_text().endswith(f"from rank {rank}\n")
        assert (tmp_path / f"log-{rank}").read_text().count("\n") == 1
    assert capsys.readouterr().err.count("\n") == 1
