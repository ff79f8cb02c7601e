"""A folder of image files, `train/<class>/*` and `test/<class>/*`, decoded once into arrays that later runs map into memory.

The ten class names in alphabetical order are the labels 0 to 9. Arrays stand in a folder named after a checksum of the
list of files (path, size, modification time), inside the data folder, or in the user's cache folder when that is read-only.
The folder appears in one rename when everything in it is complete, so nobody ever sees a half of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reference.cifar10.datasets.base import DataError, ImageSet, Sizes, Split, checksum_of, only_one_process


class _File(NamedTuple):
    path: str  # a Path for each of 60,000 files costs a second at every start
    label: int


class _Listing(NamedTuple):
    train: list[_File]
    test: list[_File]
    checksum: str


def _folders(path: Path) -> list[os.DirEntry[str]]:
    with os.scandir(path) as entries:
        return sorted(
            (e for e in entries if e.is_dir() and not e.name.startswith(".")), key=lambda entry: entry.name
        )


def _list(path: Path) -> _Listing:
    digest = hashlib.sha256()
    parts: dict[str, list[_File]] = {}
    names: dict[str, list[str]] = {}
    for part in ("train", "test"):
        if not (path / part).is_dir():
            raise DataError(
                f"no folder {path / part}: an image data set is train/<class>/* and test/<class>/* under data_path"
            )
        classes = _folders(path / part)
        names[part] = [entry.name for entry in classes]
        if len(classes) != 10:
            raise DataError(f"{path / part} holds {len(classes)} class folders, must be 10")
        parts[part] = []
        for label, folder in enumerate(classes):
            with os.scandir(folder) as entries:
                facts = sorted(
                    (e.name, e.stat().st_size, e.stat().st_mtime_ns) for e in entries if e.name[0] != "."
                )
            if not facts:
                raise DataError(f"{folder.path} holds no images")
            digest.update(f"{part}/{folder.name}{facts}".encode())
            parts[part] += [_File(f"{folder.path}/{name}", label) for name, _, _ in facts]
    if names["train"] != names["test"]:
        different = ", ".join(sorted(set(names["train"]) ^ set(names["test"])))
        raise DataError(
            f"{path}: train/ and test/ must hold the same classes; only one of them has {different}"
        )
    return _Listing(parts["train"], parts["test"], digest.hexdigest())


def _cache_root(path: Path) -> Path:
    if os.access(path, os.W_OK):
        return path
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root = home / "reference-cifar10" / hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    root.mkdir(parents=True, exist_ok=True)
    return root


def _cache(path: Path, listing: _Listing) -> Path:
    return _cache_root(path) / f"decoded-{listing.checksum[:16]}"


def _decode(files: list[_File], target: Path) -> Split:
    from PIL import Image

    images = np.lib.format.open_memmap(target, mode="w+", dtype=np.uint8, shape=(len(files), 32, 32, 3))
    for index, file in enumerate(files):
        try:
            with Image.open(file.path) as image:
                pixels = np.asarray(image.convert("RGB"))
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(f"cannot read the image {file.path}: {error}") from None
        if pixels.shape != (32, 32, 3):
            raise DataError(f"{file.path} is {pixels.shape[1]}x{pixels.shape[0]} pixels, must be 32x32")
        images[index] = pixels
    images.flush()
    return Split(images=images, labels=np.array([file.label for file in files], dtype=np.int64))


def _write_cache(listing: _Listing, cache: Path) -> None:
    unfinished = cache.with_name(f"{cache.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # left by a process that was killed: the lock is ours
    unfinished.mkdir()
    try:
        train = _decode(listing.train, unfinished / "train_images.npy")
        test = _decode(listing.test, unfinished / "test_images.npy")
        np.save(unfinished / "train_labels.npy", train.labels)
        np.save(unfinished / "test_labels.npy", test.labels)
        facts = {
            "files": listing.checksum,
            "checksum": checksum_of(train, test),
            "sizes": [len(listing.train), len(listing.test)],
        }
        (unfinished / "facts.json").write_text(json.dumps(facts) + "\n", encoding="utf-8")
        unfinished.rename(cache)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def prepare(path: Path, report: Callable[[str], None]) -> Sizes:
    """Decode the images unless that has been done; one process at a time does it, the others wait.

    Raises:
        DataError: a folder is missing or empty, or a file is no 32x32 image.
    """
    listing = _list(path)
    cache = _cache(path, listing)
    sizes = Sizes(len(listing.train), len(listing.test))
    if not cache.is_dir():
        with only_one_process(cache.parent / ".decoding.lock"):
            if not cache.is_dir():
                started = time.monotonic()
                report(f"Decoding {sum(sizes):,} images once, into {cache} ...")
                try:
                    _write_cache(listing, cache)
                except OSError as error:
                    raise DataError(f"cannot write {cache}: {error.strerror or error}") from None
                report(f"Decoded in {time.monotonic() - started:.0f} s.")
    return sizes


def load(path: Path) -> ImageSet:
    """The decoded images, mapped into memory read-only and so shared by the processes of a node.

    Raises:
        DataError: the folder is wrong, or `prepare` has not been run on it.
    """
    listing = _list(path)
    cache = _cache(path, listing)
    try:
        facts = json.loads((cache / "facts.json").read_text(encoding="utf-8"))
        train, test = (
            Split(
                images=np.load(cache / f"{part}_images.npy", mmap_mode="r"),
                labels=np.load(cache / f"{part}_labels.npy"),
            )
            for part in ("train", "test")
        )
    except (OSError, ValueError, AssertionError) as error:
        raise DataError(f"the decoded images in {cache} are damaged ({error}): remove that folder") from None
    return ImageSet(
        title=f"the image folder {path}", train=train, test=test, flip=True, checksum=facts["checksum"]
    )
