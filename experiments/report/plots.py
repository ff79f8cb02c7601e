"""The pictures, as SVG: what tells things apart is shape and dash as well as colour, and text stays text.

The pictures are drawn with stand-ins for the colours of text and grid. In the page these become those of the reader's
scheme, light or dark; in a file of its own they are fixed, on white.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from experiments.report.curves import LIMIT, Family
from experiments.report.groups import Group, Run, Scene, speed_of
from experiments.report.pairs import Pair, Scaling
from experiments.statistics import Estimate

_INK, _GRID = "#010203", "#040506"
# dark enough for white paper, light enough for a dark page; neighbours are different in grey
COLOURS = ("#2a74b5", "#c87f2c", "#23804f", "#b07cc6", "#b8505c", "#84943a")
_MARKERS = ("o", "s", "^", "D", "v", "X", "P", "*")
_DASHES = ("-", "--", "-.", ":")
_HATCHES = ("", "////", "....")
_ZERO = 1e-9  # where a difference of exactly 0 stands on the log scale
_WIDTH = 7.2  # inches; a phone shows it at about two thirds
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "hatch.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "legend.frameon": False,
}


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A picture.

    Args:
        name: its name in ids and files.
        title, text: for those who do not see it.
        svg: with stand-ins for the colours.
    """

    name: str
    title: str
    text: str
    svg: str

    @property
    def inline(self) -> str:
        """For a page, in its colours (`currentColor` and the variable --grid)."""
        svg = self.svg.replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
        svg = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{self.name}-", svg)
        svg = re.sub(r'(<svg\b[^>]*?) width="[^"]*"', r"\1", svg, count=1)
        svg = re.sub(r'(<svg\b[^>]*?) height="[^"]*"', r"\1", svg, count=1)
        head = f'<svg class="plot" role="img" aria-labelledby="{self.name}-t {self.name}-d"'
        return svg.replace("<svg", head, 1).replace(">", f">{self._described}", 1)

    @property
    def file(self) -> str:
        """A file of its own, on white."""
        svg = self.svg.replace(_INK, "#222222").replace(_GRID, "#dddddd")
        svg = svg.replace("<svg", '<svg style="background:#fff" role="img"', 1)
        return svg.replace(">", f">{self._described}", 1) + "\n"

    @property
    def _described(self) -> str:
        return f'<title id="{self.name}-t">{escape(self.title)}</title><desc id="{self.name}-d">{escape(self.text)}</desc>'


def _plot(name: str, title: str, text: str, draw: Callable[[], Figure]) -> Plot:
    with plt.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure, out = draw(), io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
        plt.close(figure)
    svg = out.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    return Plot(name=name, title=title, text=text, svg=svg.strip())


def _look(place: int) -> dict[str, Any]:
    return {"color": COLOURS[place % len(COLOURS)], "marker": _MARKERS[place % len(_MARKERS)]}


def _label(group: Group) -> str:
    return f"C{group.number} {group.name}"


def _dots(
    name: str, title: str, xlabel: str, rows: Sequence[tuple[str, str, Estimate]], line: float | None
) -> Plot:
    """One row a number with its interval; rows are (label, kind, number), and kinds have shapes of their own."""
    kinds = list(dict.fromkeys(kind for _, kind, _ in rows))

    def draw() -> Figure:
        figure, ax = _rows(len(rows))
        for place, kind in enumerate(kinds):
            mine = [(y, found) for y, (_, other, found) in enumerate(rows) if other == kind]
            values = [found.value for _, found in mine]
            whiskers = [
                [found.value - found.low for _, found in mine],
                [found.high - found.value for _, found in mine],
            ]
            # a median need not lie in an interval of medians that were drawn
            clipped = [[max(0.0, one) for one in side] for side in whiskers]
            style = _look(place)
            ax.errorbar(
                values, [y for y, _ in mine], xerr=clipped, fmt="none", ecolor=style["color"], capsize=3
            )
            ax.plot(values, [y for y, _ in mine], linestyle="none", markersize=7, label=kind, **style)
        if line is not None:
            ax.axvline(line, color=_INK, linewidth=1.2)
            # few starts have intervals that would leave nothing to see
            ax.set_xlim(right=min(ax.get_xlim()[1], 2 * max(line, *(found.value for _, _, found in rows))))
            ax.set_xlim(left=max(ax.get_xlim()[0], 0))
        else:
            ax.set_xlim(left=0)
        ax.set_yticks(range(len(rows)), [label for label, _, _ in rows])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.grid(axis="y", visible=False)
        ax.set_xlabel(xlabel)
        _legend(figure, len(kinds))
        return figure

    ordered = sorted(rows, key=lambda row: -row[2].value)
    text = (
        f"{xlabel}, with intervals, of {len(rows)} cells: from {ordered[0][0]} with {ordered[0][2].value:,.4g} down to "
        f"{ordered[-1][0]} with {ordered[-1][2].value:,.4g}. The values are in the table."
    )
    return _plot(name, title, text, draw)


def _rows(count: int) -> tuple[Figure, Axes]:
    return plt.subplots(figsize=(_WIDTH, 1.1 + 0.32 * count), layout="constrained")


