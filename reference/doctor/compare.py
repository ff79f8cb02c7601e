"""What all ranks found alike, once, and the odd ones out by ``[host:rank]``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from reference.doctor.clocks import Offset
from reference.doctor.finding import LEVELS, NOTE, OK, PROBLEM, Finding, worst

_SKEW = 0.1  # seconds between clocks that are worth a word
_NAMED = 8  # ranks in a line
_ABSENT = "not there"
_BITES = {
    "machine": "the slowest rank sets the pace, and the smallest limit stops all: give all ranks the same",
    "software": "ranks that run different code hang or compute different things: use one environment or image everywhere",
    "network": "ranks may not reach each other: use the same interface everywhere, or set it for each host",
    "launch": "ranks that are set up differently may hang: pass the variable on to all of them",
    "clocks": "time stamps of logs can't be compared, and munge and TLS may refuse: run NTP (chrony) on all hosts",
}
_VITAL = ("python", "torch", "horovod")  # ranks must agree on them


@dataclass(frozen=True, kw_only=True)
class Rank:
    """What one rank found."""

    rank: int
    host: str
    findings: tuple[Finding, ...]

    @property
    def label(self) -> str:
        return f"[{self.host}:{self.rank}]"


def compare(ranks: Sequence[Rank]) -> list[Finding]:
    """The findings of a world, in the order of rank 0's: common ones once, different values of shared facts as odd ones out.

    Findings that rightly differ (own names, ports) only appear where they are no "ok", with the ranks that they are true of.
    """
    found: list[Finding] = []
    for key in dict.fromkeys((f.section, f.name) for rank in ranks for f in rank.findings):
        mine = [next((f for f in rank.findings if (f.section, f.name) == key), None) for rank in ranks]
        there = [f for f in mine if f is not None]
        if there[0].shared:
            found += _shared(ranks, mine)
        else:
            found += _own(ranks, mine)
    return found


def judge_clocks(ranks: Sequence[Rank], offsets: Sequence[Offset]) -> Finding:
    """One finding about all clocks: the hosts whose clock differs from the others' by more than its uncertainty."""
    middle = sorted(offset.seconds for offset in offsets)[(len(offsets) - 1) // 2]
    skewed = [o for o in offsets if abs(o.seconds - middle) - o.uncertainty > _SKEW]
    value = [vars(offset) for offset in offsets]
    if skewed:
        each = ", ".join(
            f"{ranks[o.rank].label} {o.seconds - middle:+.3g} s (± {o.uncertainty:.2g} s)" for o in skewed
        )
        text = f"{each} from the others: {_BITES['clocks']}"
    else:
        width = max(abs(o.seconds) + o.uncertainty for o in offsets)
        text = f"equal within {width * 1e3:.3g} ms on all ranks"
    return Finding(section="network", name="clocks", value=value, text=text, level=NOTE if skewed else OK)


def _shared(ranks: Sequence[Rank], mine: Sequence[Finding | None]) -> Iterator[Finding]:
    values = [_ABSENT if f is None else json.dumps(f.value, sort_keys=True) for f in mine]
    first = next(f for f in mine if f is not None)
    if len(set(values)) == 1:
        level = worst(f for f in mine if f is not None)
        chosen = next(f for f in mine if f is not None and f.level == level)
        alike = level != OK or len({f.text for f in mine if f is not None}) == 1
        own = not alike and isinstance(chosen.value, str)  # what else the text says is each rank's own
        yield replace(chosen, text=chosen.value) if own else chosen
        return
    counts = Counter(values)
    common = max(counts, key=lambda value: (counts[value], value == values[0]))
    odd = [
        f"{_short(mine[i])} on {_labels(ranks[j] for j in range(len(ranks)) if values[j] == values[i])}"
        for i in range(len(ranks))
        if values[i] != common and values.index(values[i]) == i
    ]
    usual = _short(mine[values.index(common)])
    level = PROBLEM if first.section == "software" and first.name in _VITAL else NOTE
    level = max(level, worst(f for f in mine if f is not None), key=LEVELS.index)
    text = f"{', '.join(odd)}, but {usual} on the other{'s' if counts[common] > 1 else ''}: {_BITES[first.section]}"
    by_rank = {str(rank.rank): None if f is None else f.value for rank, f in zip(ranks, mine, strict=True)}
    yield replace(first, value=by_rank, text=text, level=level, odd=True)


def _labels(ranks: Iterable[Rank]) -> str:
    """``[host:rank] [host:rank]``, shortened where there are many."""
    labels = [rank.label for rank in ranks]
    more = f" and {len(labels) - _NAMED} more" if len(labels) > _NAMED else ""
    return " ".join(labels[:_NAMED]) + more


def _short(finding: Finding | None) -> str:
    """The value itself, without what may bite."""
    if finding is None:
        return _ABSENT
    return finding.text.partition(": ")[0]


def _own(ranks: Sequence[Rank], mine: Sequence[Finding | None]) -> Iterator[Finding]:
    groups: dict[tuple[str, str], list[Rank]] = {}
    for rank, finding in zip(ranks, mine, strict=True):
        if finding is not None and finding.level != OK:
            groups.setdefault((finding.level, finding.text), []).append(rank)
    for (level, text), those in groups.items():
        where = "" if len(those) == len(ranks) else f"{_labels(those)} "
        first = next(f for f in mine if f is not None and f.text == text)
        yield replace(first, text=f"{where}{text}", level=level)
