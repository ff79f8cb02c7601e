"""The page about a GPU, as far as it can be made without one: on the CPU, with parts that fail."""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import gpu
from benchmarks.on_gpu import fast94, images, loop, numerics
from benchmarks.on_gpu.rows import Given, Row, Rows, read
from reference.cifar10.datasets.base import CLASSES

# what the workbench has, and a machine for GPU work may not have
WITHOUT = """
import importlib.machinery
hidden = {"fire", "pydantic", "scipy", "sklearn", "tensorboard", "clearml", "yaml", "jinja2", "matplotlib"}
find = importlib.machinery.PathFinder.find_spec
def find_spec(cls, name, path=None, target=None):
    return None if name.partition(".")[0] in hidden else find(name, path, target)
importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
"""


def given(folder, **values):
    return Given(
        **{"device": "cpu", "quick": True, "dataset": "fake", "data_path": "data", "folder": folder, **values}
    )


@pytest.fixture
def archive(tmp_path):
    """Ten classes with two images each, in a folder in a tar archive."""
    random = np.random.Generator(np.random.PCG64(0))
    root = tmp_path / "pictures"
    for part in ("train", "test"):
        for name in CLASSES:
            (root / part / name).mkdir(parents=True)
            for number in range(4):
                pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{number}.png")
    path = tmp_path / "pictures.tar.xz"
    with tarfile.open(path, "w:xz") as file:
        file.add(root, arcname="pictures")
    return path


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_everything_but_the_gpu(archive, tmp_path):
    command = [str(gpu.ROOT / "benchmarks" / "gpu.sh"), "--device=cpu", "--quick", "--output=page.md"]
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT)
    environment = {
        **os.environ, "PYTHON": sys.executable, "DATA": archive.name, "PYTHONPATH": str(tmp_path / "site"),
    }  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    page = (tmp_path / "page.md").read_text()
    assert page in done.stdout
    assert done.returncode == 0, page
    lines = page.strip().splitlines()
    assert torch.__version__ in lines[0] and "CPU" in lines[0] and "UTC" in lines[0]
    table = [[field.strip() for field in line.split("|")[1:-1]] for line in lines[2:]]
    assert {len(row) for row in table} == {5}
    parts = {row[0] for row in table[2:]}
    assert parts == {
        "data", "numerics", "--preset=fast94", "speed, fp32", "gloo, one rank", "mixed precision",
    }  # fmt: skip
    found = {(row[0], row[1]): row for row in table[2:]}
    assert found["data", "images"][2] == archive.name
    assert found["numerics", "augmentation beside the CPU"][2:4] == ["equal", "ok"]
    assert "8 test images (images)" in found["--preset=fast94", "accuracy"][4]
    scaling = found["--preset=fast94", "training on 2 processes"]
    assert float(scaling[2].removesuffix(" s")) > 0
    assert re.fullmatch(r"[0-9.]+ times as fast as one, \d+ % of 2 times; accuracy [01]\.\d{4}", scaling[4])
    assert found["speed, fp32", "benchmarks.peers.ignite_cifar10"][4].startswith("not installed: ")
    for name in ("this trainer", "benchmarks.peers.plain_torch"):
        assert float(found["speed, fp32", name][2].removesuffix(" images/s").replace(",", "")) > 0


@pytest.mark.slow
def test_a_part_that_fails_is_a_row(tmp_path):
    parts = (gpu.Part("no_such_part", 30), gpu.Part("collectives", 60))
    arguments = argparse.Namespace(device="cpu", quick=True, data=Path("/nonexistent"), only=parts)
    rows = gpu.run(arguments, tmp_path)
    failed = [row for row in rows if row.ok is False]
    assert [row.part for row in failed] == ["data", "no_such_part"]
    assert "/nonexistent: there is no folder train in it" in failed[0].note
    assert "No module named" in failed[1].note
    assert len([row for row in rows if row.part == "gloo, one rank"]) == 9
    assert gpu.exit_code(rows) == 1
    assert gpu.markdown(rows, "cpu", quick=True).count("FAILED") == 2


