"""Unpacks and decodes the images to train on, once for all parts: python3 -m benchmarks.on_gpu.images SOURCE FOLDER"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

from reference.cifar10 import datasets


def main(source: Path, folder: Path) -> int:
    """Print where the images are, as the last line; or what is wrong with them."""
    try:
        root = unpacked(source, folder)
        datasets.prepare("images", root)
    except (OSError, ValueError, tarfile.TarError) as error:
        print(error)
        return 1
    print(root)
    return 0


def unpacked(source: Path, folder: Path) -> Path:
    """The folder that holds `train`.

    Args:
        source: that folder, one around it, or a tar archive of either.
        folder: where an archive is unpacked, into `images`.

    Raises:
        ValueError: there is none.
        OSError, tarfile.TarError: it cannot be read.
    """
    root = source.resolve()
    if root.is_file():
        target = folder / "images"
        with tarfile.open(root) as archive:
            archive.extractall(target, filter="data")
        root = target
    for place in (root, *sorted(root.glob("*/"))):
        if (place / "train").is_dir():
            return place
    raise ValueError(f"{source}: there is no folder train in it")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
