"""Slurm's host lists: ``node[098-102],gpu-[1,3]-ib`` is seven hosts."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Mapping

_MAX_RANGE = 65536  # hosts in one range, Slurm's own limit
_SCONTROL_TIMEOUT_S = 5.0


def hostnames(nodelist: str, environ: Mapping[str, str]) -> list[str]:
    """Return the hosts of a list: by ``scontrol`` where ``environ``'s PATH has it, else by our own parser."""
    return _ask_scontrol(nodelist, environ) or expand_hostlist(nodelist)


def expand_hostlist(text: str) -> list[str]:
    """Return the hosts of a Slurm host list: ``"a1,b[08-10]-ib"`` is a1, b08-ib, b09-ib and b10-ib.

    Zero padding is kept; of several brackets in a name the last one varies fastest; both ends of a range may
    carry the same letters (``[a01-a03]``).  Raises ``ValueError`` with the text when the list is malformed.
    """
    hosts = []
    for item in re.split(r",(?![^\[\]]*\])", text):  # at commas outside brackets
        if not re.fullmatch(r"(?:[^\[\],\s]|\[[^\[\]]*\])+", item):
            raise ValueError(f"malformed host list {text!r}: {item!r} is no name like node7 or node[0-3]")
        parts = re.findall(r"\[[^\]]*\]|[^\[]+", item)
        choices = [_expand_bracket(part[1:-1], text) if part[0] == "[" else [part] for part in parts]
        hosts += ["".join(names) for names in itertools.product(*choices)]
    return hosts


def _ask_scontrol(nodelist: str, environ: Mapping[str, str]) -> list[str]:
    """Let Slurm expand ``nodelist``; empty where it is not installed (in a container) or fails."""
    scontrol = shutil.which("scontrol", path=environ.get("PATH", ""))
    if scontrol is None:
        return []
    command = [scontrol, "show", "hostnames", nodelist]
    try:
        answer = subprocess.run(
            command, env=environ, capture_output=True, text=True, check=True, timeout=_SCONTROL_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.split()


def _expand_bracket(ranges: str, text: str) -> list[str]:
    names = []
    for item in ranges.split(","):
        match = re.fullmatch(r"([A-Za-z]*)([0-9]+)(?:-\1([0-9]+))?", item)
        if match is None:
            raise ValueError(f"malformed host list {text!r}: {item!r} is no number or range like 08-11")
        first, last = int(match[2]), int(match[3] or match[2])
        if not first <= last < first + _MAX_RANGE:
            raise ValueError(f"malformed host list {text!r}: {item!r} is reversed or over {_MAX_RANGE} long")
        names += [f"{match[1]}{number:0{len(match[2])}}" for number in range(first, last + 1)]
    return names
