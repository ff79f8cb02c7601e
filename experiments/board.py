"""What a person sees of a matrix: a table that lives while it runs, plain lines where there is no terminal."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable

from rich.console import Console
from rich.live import Live
from rich.table import Table

from experiments.plan import Plan, Planned
from experiments.records import Cell, Record

_PROGRESS = re.compile(
    r"step (\d+) of (\d+): .*?([\d.]+) images/s"
)  # as reference/programs/common/loop.py prints it
_STYLES = {"ok": "green", "failed": "bold red", "skipped": "dim", "interrupted": "yellow", "running": "bold"}


def title(cell: Cell) -> str:
    """A cell for people."""
    nodes = f" on each of {cell.nodes} nodes" if cell.nodes > 1 else ""
    processes = f"{cell.processes} process{'es' * (cell.processes > 1)}{nodes}"
    return f"{cell.program}, {cell.backend}, {cell.launcher}, {processes}, repeat {cell.repeat}"


def speed(record: Record) -> float | None:
    """Images per second over the whole training loop, for a first look; the report leaves the warm-up out."""
    measured = record.measured
    if measured is None:
        return None
    return record.cell.settings.batch_size * len(measured.step_s) / measured.train_s


class LiveBoard:
    """Shows a run; use it as a context manager.

    Args:
        plan: of the run.
        console: default: the terminal. Without one, a line is printed for each start.
    """

    def __init__(self, plan: Plan, console: Console | None = None) -> None:
        self._plan = plan
        self._console = console or Console()
        self._records: dict[str, Record] = {}
        self._running: Planned | None = None
        self._since = 0.0
        self._step = (0, 0)
        self._images_per_s: str = ""
        self._live = (
            Live(console=self._console, refresh_per_second=2, get_renderable=self.table)
            if self._console.is_terminal
            else None
        )

    def __enter__(self) -> LiveBoard:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def started(self, planned: Planned) -> None:
        """A cell starts."""
        self._running, self._since, self._step, self._images_per_s = planned, time.monotonic(), (0, 0), ""
        if self._live is None:
            self._print(planned, "started")

    def line(self, text: str) -> None:
        """A line that the running cell printed."""
        found = _PROGRESS.search(text)
        if found is not None:
            self._step, self._images_per_s = (int(found[1]), int(found[2])), found[3]

    def ended(self, planned: Planned, record: Record, *, kept: bool) -> None:
        """A cell is over."""
        self._running = None
        self._records[planned.cell.name] = record
        if self._live is None:
            rate = speed(record)
            numbers = "" if rate is None else f", {rate:.0f} images/s"
            took = f", {record.times.wall_s:.0f} s" if record.times.wall_s is not None else ""
            before = " before" if kept else ""
            why = f": {record.reason}" if record.state not in ("ok",) else ""
            self._print(planned, f"{record.state}{before}{numbers}{took}{why}")

    def _print(self, planned: Planned, text: str) -> None:
        place = f"[{planned.order}/{len(self._plan.starts)}]"
        self._console.print(
            f"{place} {title(planned.cell)}: {text}", markup=False, highlight=False, soft_wrap=True
        )

    def left(self) -> str:
        """How long the rest will take, if it goes on as fast."""
        walls = [r.times.wall_s for r in list(self._records.values()) if r.times.wall_s is not None]
        starts = [one for one in self._plan.starts if one.skipped is None]
        waiting = sum(one.cell.name not in self._records for one in starts)
        if not walls or not waiting:
            return ""
        running = time.monotonic() - self._since if self._running is not None else 0.0
        seconds = max(0.0, sum(walls) / len(walls) * waiting - running)
        return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"

    def table(self) -> Table:
        """The table as it is now: what is running, what was last, and what comes next, as far as the screen is high."""
        states = Counter(record.state for record in list(self._records.values()))
        total = len(self._plan.starts)
        summary = ", ".join(f"{count} {state}" for state, count in sorted(states.items())) or "nothing yet"
        table = Table(
            title=f"{self._plan.preset_name}: {len(self._records)} of {total} starts ({summary}) {self.left()}"
        )
        for name in ("", "cell", "state", "progress", "images/s", "seconds"):
            table.add_column(name, justify="right" if name in ("", "images/s", "seconds") else "left")
        for planned in self._visible():
            table.add_row(*self._row(planned), style=_STYLES.get(self._state(planned), ""))
        return table

    def _visible(self) -> Iterable[Planned]:
        height = max(5, self._console.size.height - 8)
        current = len(self._records)
        first = max(0, min(current - height // 2, len(self._plan.starts) - height))
        return self._plan.starts[first : first + height]

    def _state(self, planned: Planned) -> str:
        if planned is self._running:
            return "running"
        record = self._records.get(planned.cell.name)
        return "" if record is None else record.state

    def _row(self, planned: Planned) -> tuple[str, ...]:
        state = self._state(planned)
        head = (str(planned.order), title(planned.cell), state)
        if state == "running":
            done, total = self._step
            progress = f"step {done} of {total}" if total else "starting"
            return (*head, progress, self._images_per_s, f"{time.monotonic() - self._since:.0f}")
        record = self._records.get(planned.cell.name)
        if record is None:
            return (*head, "", "", "")
        rate = speed(record)
        wall = record.times.wall_s
        why = "" if record.state == "ok" else record.reason
        return (
            *head,
            why,
            "" if rate is None else f"{rate:.0f}",
            "" if wall is None else f"{wall:.0f}",
        )
