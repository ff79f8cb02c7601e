"""What is said about idist, and what the records say: confirmed, refuted, or not decidable from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiments.codestats import CodeStats
from experiments.report.curves import APART, DIFFERENT, Family
from experiments.report.groups import Group, Run
from experiments.report.pairs import Pair, together
from experiments.rules import BACKENDS
from experiments.statistics import CONFIDENCE, Estimate, is_one

CONFIRMED, REFUTED, OPEN = "confirmed", "refuted", "not decidable"
NOTHING = 0.05  # an overhead below this share of a step counts as none, when its interval also holds 0
HOW = (
    f"All intervals are for {CONFIDENCE * 100:.0f} %, so one comparison in twenty may be called a difference by chance. “Costs "
    f"nothing” needs an interval that holds 0 or lies below it, and ends below {NOTHING * 100:.0f} %; one above 0 refutes it. Pairs of "
    "the same training are also taken together, each counting the same: all their starts decide more than those of one pair."
)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One of the claims.

    Args:
        verdict: one of this module's words.
        text: why, with the numbers.
        groups: whose commands give the numbers.
    """

    title: str
    verdict: str
    text: str
    groups: list[Group]


def settle(
    run: Run, code: Sequence[CodeStats], overheads: list[Pair], launches: list[Pair], curves: Sequence[Family]
) -> list[Claim]:
    """All claims.

    Args:
        overheads: `pairs.overheads`.
        launches: spawn by torch.distributed.launch.
    """
    own = [pair for pair in overheads if pair.ours.cell.program == "idist"]
    return [
        _slower_start(launches),
        _fewer_lines(code),
        _everywhere(run, curves),
        _free(own),
    ]


def percent(ratio: Estimate) -> str:
    """A ratio as what it is more or less: "+2.0 % [-1.0, +5.0]"."""
    value, low, high = (100 * (number - 1) for number in (ratio.value, ratio.low, ratio.high))
    return f"{value:+.1f} % [{low:+.1f}, {high:+.1f}]"


def _pair_text(pair: Pair) -> str:
    ours, theirs = pair.ours, pair.theirs
    names = f"{ours.name} (C{ours.number}) against {theirs.name} (C{theirs.number})"
    return f"{names}: {percent(pair.ratio)}, {starts(pair.ratio)}"


def starts(found: Estimate) -> str:
    """For people: how many starts a number is from."""
    return f"n = {found.repeats} start{'s' * (found.repeats != 1)}"


def _of_pairs(
    title: str, pairs: list[Pair], judge: Callable[[Estimate], str], *, none: str, one_refutes: bool = False
) -> Claim:
    """A claim about pairs, settled where those that decide something agree; or, with `one_refutes`, by one that refutes it."""
    if not pairs:
        return Claim(title=title, verdict=OPEN, text=none, groups=[])
    verdicts = [judge(pair.ratio) for pair in pairs]
    common = together(pairs)
    known = {*verdicts, *(judge(found) for found in common.values())} - {OPEN}
    if one_refutes and REFUTED in known:
        known = {REFUTED}
    verdict = known.pop() if len(known) == 1 else OPEN
    groups = [group for pair in pairs for group in (pair.ours, pair.theirs)]
    words = (CONFIRMED, REFUTED, OPEN)
    counts = ", ".join(f"{verdicts.count(word)} {word}" for word in words if word in verdicts)
    for training, found in common.items():
        counts += f". All pairs of {training}, together: {percent(found)}, {starts(found)}: {judge(found)}"
    text = "; ".join(f"{_pair_text(pair)}: {word}" for pair, word in zip(pairs, verdicts, strict=True))
    return Claim(
        title=title,
        verdict=verdict,
        text=f"{text}." if len(pairs) == 1 else f"{counts}. {text}.",
        groups=groups,
    )


def _more(ratio: Estimate) -> str:
    """Whether it takes longer."""
    return OPEN if is_one(ratio) else CONFIRMED if ratio.value > 1 else REFUTED


def _slower_start(pairs: list[Pair]) -> Claim:
    return _of_pairs(
        "spawn starts slower than torch.distributed.launch",
        pairs,
        _more,
        none="No program was started by both on one machine. Time from the launch to the end of the first step would tell.",
    )


def costs(ratio: Estimate) -> str:
    """Whether a step time is the same but for at most `NOTHING`: one of this module's words, for one pair."""
    if ratio.repeats < 2:
        return OPEN
    if ratio.low > 1:
        return REFUTED
    return CONFIRMED if ratio.high < 1 + NOTHING else OPEN


def _free(pairs: list[Pair]) -> Claim:
    return _of_pairs(
        "idist costs nothing at run time",
        pairs,
        costs,
        none="idist was not run beside hand-written code with the same backend and launcher.",
        one_refutes=True,
    )


def _fewer_lines(code: Sequence[CodeStats]) -> Claim:
    lines = {one.program: one.lines for one in code}
    others = {name: count for name, count in lines.items() if name.endswith(("_native", "_ddp"))}
    less = all(lines["idist"] < count for count in others.values())
    verdict = CONFIRMED if less else REFUTED
    listed = ", ".join(f"{name} {count}" for name, count in others.items())
    text = f"Lines of code, counted in the sources: idist {lines['idist']}; {listed}, of which each serves its own backends only."
    return Claim(title="idist needs fewer lines than native code", verdict=verdict, text=text, groups=[])


def _everywhere(run: Run, curves: Sequence[Family]) -> Claim:
    good, bad, open_, groups = [], [], [], []
    apart = {c.group.number: c.verdict for f in curves for c in f.curves if c.verdict in (APART, DIFFERENT)}
    for backend in BACKENDS["idist"]:
        mine = [g for g in run.groups if (g.cell.program, g.cell.backend) == ("idist", backend)]
        groups += [group for group in mine if group.good]
        odd = [f"C{g.number} {apart[g.number]}" for g in mine if g.number in apart]
        failed = [group for group in mine if group.state == "failed"]
        if any(DIFFERENT in text for text in odd):
            bad.append(f"{backend} (its loss curve: {', '.join(odd)})")
        elif odd:
            open_.append(f"{backend} (its loss curve: {', '.join(odd)})")
        elif any(group.good for group in mine):
            simulated = any(m.device == "xla (CPU)" for group in mine for m in group.measured)
            good.append(backend + " (simulated by the CPU)" * simulated)
        elif failed:
            bad.append(f"{backend} ({failed[0].records[0].reason})")
        else:
            open_.append(f"{backend} ({mine[0].records[0].reason if mine else 'not in these records'})")
    verdict = REFUTED if bad else OPEN if open_ else CONFIRMED
    parts = (("It ran on", good), ("It did not on", bad), ("Not known for", open_))
    text = " ".join(f"{word} {', '.join(names)}." for word, names in parts if names)
    return Claim(title="the same code runs on every backend", verdict=verdict, text=text, groups=groups)
