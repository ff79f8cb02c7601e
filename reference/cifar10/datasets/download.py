"""Download of the official CIFAR-10 files: with progress, going on where it stopped, with retries, from any mirror."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from reference.cifar10.config import DownloadOptions
from reference.cifar10.datasets import cifar10
from reference.cifar10.datasets.base import DataError, only_one_process
from reference.cifar10.options import OptionError

OFFICIAL = "https://www.cs.toronto.edu/~kriz"
ARCHIVE = "cifar-10-python.tar.gz"
ARCHIVE_MD5 = "c58f30108f718f92721af3b95e74349a"
_CHUNK = 1 << 18


def address(mirror: str | None) -> str:
    """Where the archive is: under `mirror`, else under CIFAR10_MIRROR, else on the official site.

    Raises:
        OptionError: not an address.
    """
    base = mirror or os.environ.get("CIFAR10_MIRROR") or OFFICIAL
    if "://" not in base:
        raise OptionError(
            f"mirror must be an address that begins with https://, http:// or file://, got {base!r}"
        )
    return base if base.endswith(".tar.gz") else f"{base.rstrip('/')}/{ARCHIVE}"


def download_cifar10(options: DownloadOptions) -> None:
    """Bring `cifar-10-batches-py/` into the data folder, unless it is there and right; says what it does.

    Raises:
        OptionError: the mirror is no address.
        DataError: the archive cannot be had, or is not CIFAR-10; nothing half-written is left in its place.
    """
    root = Path(options.data_path).expanduser()
    url = address(options.mirror)
    root.mkdir(parents=True, exist_ok=True)
    with only_one_process(root / ".download.lock"):
        if cifar10.wrong_file(root / cifar10.FOLDER) is None:
            print(f"CIFAR-10 is complete in {root / cifar10.FOLDER}; nothing to do.")
            return
        archive = root / ARCHIVE
        if not archive.is_file() or _md5(archive) != ARCHIVE_MD5:
            print(f"Downloading {url}")
            fetch(url, archive, ARCHIVE_MD5, retries=options.retries)
        _extract(archive, root)
        archive.unlink()
    print(f"CIFAR-10 is in {root / cifar10.FOLDER}: all {len(cifar10.MD5)} files have the right md5.")


def fetch(
    url: str, target: Path, md5: str, *, retries: int, pause: Callable[[float], None] = time.sleep
) -> None:
    """Download `url` to `target`, which appears only when its md5 is right; what has arrived so far waits in `.part`.

    Args:
        retries: attempts after a broken connection; attempt k waits 2**k seconds, at most 30.
        pause: called with the seconds to wait.

    Raises:
        DataError: refused by the server, still broken after all attempts, or the wrong file.
    """
    part = target.with_name(f"{target.name}.part")
    for attempt in range(retries + 1):
        try:
            _receive(url, part)
            break
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 429:
                raise DataError(
                    f"{url}: the server answers {error.code} {error.reason}; is the mirror right?"
                ) from None
            problem = f"{error.code} {error.reason}"
        except (OSError, http.client.HTTPException) as error:
            problem = str(getattr(error, "reason", error)) or type(error).__name__
        if attempt == retries:
            raise DataError(
                f"{url}: {problem} ({retries + 1} attempts); run the command again to go on, or use --mirror=..."
            )
        print(f"{problem}; trying again", flush=True)
        pause(min(2.0**attempt, 30.0))
    if _md5(part) != md5:
        part.unlink()
        raise DataError(f"{url} is not the official archive: its md5 is not {md5}; it has been removed")
    part.replace(target)


def _receive(url: str, part: Path) -> None:
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        error.close()
        return  # all of it is here already; the md5 decides
    with response:
        if getattr(response, "status", None) != http.HTTPStatus.PARTIAL_CONTENT:
            done = 0
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns) as progress, part.open("ab" if done else "wb") as file:
            task = progress.add_task("", total=total, completed=done)
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                progress.advance(task, len(chunk))
            received = file.tell()
    if total is not None and received < total:
        raise ConnectionError(f"connection lost after {received:,} of {total:,} bytes")


def _md5(file: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _extract(archive: Path, root: Path) -> None:
    unfinished = root / f"{cifar10.FOLDER}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)  # left by a process that was killed: the lock is ours
    unfinished.mkdir()
    try:
        with tarfile.open(archive) as tar:
            for name in cifar10.MD5:
                member = tar.extractfile(f"{cifar10.FOLDER}/{name}")
                assert member is not None, "the archive has the right md5, so this is a file"
                (unfinished / name).write_bytes(member.read())
        problem = cifar10.wrong_file(unfinished)
        if problem is not None:
            raise DataError(f"{problem}; is the disk full?")
        shutil.rmtree(root / cifar10.FOLDER, ignore_errors=True)
        unfinished.rename(root / cifar10.FOLDER)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