def ended(pid):
    """Whether a process is gone, or nobody has asked for its exit code yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_part_that_takes_too_long_keeps_its_rows_and_leaves_no_process(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text(
        "#!/bin/sh\n"
        'for a in "$@"; do case $a in --folder=*) folder=${a#--folder=};; esac; done\n'
        'echo \'{"part": "p", "what": "done", "result": "1"}\' >>"$folder/rows.jsonl"\n'
        'printf \'{"part": "p", "wh\' >>"$folder/rows.jsonl"\n'
        'sleep 600 & echo $! >"$folder/pid"\necho still at work\nwait\n'
    )
    (tmp_path / "python").chmod(0o755)
    arguments = argparse.Namespace(device="cpu", quick=True)
    rows = gpu.run_part(gpu.Part("amp", 60), arguments, gpu.Data("fake", "data"), tmp_path, limit=5.0)
    assert [(row.what, row.ok) for row in rows] == [("done", None), ("the rest of this part", False)]
    assert "stopped after 5 s: still at work" in rows[1].note
    pid = int((tmp_path / "amp" / "pid").read_text())
    for _ in range(100):
        if ended(pid):
            return
        time.sleep(0.1)
    pytest.fail(f"process {pid} is left")


def test_no_time_left_is_said(tmp_path):
    arguments = argparse.Namespace(device="cpu", quick=True)
    (row,) = gpu.run_part(gpu.Part("amp", 60), arguments, gpu.Data("fake", "data"), tmp_path, limit=1.0)
    assert row.ok is False and "no time" in row.note


def test_parts_are_chosen_by_name(capsys):
    assert [part.module for part in gpu._parser().parse_args(["--only=amp,numerics"]).only] == [
        "numerics",
        "amp",
    ]
    with pytest.raises(SystemExit):
        gpu.main(["--only=numeric"])
    assert "unknown part 'numeric'" in capsys.readouterr().err


def test_missing_packages_are_one_line(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "NEEDED", {"torch": "torch", "no_such_module": "that-package"})
    assert gpu.main(["--device=cpu"]) == 2
    error = capsys.readouterr().err
    assert "lacks that-package" in error and error.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_one_line(capsys):
    assert gpu.main([]) == 2
    error = capsys.readouterr().err
    assert "sees no GPU" in error and error.count("\n") == 1


def test_a_numerics_check_that_fails_decides_the_exit_code(tmp_path, monkeypatch):
    strict = [mode._replace(gradients=0.0) for mode in numerics.MODES]
    monkeypatch.setattr(numerics, "MODES", strict)
    numerics.check_step(given(tmp_path), Rows("numerics", given(tmp_path)))
    rows = read(tmp_path)
    assert [row.ok for row in rows] == [False]
    assert gpu.exit_code(rows) == 1
    assert gpu.exit_code([Row(part="p", what="w", result="r", ok=ok) for ok in (None, True)]) == 0


def test_pixels_that_differ_fail(tmp_path, monkeypatch):
    normalise = numerics.augment.normalise
    calls = iter(range(2))
    monkeypatch.setattr(numerics.augment, "normalise", lambda images: normalise(images) + 1e-6 * next(calls))
    numerics.check_pixels(given(tmp_path), Rows("numerics", given(tmp_path)))
    (row,) = read(tmp_path)
    assert row.ok is False and "values differ" in row.result


def test_the_bounds_tell_formats_apart():
    pixels, labels = numerics.batch(8)
    x = numerics.augment.normalise(pixels)
    truth = numerics.step(x, labels, "cpu", torch.float64)
    modes = {mode.dtype: mode for mode in numerics.MODES if not mode.tf32 or mode.dtype != torch.float32}
    single, half = modes[torch.float32], modes[torch.bfloat16]
    loss, gradients = numerics.errors(numerics.step(x, labels, "cpu", torch.float32), truth)
    assert loss <= single.loss and gradients <= single.gradients
    loss, gradients = numerics.errors(numerics.step(x, labels, "cpu", torch.bfloat16), truth)
    assert loss <= half.loss
    assert single.gradients < gradients <= half.gradients


@pytest.mark.parametrize(
    ("there", "expected"), [(0, []), (1, []), (2, [2]), (3, [2]), (4, [2, 4]), (8, [2, 4, 8])]
)
def test_as_many_gpus_as_share_a_batch_evenly(there, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    assert fast94.more(given(tmp_path, device="cuda")) == expected


def test_a_folder_and_an_archive(archive, tmp_path):
    assert images.unpacked(archive, tmp_path) == tmp_path / "images" / "pictures"
    assert images.unpacked(tmp_path / "pictures", tmp_path) == tmp_path / "pictures"
    with pytest.raises(ValueError, match="no folder train"):
        images.unpacked(tmp_path / "pictures" / "train", tmp_path)


def test_the_plain_loop_learns_its_batch():
    assert loop.images_per_second("cpu", quick=True, batch_size=4, seconds=0.05) > 0
