"""The curves on top of each other, and their differences on a log scale; both are readable in shades of grey."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reference.programs.equivalence.compare import DIFFERENT, tolerance
from reference.programs.equivalence.matrix import CONTROL, PRECISIONS, SERIAL, Cell, Section
from reference.programs.equivalence.results import Row
from reference.programs.equivalence.running import Outcome
from reference.programs.equivalence.training import BATCH_SIZE, EPOCHS, SAMPLES, STEPS

CURVES, DIFFERENCES = "equivalence-curves.svg", "equivalence-differences.svg"
_ZERO = 3e-18  # where a difference of exactly 0 stands on the log scale
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "v", "D", "x", "+", "*", "P", "<", ">", "h")


def draw(
    outcomes: Mapping[Cell, Outcome], sections: Sequence[tuple[Section, Sequence[Row]]], folder: Path
) -> dict[str, str]:
    """Write the pictures (SVG) into the folder. File names with their text alternatives."""
    rows = [row for _, section_rows in sections for row in section_rows]
    with plt.rc_context(
        {"svg.hashsalt": "equivalence", "font.size": 8, "axes.grid": True, "grid.color": "0.88"}
    ):
        _save(_curves(outcomes), folder / CURVES)
        _save(_differences(rows), folder / DIFFERENCES)
    return {CURVES: _curves_text(outcomes), DIFFERENCES: _differences_text(rows)}


def _save(figure: Figure, file: Path) -> None:
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def _curves(outcomes: Mapping[Cell, Outcome]) -> Figure:
    """Wide light lines below, narrow dark ones on top: what lies on one line shows all shades side by side."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True, layout="constrained")
    plain = [o for cell, o in outcomes.items() if o.curves and cell is not CONTROL]
    for ax, precision in zip(axes, PRECISIONS, strict=False):
        ax.set_title(f"{precision}: {len(plain)} cells on one line")
        for index, outcome in enumerate(plain):
            depth = index / max(1, len(plain) - 1)  # from 0, the lowest, to 1
            style = {
                "color": str(0.82 * (1 - depth)),
                "linewidth": 11 - 10 * depth,
                "solid_capstyle": "butt",
            }
            _steps(ax, outcome.curves[precision]["losses"], label=outcome.cell.title, **style)
    axes[2].set_title("float64: controls, with mistakes made on purpose")
    for index, (name, losses) in enumerate(_controls(outcomes)):
        style = {"color": "0.75", "linewidth": 6.0} if index == 0 else {"color": "black", "linewidth": 1.0}
        marks = (
            {} if index == 0 else {"marker": _MARKERS[index], "linestyle": _LINES[index % 4], "markersize": 4}
        )
        _steps(axes[2], losses, label=name, **style, **marks)
    axes[2].legend(loc="lower left", fontsize=7)
    axes[0].set_ylabel("loss of the global batch")
    axes[1].set_xlabel(f"step (every {STEPS // EPOCHS}th: an uneven batch of {SAMPLES % BATCH_SIZE} images)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=4, fontsize=7)
    return figure


def _controls(outcomes: Mapping[Cell, Outcome]) -> Iterable[tuple[str, list[float]]]:
    if "float64" in outcomes[SERIAL].curves:
        yield SERIAL.title, outcomes[SERIAL].curves["float64"]["losses"]
    for name, curve in outcomes[CONTROL].curves.items():
        yield name, curve["losses"]


def _differences(rows: Sequence[Row]) -> Figure:
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    for ax, precision in zip(axes, PRECISIONS, strict=True):
        ax.set_title(f"{precision}: relative difference of the loss to the reference")
        ax.set_yscale("log")
        mine = [row for row in rows if row.precision == precision and row.found is not None]
        for index, row in enumerate(mine):
            assert row.found is not None
            control = row.comparison.expected == DIFFERENT
            style = {
                "color": "black" if control else str(0.55 * index / len(mine)),
                "linestyle": ":" if control else _LINES[index % 3],
                "marker": _MARKERS[index % len(_MARKERS)],
                "fillstyle": "none" if control else "full",
            }
            name = row.comparison.recipe if control else row.comparison.title
            values = [max(value, _ZERO) for value in row.found.steps]
            _steps(
                ax,
                values,
                label=f"control: {name}" if control else name,
                markersize=4,
                linewidth=0.9,
                **style,
            )
        limit = tolerance(precision)
        ax.axhline(limit, color="black", linewidth=1.6)
        ax.annotate(
            f"tolerance {limit:.1e}", (1, limit), (0, 3), textcoords="offset points", fontweight="bold"
        )
        ax.axhline(_ZERO, color="0.6", linewidth=0.8)
        ax.annotate("exactly 0", (1, _ZERO), (0, 3), textcoords="offset points")
    axes[0].set_ylim(_ZERO / 3, 10)
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower left", ncols=3, fontsize=7)
    return figure


def _steps(ax: Axes, values: Sequence[float], **style: Any) -> None:
    ax.plot(range(1, len(values) + 1), values, **style)
    ax.set_xlabel("step")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def _curves_text(outcomes: Mapping[Cell, Outcome]) -> str:
    losses = outcomes[SERIAL].curves["float64"]["losses"] if outcomes[SERIAL].curves else [float("nan")]
    count = sum(bool(outcome.curves) for cell, outcome in outcomes.items() if cell is not CONTROL)
    return (
        f"Loss by step. In float32 and in float64 the curves of {count} cells lie on one line, from {losses[0]:.2f} down to "
        f"{losses[-1]:.2f}; the controls leave it."
    )


def _differences_text(rows: Sequence[Row]) -> str:
    parts = []
    for precision in PRECISIONS:
        largest = max(
            (
                row.found.loss_relative
                for row in rows
                if row.found is not None
                and row.precision == precision
                and row.comparison.expected != DIFFERENT
            ),
            default=float("nan"),
        )
        parts.append(f"at most {largest:.1e} in {precision} (tolerance {tolerance(precision):.1e})")
    controls = [
        r.found.loss_relative for r in rows if r.found is not None and r.comparison.expected == DIFFERENT
    ]
    least = f"{min(controls):.1e}" if controls else "nothing"
    return f"Relative differences of the loss by step: {' and '.join(parts)}; the controls reach {least} or more."
