"""What changed from one matrix run to another: versions, what became of the cells, speed, start, memory, loss curves.

Usable as a gate: a change for the worse that the statistics call one, and that is past the threshold, is a regression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from experiments import statistics
from experiments.report import curves, facts
from experiments.report.groups import Group, Run
from experiments.statistics import Estimate

THRESHOLD = 0.05
SAME, BETTER, WORSE, CHANGED, UNKNOWN = "same", "better", "worse", "changed", "not decidable"


@dataclass(frozen=True, kw_only=True)
class Change:
    """One thing that may have changed.

    Args:
        cell: its key; "" for the environment.
        what: a number's name, "state", "loss curve", or a fact.
        text: before and after.
        verdict: one of this module's words.
        regression: whether a gate fails because of it.
    """

    cell: str
    what: str
    text: str
    verdict: str
    regression: bool = False


# What is compared of a cell: name, unit, the values of each start, and whether more is better.
_NUMBERS: tuple[tuple[str, str, Callable[[Group], list[list[float]]], bool], ...] = (
    ("throughput", "images/s", lambda group: group.rates, True),
    (
        "first step",
        "s",
        lambda group: [[r.times.first_step_s] for r in group.good if r.times.first_step_s is not None],
        False,
    ),
    (
        "memory",
        "MiB",
        lambda group: [
            [max(rank.peak_memory_bytes for rank in measured.ranks) / 2**20] for measured in group.measured
        ],
        False,
    ),
)


def compare(before: Run, after: Run, threshold: float = THRESHOLD) -> list[Change]:
    """All changes, and what stayed the same, cell by cell. Cells are matched by what they ran; where a run has several
    machines, by their machine too.

    Args:
        threshold: relative change that a regression has to exceed.
    """
    several = max(len({group.host for group in run.groups}) for run in (before, after)) > 1
    olds, news = (
        {f"{group.host}: {group.cell.key}" if several else group.cell.key: group for group in run.groups}
        for run in (before, after)
    )
    found = list(_environment(before, after))
    for key in dict.fromkeys([*olds, *news]):
        old, new = olds.get(key), news.get(key)
        if old is None or new is None:
            found.append(_only_in_one(key, old, new))
            continue
        if old.state != new.state:
            found.append(_state(key, old, new))
        for name, unit, values, more in _NUMBERS:
            a, b = values(old), values(new)
            if a and b:
                found.append(_number(key, name, unit, (a, b), more_is_better=more, threshold=threshold))
        if old.measured and new.measured:
            found.append(_curve(key, old, new))
    return found


def _environment(before: Run, after: Run) -> Iterator[Change]:
    a, b = ({fact.name: fact.values for fact in facts.environment(run)} for run in (before, after))
    for name in dict.fromkeys([*a, *b]):
        gone = [value for value in a.get(name, []) if value not in b.get(name, [])]
        came = [value for value in b.get(name, []) if value not in a.get(name, [])]
        if (gone or came) and name != "date":
            text = f"{'; '.join(gone) or 'nothing'} -> {'; '.join(came) or 'nothing'}"
            yield Change(cell="", what=name, text=text, verdict=CHANGED)


def _only_in_one(key: str, old: Group | None, new: Group | None) -> Change:
    if old is not None:
        lost = bool(old.good)
        return Change(
            cell=key,
            what="state",
            text=f"{old.state} -> not in the second run",
            verdict=CHANGED,
            regression=lost,
        )
    assert new is not None
    return Change(cell=key, what="state", text=f"not in the first run -> {new.state}", verdict=CHANGED)


def _state(key: str, old: Group, new: Group) -> Change:
    reason = next(record.reason for record in new.records if record.state == new.state)
    text = f"{old.state} -> {new.state}" + ("" if new.state == "ok" else f": {reason}")
    worse = old.state == "ok"
    verdict = WORSE if worse else BETTER if new.state == "ok" else CHANGED
    return Change(cell=key, what="state", text=text, verdict=verdict, regression=worse)


def _number(
    key: str,
    name: str,
    unit: str,
    values: tuple[Sequence[Sequence[float]], Sequence[Sequence[float]]],
    *,
    more_is_better: bool,
    threshold: float,
) -> Change:
    old, new = map(statistics.estimate, values)
    ratio = statistics.ratio(values[1], values[0])
    change = ratio.value - 1
    worse = (change < 0) is more_is_better
    if ratio.repeats < 2:
        verdict = UNKNOWN
    elif statistics.is_one(ratio):
        verdict = SAME
    else:
        verdict = WORSE if worse else BETTER
    text = (
        f"{_shown(old)} -> {_shown(new)} {unit}: {change:+.1%} [{ratio.low - 1:+.1%}, {ratio.high - 1:+.1%}], "
        f"n = {ratio.repeats} start{'s' * (ratio.repeats > 1)}"
    )
    regression = verdict == WORSE and abs(change) > threshold
    return Change(cell=key, what=name, text=text, verdict=verdict, regression=regression)


def _shown(found: Estimate) -> str:
    return f"{found.value:,.4g}" if found.value < 1000 else f"{found.value:,.0f}"


def _curve(key: str, old: Group, new: Group) -> Change:
    found = curves.compare(new, old)
    if found.gap is None:
        return Change(cell=key, what="loss curve", text=found.verdict, verdict=CHANGED, regression=True)
    text = f"{found.verdict}, largest difference {found.gap:.1e}"
    if found.past is not None:
        text += f", past the tolerance of {curves.LIMIT:.1e} from step {found.past}"
    return Change(
        cell=key,
        what="loss curve",
        text=text,
        verdict=SAME if found.past is None else CHANGED,
        regression=found.past is not None,
    )


def lines(changes: Sequence[Change], *, everything: bool = False) -> Iterator[str]:
    """The changes for people: the environment, then each cell; without what stayed the same, unless everything is wanted."""
    for change in changes:
        if everything or change.regression or change.verdict not in (SAME, UNKNOWN):
            mark = "REGRESSION " if change.regression else ""
            yield f"{mark}{change.cell or 'environment'}: {change.what}: {change.text} ({change.verdict})"
    counts = {
        word: sum(c.verdict == word for c in changes) for word in (BETTER, WORSE, CHANGED, SAME, UNKNOWN)
    }
    listed = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    yield f"{sum(change.regression for change in changes)} regressions; {listed or 'nothing to compare'}"
