"""What each program costs to write: lines, calls of its distribution library, concepts, launch commands. Read from the sources."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from experiments.records import Cell
from experiments.rules import BACKENDS, LAUNCHERS, ROOT, SLURM, impossible

FOLDER = ROOT / "reference" / "programs"
# The packages whose calls are distribution, for each program.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "idist": ("reference.idist",),
    "native_ddp": (
        "torch.distributed",
        "torch.multiprocessing",
        "torch.nn.parallel",
        "torch.utils.data.distributed",
    ),
    "horovod_native": ("horovod", "torch.utils.data.distributed"),
    "xla_native": ("torch_xla", "torch.utils.data.distributed", "reference.idist"),
    "ignite": ("ignite.distributed",),
}
# What one has to have understood to write or change a line with such a name in it. First the name, then the concept.
CONCEPTS: dict[str, str] = {
    "init_process_group": "process group, its backend and time limit",
    "destroy_process_group": "end of the process group",
    "init": "start of the library",
    "shutdown": "end of the library",
    "Parallel": "a world of processes, started or joined",
    "launch": "replicas that the library starts",
    "spawn": "processes that the program starts",
    "environ": "environment variables of the launcher",
    "socket": "a free port to meet at",
    "get_rank": "rank",
    "rank": "rank",
    "global_ordinal": "rank",
    "get_world_size": "world size",
    "size": "world size",
    "world_size": "world size",
    "local_rank": "local rank and its device",
    "set_device": "local rank and its device",
    "device": "device of a rank",
    "DistributedSampler": "shares of the data for each rank",
    "share_of": "exact shares for the evaluation",
    "auto_dataloader": "loader of a rank",
    "MpDeviceLoader": "batches sent to the device ahead of use",
    "DistributedDataParallel": "model wrapper that averages gradients",
    "auto_model": "model of a rank",
    "DistributedOptimizer": "optimizer wrapper that averages gradients",
    "auto_optim": "optimizer of a rank",
    "optimizer_step": "update that averages gradients and runs the graph",
    "broadcast": "broadcast of state from rank 0",
    "broadcast_parameters": "broadcast of state from rank 0",
    "broadcast_master_param": "broadcast of state from rank 0",
    "sync_buffers": "broadcast of state from rank 0",
    "all_reduce": "sum over ranks",
    "allreduce": "sum over ranks",
    "install": "simulation without a TPU",
}


@dataclass(frozen=True, kw_only=True)
class CodeStats:
    """One program.

    Args:
        program: its name.
        source: its text, for the page that shows the programs side by side.
        lines: of code: without blank lines, comments and docstrings.
        calls: of the distribution library: name as written, and how often.
        concepts: that a reader has to know, each once.
        backends: that it runs on.
        launchers: that can start it, with an example of the command.
    """

    program: str
    source: str
    lines: int
    calls: dict[str, int]
    concepts: list[str]
    backends: list[str]
    launchers: dict[str, str]


def statistics() -> list[CodeStats]:
    """All programs, in the order of `rules.BACKENDS`."""
    return [
        of_program(program, (FOLDER / f"{program}.py").read_text(encoding="utf-8")) for program in BACKENDS
    ]


def of_program(program: str, source: str) -> CodeStats:
    """One program, from its source."""
    tree = ast.parse(source)
    calls = Counter(_library_calls(tree, LIBRARIES[program]))
    return CodeStats(
        program=program,
        source=source,
        lines=lines_of_code(source),
        calls=dict(sorted(calls.items())),
        concepts=list(dict.fromkeys(CONCEPTS[name] for name in _names(tree) if name in CONCEPTS)),
        backends=list(BACKENDS[program]),
        launchers=dict(_launchers(program)),
    )


def lines_of_code(source: str) -> int:
    """Lines that hold code: no blank lines, no comments, no docstrings."""
    ignored = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    holds = {
        line
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in ignored
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(holds - set(_docstring_lines(ast.parse(source))))


def _docstring_lines(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if first is not None and ast.get_docstring(node) is not None:
                yield from range(first.lineno, (first.end_lineno or first.lineno) + 1)


def _library_calls(tree: ast.AST, packages: tuple[str, ...]) -> Iterator[str]:
    """Calls of what was imported from the packages, and functions of it that are handed over, as the program names them."""
    known = set(_imported(tree, packages))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            handed = [word.value for word in node.keywords if isinstance(word.value, ast.Attribute)]
            for text in map(ast.unparse, [node.func, *(value for value in handed if value.attr.islower())]):
                if text.partition(".")[0] in known:
                    yield text


def _imported(tree: ast.AST, packages: tuple[str, ...]) -> Iterator[str]:
    def belongs(module: str) -> bool:
        return any(module == package or module.startswith(f"{package}.") for package in packages)

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if belongs(alias.name):
                    yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                if belongs(node.module) or belongs(f"{node.module}.{alias.name}"):
                    yield alias.asname or alias.name


def _names(tree: ast.AST) -> Iterator[str]:
    """Names that are used, in the order of the source; imports and arguments' names do not count."""
    found: list[tuple[int, int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.append((node.end_lineno or node.lineno, node.end_col_offset or 0, node.attr))
        elif isinstance(node, ast.Name):
            found.append((node.lineno, node.end_col_offset or 0, node.id))
    for _, _, name in sorted(found):
        yield name


def _launchers(program: str) -> Iterator[tuple[str, str]]:
    """Each launcher that can start the program, with the command for the first backend that it takes."""
    for launcher in dict.fromkeys(name for names in LAUNCHERS.values() for name in names):
        for backend in BACKENDS[program]:
            values: dict[str, Any] = {"program": program, "backend": backend, "launcher": launcher}
            cell = Cell(**values, processes=1 if backend == "none" else 2)
            if impossible(cell) is None:
                yield launcher, _example(cell)
                break


def _example(cell: Cell) -> str:
    kind = "sbatch" if cell.launcher in SLURM else "sh"
    backend = "" if cell.backend == "none" else f" --backend={cell.backend}"
    variables = "" if cell.world_size == 1 else f"NP={cell.processes} "
    return f"{variables}launchers/{cell.launcher}.{kind} -m reference.programs.{cell.program}{backend}"
