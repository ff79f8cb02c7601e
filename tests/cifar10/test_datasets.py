"""Data sets: right, missing, truncated, wrong, half-written, and prepared by two processes at once."""

from __future__ import annotations

import hashlib
import http.server
import io
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from reference.cifar10 import datasets
from reference.cifar10.__main__ import main
from reference.cifar10.data import ImageArray, evenly_spread
from reference.cifar10.datasets import DataError, cifar10, download, images
from reference.cifar10.datasets.base import CLASSES, Split

# ---- official files


def make_official(root: Path, rows: int = 20) -> dict[str, str]:
    """Files in the form of the official ones, with few images; their md5 by name."""
    folder = root / cifar10.FOLDER
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for name in cifar10.MD5:
        if name == "batches.meta":
            content: dict[str, object] = {"label_names": list(CLASSES)}
        else:
            pixels = random.integers(0, 256, (rows, 3072), dtype=np.uint8)
            content = {"data": pixels, "labels": random.integers(0, 10, rows).tolist()}
        (folder / name).write_bytes(pickle.dumps(content))
    return {name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in cifar10.MD5}


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with small files that count as the official ones, for us and for torchvision."""
    from torchvision.datasets import CIFAR10

    sums = make_official(tmp_path)
    monkeypatch.setattr(cifar10, "MD5", sums)
    monkeypatch.setattr(
        CIFAR10, "train_list", [[f"data_batch_{k}", sums[f"data_batch_{k}"]] for k in range(1, 6)]
    )
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", sums["test_batch"]]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": sums["batches.meta"]})
    return tmp_path


def test_md5_table_is_torchvisions() -> None:
    from torchvision.datasets import CIFAR10

    listed = {**dict(CIFAR10.train_list + CIFAR10.test_list), "batches.meta": CIFAR10.meta["md5"]}
    assert listed == cifar10.MD5
    assert (CIFAR10.tgz_md5, CIFAR10.base_folder) == (download.ARCHIVE_MD5, cifar10.FOLDER)
    assert CIFAR10.url == f"{download.OFFICIAL}/{download.ARCHIVE}"


def test_official_files_are_read(official: Path) -> None:
    datasets.prepare("cifar10", official)
    found = datasets.load("cifar10", official)
    assert found.sizes == (100, 20) and found.flip
    batch = pickle.loads((official / cifar10.FOLDER / "data_batch_2").read_bytes())
    image = batch["data"][3].reshape(3, 32, 32).transpose(1, 2, 0)
    np.testing.assert_array_equal(found.train.images[23], image)
    assert found.train.labels[20:40].tolist() == batch["labels"]


@pytest.mark.parametrize("name", list(cifar10.MD5))
def test_a_missing_official_file_is_named(official: Path, name: str) -> None:
    (official / cifar10.FOLDER / name).unlink()
    with pytest.raises(DataError, match=f"{name} is missing; python -m reference.cifar10 data"):
        datasets.prepare("cifar10", official)


@pytest.mark.parametrize("damage", ["truncated", "changed"])
def test_a_damaged_official_file_is_named(official: Path, damage: str) -> None:
    file = official / cifar10.FOLDER / "data_batch_4"
    content = bytearray(file.read_bytes())
    file.write_bytes(content[:1000] if damage == "truncated" else content[:-1] + b"?")
    with pytest.raises(DataError, match="data_batch_4 is damaged"):
        datasets.prepare("cifar10", official)
    with pytest.raises(DataError, match="cifar-10-batches-py"):
        datasets.load("cifar10", official)


@pytest.mark.parametrize("arguments", [["--dataset=cifar10"], ["--dataset=images"]])
def test_missing_data_is_one_line(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["run", f"--data_path={tmp_path}", *arguments])
    output = capsys.readouterr()
    assert exit_info.value.code == 2 and output.out.startswith("Data: ") and output.out.count("\n") == 1
    assert output.err.count("\n") == 1 and str(tmp_path) in output.err


def test_without_torchvision_the_line_says_so(official: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    with pytest.raises(DataError, match="needs torchvision"):
        datasets.load("cifar10", official)


# ---- download


class Server(http.server.ThreadingHTTPServer):
    """Serves one archive, with ranges; `cuts` are byte counts after which the next answers break off."""

    archive = b""
    cuts: list[int]
    statuses: list[int]
    ranges: list[str | None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        status = self.server.statuses.pop(0) if self.server.statuses else 206 if wanted else 200
        if not self.path.endswith(".tar.gz"):
            status = 404
        if status == 206 and start >= len(self.server.archive):
            status = 416
        if status not in (200, 206):
            self.send_error(status)
            return
        body = self.server.archive[start if status == 206 else 0 :]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cuts.pop(0)] if self.server.cuts else body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(official: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(official / cifar10.FOLDER, cifar10.FOLDER)
    shutil.rmtree(official / cifar10.FOLDER)
    running = Server(("127.0.0.1", 0), Handler)
    running.archive, running.cuts, running.statuses, running.ranges = buffer.getvalue(), [], [], []
    monkeypatch.setattr(download, "ARCHIVE_MD5", hashlib.md5(running.archive).hexdigest())
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(
        download.fetch, "__kwdefaults__", {**download.fetch.__kwdefaults__, "pause": lambda seconds: None}
    )
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def fetch(server: Server, root: Path, *more: str) -> None:
    main(["data", f"--data_path={root}", f"--mirror={server.url}", *more])


def visible(root: Path) -> list[str]:
    return sorted(entry.name for entry in root.iterdir() if not entry.name.startswith("."))


def test_download(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fetch(server, tmp_path)
    assert visible(tmp_path) == [cifar10.FOLDER]
    assert datasets.prepare("cifar10", tmp_path) and datasets.load("cifar10", tmp_path).sizes == (100, 20)
    assert f"Downloading {server.url}/{download.ARCHIVE}" in capsys.readouterr().out
    fetch(server, tmp_path)
    assert "nothing to do" in capsys.readouterr().out and len(server.ranges) == 1


def test_the_mirror_of_the_environment_is_used(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIFAR10_MIRROR", f"{server.url}/some/file.tar.gz")
    main(["data", f"--data_path={tmp_path}"])
    assert visible(tmp_path) == [cifar10.FOLDER]


def test_a_broken_connection_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cuts = [1000, 500]
    fetch(server, tmp_path)
    assert server.ranges == [None, "bytes=1000-", "bytes=1500-"]
    assert cifar10.wrong_file(tmp_path / cifar10.FOLDER) is None


def test_an_interrupted_command_goes_on_when_it_is_run_again(server: Server, tmp_path: Path) -> None:
    server.cuts = [1000]
    with pytest.raises(SystemExit) as exit_info:
        fetch(server, tmp_path, "--retries=0")
    assert exit_info.value.code == 1
    assert visible(tmp_path) == [f"{download.ARCHIVE}.part"]
    fetch(server, tmp_path)
    assert server.ranges == [None, "bytes=1000-"] and visible(tmp_path) == [cifar10.FOLDER]


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    server.cuts, server.statuses = [1000], [200, 200]
    fetch(server, tmp_path)
    assert visible(tmp_path) == [cifar10.FOLDER]


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.statuses = [503, 429]
    fetch(server, tmp_path)
    assert len(server.ranges) == 3


def test_a_refusal_is_one_line(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.statuses = [404]
    with pytest.raises(SystemExit) as exit_info:
        fetch(server, tmp_path)
    error = capsys.readouterr().err
    assert exit_info.value.code == 1 and len(server.ranges) == 1
    assert "404" in error and error.count("\n") == 1 and visible(tmp_path) == []


def test_no_server_at_all_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["data", f"--data_path={tmp_path}", "--mirror=http://127.0.0.1:9", "--retries=0"])
    error = capsys.readouterr().err
    assert (
        exit_info.value.code == 1
        and error.startswith("error: http://127.0.0.1:9/")
        and error.count("\n") == 1
    )


def test_a_wrong_archive_is_refused_and_removed(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.archive = b"<html>not an archive</html>"
    with pytest.raises(SystemExit):
        fetch(server, tmp_path)
    assert "not the official archive" in capsys.readouterr().err and visible(tmp_path) == []


def test_half_extracted_files_are_replaced(server: Server, tmp_path: Path) -> None:
    for folder in (cifar10.FOLDER, f"{cifar10.FOLDER}.unfinished"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "data_batch_1").write_bytes(b"half")
    fetch(server, tmp_path)
    assert visible(tmp_path) == [cifar10.FOLDER] and cifar10.wrong_file(tmp_path / cifar10.FOLDER) is None


def test_a_run_never_downloads(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        datasets.prepare("cifar10", tmp_path)
    assert server.ranges == []


# ---- image folders


def make_folder(root: Path, train: int = 3, test: int = 2) -> None:
    random = np.random.default_rng(5)
    for part, count in (("train", train), ("test", test)):
        for name in CLASSES:
            (root / part / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{number:04}.png")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_folder(tmp_path)
    return tmp_path


def caches(root: Path) -> list[Path]:
    return sorted(root.glob("decoded-*"))


def test_images_are_decoded_once(folder: Path) -> None:
    said: list[str] = []
    assert datasets.prepare("images", folder, said.append) == (30, 20)
    assert len(said) == 2 and len(caches(folder)) == 1
    assert datasets.prepare("images", folder, said.append) == (30, 20)
    assert len(said) == 2
    found = datasets.load("images", folder)
    assert found.train.labels.tolist() == [label for label in range(10) for _ in range(3)]
    for position in (0, 13, 29):
        file = folder / "train" / CLASSES[position // 3] / f"{position % 3:04}.png"
        np.testing.assert_array_equal(found.train.images[position], np.asarray(Image.open(file)))
    assert isinstance(found.train.images, np.memmap) and not found.train.images.flags.writeable


@pytest.mark.parametrize("change", ["added", "removed", "rewritten"])
def test_a_changed_folder_is_decoded_anew(folder: Path, change: str) -> None:
    datasets.prepare("images", folder)
    before = datasets.load("images", folder).checksum
    file = folder / "test" / "cat" / "0001.png"
    if change == "added":
        shutil.copy(file, file.with_name("0002.png"))
    elif change == "removed":
        file.unlink()
    else:
        Image.new("RGB", (32, 32)).save(file)
        os.utime(file, (1, 1))
    datasets.prepare("images", folder)
    assert datasets.load("images", folder).checksum != before


def test_checksum_depends_on_the_pixels_only(tmp_path: Path) -> None:
    sums = []
    for name in ("one", "other"):
        make_folder(tmp_path / name)
        datasets.prepare("images", tmp_path / name)
        sums.append(datasets.load("images", tmp_path / name).checksum)
    assert sums[0] == sums[1]


def test_leftovers_of_a_killed_process_are_no_cache(folder: Path) -> None:
    listing = images._list(folder)
    unfinished = folder / f"decoded-{listing.checksum[:16]}.unfinished"
    unfinished.mkdir()
    (unfinished / "train_images.npy").write_bytes(b"half")
    assert datasets.prepare("images", folder) == (30, 20)
    assert datasets.load("images", folder).sizes == (30, 20) and not unfinished.exists()


def test_a_damaged_cache_is_named(folder: Path) -> None:
    datasets.prepare("images", folder)
    array = caches(folder)[0] / "test_images.npy"
    array.write_bytes(array.read_bytes()[:500])
    with pytest.raises(DataError, match=r"decoded-.* are damaged .*remove that folder"):
        datasets.load("images", folder)


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        ("no test", "no folder .*test"),
        ("nine classes", "holds 9 class folders, must be 10"),
        ("other class", "only one of them has cat, kitten"),
        ("empty class", "dog holds no images"),
        ("truncated", "cannot read the image .*0001.png"),
        ("no image", "cannot read the image .*0001.png"),
        ("large", "0001.png is 40x32 pixels, must be 32x32"),
    ],
)
def test_wrong_folders(folder: Path, problem: str, says: str) -> None:
    file = folder / "train" / "dog" / "0001.png"
    if problem == "no test":
        shutil.rmtree(folder / "test")
    elif problem == "nine classes":
        shutil.rmtree(folder / "test" / "cat")
    elif problem == "other class":
        (folder / "test" / "cat").rename(folder / "test" / "kitten")
    elif problem == "empty class":
        for each in (folder / "train" / "dog").iterdir():
            each.unlink()
    elif problem == "truncated":
        file.write_bytes(file.read_bytes()[:300])
    elif problem == "no image":
        file.write_text("text")
    else:
        Image.new("RGB", (40, 32)).save(file)
    with pytest.raises(DataError, match=says):
        datasets.prepare("images", folder)
    assert caches(folder) == []


def test_two_processes_decode_once(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from reference.cifar10 import datasets\n"
        "sizes = datasets.prepare('images', Path(sys.argv[1]))\n"
        "print(sizes == (30, 20), datasets.load('images', Path(sys.argv[1])).checksum)\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in started]
    assert sum(text.count("Decoding") for text in outputs) == 1
    assert len({text.splitlines()[-1] for text in outputs}) == 1 and "True sha256:" in outputs[0]


def test_read_only_folder_uses_the_users_cache(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(images.os, "access", lambda *_: False)
    datasets.prepare("images", folder)
    assert datasets.load("images", folder).sizes == (30, 20)
    assert caches(folder) == [] and len(list(cache.glob("*/*/decoded-*"))) == 1


# ---- digits, fake, auto, arrays


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    original = load_digits()
    found = datasets.load("digits", Path("unused"))
    assert found.sizes == datasets.prepare("digits", Path("unused")) == (1438, 359) and not found.flip
    test = [index for index in range(1797) if index % 5 == 4]
    train = [index for index in range(1797) if index % 5 != 4]
    for split, chosen in ((found.train, train), (found.test, test)):
        assert split.labels.tolist() == original.target[chosen].tolist()
        for row, column, channel in ((0, 0, 0), (31, 31, 2), (13, 22, 1)):
            expected = np.round(original.images[chosen, row // 4, column // 4] * 255 / 16)
            np.testing.assert_array_equal(split.images[:, row, column, channel], expected)


def test_without_scikit_learn_the_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install scikit-learn"):
        datasets.prepare("digits", Path("unused"))


def test_fake_images_are_the_same_every_time() -> None:
    one, other = (datasets.load("fake", Path("unused")) for _ in range(2))
    assert one.sizes == datasets.prepare("fake", Path("unused"))
    np.testing.assert_array_equal(one.test.images, other.test.images)
    np.testing.assert_array_equal(one.train.labels, other.train.labels)
    assert np.bincount(one.train.labels, minlength=10).min() > 4500 and one.test.images.std() > 70


def test_auto(tmp_path: Path) -> None:
    assert datasets.resolve("auto", tmp_path / "nothing") == "digits"
    (tmp_path / "train").mkdir()
    assert datasets.resolve("auto", tmp_path) == "digits"
    (tmp_path / "test").mkdir()
    assert datasets.resolve("auto", tmp_path) == "images"
    (tmp_path / cifar10.FOLDER).mkdir()
    assert datasets.resolve("auto", tmp_path) == "cifar10"
    assert datasets.resolve("fake", tmp_path) == "fake"


def test_preparing_imports_no_torch(folder: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from reference.cifar10 import datasets\n"
        "datasets.prepare('images', Path(sys.argv[1])), datasets.prepare('digits', Path('x'))\n"
        "print('torch' in sys.modules, 'sklearn' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "False False", done.stderr


def test_evenly_spread() -> None:
    assert evenly_spread(10, None).tolist() == list(range(10))
    assert evenly_spread(10, 4).tolist() == [0, 2, 5, 7]
    labels = np.repeat(np.arange(10), 500)
    assert np.bincount(labels[evenly_spread(5000, 100)]).tolist() == [10] * 10
    with pytest.raises(DataError, match="11 images asked for, but there are only 10"):
        evenly_spread(10, 11)


def test_image_array_gives_items_and_batches() -> None:
    random = np.random.default_rng(0)
    split = Split(images=random.integers(0, 256, (50, 32, 32, 3), dtype=np.uint8), labels=np.arange(50) % 10)
    array = ImageArray(split, np.array([7, 3, 42]))
    pixels, labels, indices = array.__getitems__([2, 0])
    assert indices.tolist() == [42, 7] and labels.tolist() == [2, 7] and len(array) == 3
    assert torch.equal(pixels, torch.from_numpy(split.images[[42, 7]]))
    image, label, index = array[1]
    assert (int(label), int(index)) == (3, 3) and torch.equal(image, torch.from_numpy(split.images[3]))
    copy = ImageArray(split, np.array([7, 3, 42]), device=torch.device("cpu"))
    split.images[:] = 0  # the copy on the device has its own
    for mine, original in zip(copy.__getitems__([2, 0]), (pixels, labels, indices), strict=True):
        assert torch.equal(mine, original) and mine.dtype == original.dtype
    assert all(
        torch.equal(mine, original) for mine, original in zip(copy[1], (image, label, index), strict=True)
    )
