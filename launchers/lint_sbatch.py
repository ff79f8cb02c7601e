#!/usr/bin/env python3
"""Finds mistakes in batch scripts that sbatch itself takes in silence, or that show only on the cluster.

    lint_sbatch.py [FILE...]           default: the *.sbatch beside this program

One line for each finding, and exit code 1 if there is any. The options are those of this machine's sbatch; where it does
not answer, those of Slurm 22.05 and of its plugin pyxis.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_DIRECTIVE = "#SBATCH"
# Long options of sbatch 22.05.8 (those after the empty line are not in its --help), and their one-letter forms.
_RECORDED = """
account array bb bbf begin chdir cluster-constraint clusters comment constraint container contiguous core-spec
cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution error exclude exclusive
export export-file extra-node-info get-user-env gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task
gres gres-flags help hold ignore-pbs input job-name licenses mail-type mail-user mcs-label mem mem-per-cpu mem-per-gpu
mincpus nice no-kill no-requeue nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-node ntasks-per-socket output
overcommit oversubscribe parsable partition power priority profile propagate qos quiet reboot requeue reservation signal
sockets-per-node spread-job switches thread-spec threads-per-core time time-min tmp uid usage use-min-nodes verbose
version wait wckey wrap

acctg-freq hint mem-bind ntasks-per-gpu open-mode test-only wait-all-nodes
container-env container-image container-mount-home container-mounts container-name container-writable container-workdir
no-container-mount-home
"""
_SHORT = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile", "G": "gpus", "H": "hold",
    "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes", "O": "overcommit", "Q": "quiet", "S": "core-spec",
    "V": "version", "W": "wait", "a": "array", "b": "begin", "c": "cpus-per-task", "d": "dependency", "e": "error",
    "h": "help", "i": "input", "k": "no-kill", "m": "distribution", "n": "ntasks", "o": "output", "p": "partition",
    "q": "qos", "s": "oversubscribe", "t": "time", "v": "verbose", "w": "nodelist", "x": "exclude",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One mistake, and what to do about it."""

    file: str
    line: int  # from 1
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


def known_options() -> frozenset[str]:
    """The long options that a directive may use."""
    recorded = frozenset(_RECORDED.split())
    try:
        answer = subprocess.run(["sbatch", "--help"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return recorded
    return recorded | options_of(answer.stdout)


def options_of(help_text: str) -> frozenset[str]:
    """The long options in the text that `sbatch --help` prints."""
    return frozenset(re.findall(r"^ +(?:-\w, +|-\w +)?--([a-z][a-z-]*)", help_text, re.MULTILINE))


def lint(file: str, text: str, known: frozenset[str]) -> list[Finding]:
    """The findings in one script, in the order of its lines.

    Args:
        file: its name, as the findings should show it.
        text: its content.
        known: long options that sbatch has.
    """
    findings: list[Finding] = []
    given: dict[str, tuple[int, str]] = {}  # option -> line and value
    command = 0  # the line of the first command
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith(_DIRECTIVE):
            if not command and line.strip() and not line.startswith("#"):
                command = number
            continue
        if command:
            message = f"sbatch does not read this line: it stops at the first command (line {command}); move it above"
            findings.append(Finding(file=file, line=number, message=message))
            continue
        for option, value in _options(line[len(_DIRECTIVE) :]):
            if option not in known:
                dashes = "-" if len(option) == 1 else "--"
                message = f"sbatch has no option {dashes}{option}: see sbatch --help"
                findings.append(Finding(file=file, line=number, message=message))
            given[option] = number, value
    findings += [Finding(file=file, line=line, message=message) for line, message in _missing(given)]
    return sorted(findings, key=lambda finding: finding.line)


def _options(directive: str) -> Iterator[tuple[str, str]]:
    """The options in the rest of a directive's line, by long name, with their values."""
    words = shlex.split(directive, comments=True)
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            yield name, value if equals else following
        elif re.match(r"-[A-Za-z]", word):
            yield _SHORT.get(word[1], word[1]), word[2:].removeprefix("=") or following


def _missing(given: Mapping[str, tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """What the options together lack: line and message."""
    if "time" not in given:
        yield 1, "no time limit: add #SBATCH --time=HH:MM:SS, or the partition's default ends the job"
    one_node = given.get("nodes", (0, ""))[1] == "1"
    if "ntasks" in given and "ntasks-per-node" not in given and not one_node:
        line, value = given["ntasks"]
        yield (
            line,
            f"-n {value} leaves it to Slurm how the tasks lie on the nodes (3 + 1 for 4): use --ntasks-per-node",
        )


def main(arguments: Sequence[str]) -> int:
    """Lint the files and print the findings; the exit code."""
    files = [Path(name) for name in arguments] or sorted(Path(__file__).parent.glob("*.sbatch"))
    known = known_options()
    findings = [
        finding for file in files for finding in lint(str(file), file.read_text(encoding="utf-8"), known)
    ]
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
