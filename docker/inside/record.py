"""The last step of a build: check the image, and write down what it is.

python record.py FAMILY LOCK...

The record, /etc/idist-workbench/image.json, goes into the manifest of every run (reference/cifar10/manifest.py).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import versions

RECORD = Path("/etc/idist-workbench/image.json")


def main(family: str, *locks: str) -> None:
    """Write the record.

    Raises:
        SystemExit: the image is not what its locks say.
    """
    problems = versions.problems(locks) + versions.unwanted()
    # a torchvision that does not fit its torch is installed well and fails when it is imported
    modules = ["torch", *(["torchvision"] if "torchvision" in versions.installed() else [])]
    modules += {"nccl-horovod": ["horovod.torch"], "xla": ["torch_xla"]}.get(family, [])
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # anything that an import can raise
            problems.append(f"{module} cannot be imported: {error}")
    if problems:
        raise SystemExit("\n".join(["this image is wrong:", *problems]))
    record = {
        "schema": 1,
        "family": family,
        "locks": locks,
        "torchvision": "torchvision" in modules,
        **{
            name.lower(): os.environ[name]
            for name in ("REVISION", "VERSION", "CREATED", "BASE_IMAGE", "BASE_DIGEST")
        },
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
