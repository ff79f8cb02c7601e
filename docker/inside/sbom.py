"""What is in this image, on standard output: a CycloneDX 1.5 document of its Python and Debian packages."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
from typing import Any
from urllib.parse import quote

from record import RECORD


def python_components() -> list[dict[str, Any]]:
    """The packages of the environment."""
    return [
        component(found.name.lower().replace("_", "-"), found.version, "pkg:pypi/{}@{}")
        for found in importlib.metadata.distributions()
    ]


def debian_components() -> list[dict[str, Any]]:
    """The packages of the system."""
    form = "${Package}\t${Version}\t${Architecture}\n"
    answer = subprocess.run(["dpkg-query", "-W", "-f", form], check=True, capture_output=True, text=True)
    return [
        component(name, version, f"pkg:deb/debian/{{}}@{{}}?arch={architecture}")
        for name, version, architecture in (line.split("\t") for line in answer.stdout.splitlines())
    ]


def component(name: str, version: str, form: str) -> dict[str, Any]:
    """One package; `form` is its address (package URL) with places for the name and the version."""
    purl = form.format(name, quote(version, safe=""))
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def document() -> dict[str, Any]:
    """The whole bill of materials. The same image gives the same text."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    packages = [*python_components(), *debian_components()]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": record["created"],
            "component": {
                "type": "container",
                "name": f"idist-workbench-{record['family']}",
                "version": record["version"],
                "properties": [
                    {"name": "revision", "value": record["revision"]},
                    {"name": "base image", "value": record["base_image"]},
                    {"name": "base digest", "value": record["base_digest"]},
                    {"name": "python", "value": platform.python_version()},
                ],
            },
        },
        "components": sorted(packages, key=lambda package: package["purl"]),
    }


if __name__ == "__main__":
    print(json.dumps(document(), indent=1))
