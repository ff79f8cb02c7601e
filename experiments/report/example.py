"""Writes the example report that is part of the repository, and the part of the README that is made of it."""

from __future__ import annotations

from pathlib import Path

from experiments.records import RecordError
from experiments.report import page
from experiments.report.content import Content, content
from experiments.report.groups import Run, read
from experiments.report.values import COUNT, LAYOUT, Table
from experiments.rules import ROOT
from reference.files import write_atomically

FOLDER = Path("docs/example-report")
PLOT = "throughput.svg"
BEGIN, END = "<!-- example report: begin (generated) -->", "<!-- example report: end -->"
_SHOWN = (
    "program",
    "backend",
    "launcher",
    LAYOUT,
    "images/s",
    COUNT,
    "first step after s",
    "loss curve",
)


def write(run: Path, root: Path = ROOT) -> list[Path]:
    """Write the report of a run into docs/example-report, and its main table and plot into README.md.

    Args:
        run: folder of the matrix run, with measured cells.
        root: of the clone.

    Returns:
        What was written.

    Raises:
        RecordError: nothing was measured, or the README has no place for it.
    """
    found = read(run)
    everything = content(found)
    plots = [
        plot for section in everything.sections if section.name == "throughput" for plot in section.plots
    ]
    if not plots:
        raise RecordError(f"{run} has no cell with a speed: nothing to show")
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise RecordError(f"{readme} has no lines '{BEGIN}' and '{END}', between which the table goes")
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        folder / page.HTML: page.html(everything),
        folder / page.MARKDOWN: page.markdown(everything),
        folder / PLOT: plots[-1].file,
        readme: f"{before}{BEGIN}\n{_section(found, everything)}\n{END}{after}",
    }
    for path, value in files.items():
        write_atomically(path, value)
    return list(files)


def _section(run: Run, found: Content) -> str:
    """For the README: the last training of the run that was measured, as a table and a picture."""
    scene = [scene for scene in run.scenes if scene.fast][-1]
    numbers = {group.number for group in scene.fast}
    matrix = found.matrix
    chosen = [matrix.columns.index(name) for name in _SHOWN]
    rows = [[row[place] for place in chosen] for row in matrix.rows if set(row[0].cells) <= numbers]
    table = Table(title=scene.title, columns=[matrix.columns[place] for place in chosen], rows=rows)
    plot = next(
        p for s in found.sections if s.name == "throughput" for p in s.plots if p.title == scene.title
    )
    date = next(fact.values[0] for fact in found.environment if fact.name == "date")
    host = scene.fast[0].records[0].host
    presets = sorted({record.preset for group in scene.fast for record in group.records})
    return (
        f"{scene.title[0].upper()}{scene.title[1:]}, on {host.processor} with {host.cores} cores, {date[:10]}. Medians with "
        f"intervals of 95 %. `python -m experiments run --preset={' --preset='.join(presets)}`, then `make report`; commands, claims and "
        f"curves: [{FOLDER}/report.md]({FOLDER}/report.md).\n\n{page.markdown_table(table)}\n\n![{plot.text}]({FOLDER}/{PLOT})"
    )