def _legend(figure: Figure, entries: int) -> None:
    if entries > 1:
        figure.legend(loc="outside upper left", ncols=5, fontsize=9)


def throughput(scene: Scene, name: str) -> Plot:
    """Images per second of all groups of a scene."""
    rows = [(_label(group), group.cell.program, speed_of(group)) for group in scene.fast]
    return _dots(name, scene.title, "images/s", rows, None)


def overhead(pairs: Sequence[Pair]) -> Plot:
    """Step time of libraries by that of hand-written code."""
    rows = [(_label(pair.ours), pair.ours.cell.program, pair.ratio) for pair in pairs]
    return _dots(
        "overhead",
        "Step time beside hand-written code",
        "step time by that of hand-written code (1: the same)",
        rows,
        1,
    )


def scaling(found: Sequence[Scaling]) -> Plot:
    """Efficiency of all groups that have a base."""
    rows = [(_label(one.group), one.group.cell.program, one.efficiency) for one in found]
    return _dots("scaling", "Efficiency", "efficiency (1: perfect)", rows, 1)


def start_times(run: Run) -> Plot:
    """Launch to rendezvous and to first step, the quickest first."""
    rows = []
    for group in run.groups:
        met, stepped = group.seconds("rendezvous_s"), group.seconds("first_step_s")
        if stepped is not None:
            rows.append((group, met.value if met is not None else 0.0, stepped))
    rows.sort(key=lambda row: row[2].value)

    def draw() -> Figure:
        figure, ax = _rows(len(rows))
        ys = range(len(rows))
        common: dict[str, Any] = {"edgecolor": _INK, "linewidth": 0.6, "height": 0.62}
        met = [one for _, one, _ in rows]
        rest = [stepped.value - one for _, one, stepped in rows]
        ax.barh(ys, met, color=COLOURS[0], hatch=_HATCHES[0], label="until the rendezvous", **common)
        ax.barh(
            ys, rest, left=met, color=COLOURS[1], hatch=_HATCHES[1], label="until the first step", **common
        )
        whiskers = [
            [max(0.0, one.value - one.low) for _, _, one in rows],
            [max(0.0, one.high - one.value) for _, _, one in rows],
        ]
        ax.errorbar(
            [one.value for _, _, one in rows], list(ys), xerr=whiskers, fmt="none", ecolor=_INK, capsize=3
        )
        ax.set_yticks(ys, [_label(group) for group, _, _ in rows])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.grid(axis="y", visible=False)
        ax.set_xlabel("seconds after the launch")
        _legend(figure, 2)
        return figure

    quick, slow = rows[0], rows[-1]
    text = (
        f"Seconds from the launch to the rendezvous and to the first step of {len(rows)} cells: from {_label(quick[0])} with "
        f"{quick[2].value:.1f} s to {_label(slow[0])} with {slow[2].value:.1f} s. The values are in the table."
    )
    return _plot("start", "Seconds from the launch", text, draw)


def curves(family: Family, name: str) -> Plot:
    """All curves of a family on top of each other, and their differences to the reference below."""

    def draw() -> Figure:
        figure, (top, bottom) = plt.subplots(
            2, 1, figsize=(_WIDTH, 6), sharex=True, height_ratios=(3, 2), layout="constrained"
        )
        count = len(family.curves)
        for place, curve in enumerate(family.curves):
            steps = range(1, len(curve.losses) + 1)
            # wide below, narrow on top: curves that are one show all of their colours side by side
            style = _look(place)
            dash = _DASHES[place % len(_DASHES)]
            width = 1.2 + 7 * (count - 1 - place) / max(1, count)
            top.plot(steps, curve.losses, linestyle="-", linewidth=width, color=style["color"])
            if curve.gap is None:
                continue
            gaps = [
                max(abs(a - b) / max(abs(b), 1e-300), _ZERO)
                for a, b in zip(curve.losses, family.curves[0].losses, strict=True)
            ]
            every = max(1, len(gaps) // 8)
            marks: dict[str, Any] = {
                "markevery": (place % every, every),
                "markersize": 5,
                "linewidth": 1.2,
                "linestyle": dash,
            }
            bottom.plot(steps, gaps, label=_label(curve.group), **style, **marks)
        top.set_ylabel("loss")
        bottom.set_yscale("log")
        bottom.set_ylim(_ZERO / 50, max(10 * LIMIT, bottom.get_ylim()[1]))
        bottom.axhline(LIMIT, color=_INK, linewidth=1.4)
        bottom.annotate("tolerance", (1, LIMIT), (0, 3), textcoords="offset points")
        bottom.annotate("exactly 0", (1, _ZERO), (0, -11), textcoords="offset points")
        bottom.set_ylabel("relative difference")
        bottom.set_xlabel("step")
        bottom.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(loc="outside lower left", ncols=2, fontsize=9)
        return figure

    gaps = [curve.gap for curve in family.curves if curve.gap is not None]
    first, last = family.curves[0].losses[0], family.curves[0].losses[-1]
    text = (
        f"Loss by step of {len(family.curves)} cells, above; its relative difference to {_label(family.reference)}, below. The "
        f"reference goes from {first:.3f} to {last:.3f}; the largest difference is {max(gaps):.1e}. The values are in the table."
    )
    return _plot(name, family.title, text, draw)
