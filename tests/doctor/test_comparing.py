"""The odd one out, and clocks, as pure functions."""

from __future__ import annotations

import random

from reference.doctor.clocks import Offset, offsets
from reference.doctor.compare import Rank, compare, judge_clocks
from reference.doctor.finding import Finding


def finding(value: object, level: str = "ok", text: str = "", **more: object) -> Finding:
    fields = {"section": "machine", "name": "cores", **more}
    return Finding(value=value, text=text or f"{value} of them", level=level, **fields)  # type: ignore[arg-type]


def ranks(*found: Finding | None) -> list[Rank]:
    return [
        Rank(rank=number, host=f"node{number // 2}", findings=() if one is None else (one,))
        for number, one in enumerate(found)
    ]


def test_what_is_equal_stands_once() -> None:
    assert compare(ranks(finding(4), finding(4), finding(4))) == [finding(4)]


def test_texts_of_equal_values_may_differ() -> None:
    (found,) = compare(
        ranks(finding("eth0", text="eth0 (10.0.0.1)"), finding("eth0", text="eth0 (10.0.0.2)"))
    )
    assert found.text == "eth0" and found.level == "ok"


def test_the_odd_one_out_is_named() -> None:
    (found,) = compare(ranks(finding(4), finding(4), finding(2), finding(4)))
    assert found.text.startswith("2 of them on [node1:2], but 4 of them on the others: ")
    assert (found.level, found.odd, found.value) == ("note", True, {"0": 4, "1": 4, "2": 2, "3": 4})


def test_two_odd_values() -> None:
    (found,) = compare(ranks(finding(4), finding(1), finding(2), finding(4)))
    assert found.text.startswith(
        "1 of them on [node0:1], 2 of them on [node1:2], but 4 of them on the others: "
    )


def test_of_two_ranks_rank_0_is_the_usual_one() -> None:
    (found,) = compare(ranks(finding(4), finding(2)))
    assert found.text.startswith("2 of them on [node0:1], but 4 of them on the other: ")


def test_a_value_that_is_not_there() -> None:
    (found,) = compare(ranks(None, finding(2), None))
    assert found.text.startswith("2 of them on [node0:1], but not there on the others: ")


def test_many_odd_ones_are_counted() -> None:
    (found,) = compare(ranks(*[finding(4)] * 20, *[finding(2)] * 12))
    assert "[node13:27] and 4 more, but 4 of them on the others" in found.text


def test_another_torch_is_a_problem() -> None:
    torch = {"section": "software", "name": "torch"}
    (found,) = compare(ranks(finding("2.14.1", **torch), finding("2.13.0", **torch)))
    assert found.level == "problem" and "[node0:1]" in found.text


def test_what_rightly_differs_stands_only_where_it_bites() -> None:
    fine, bad = finding("a", shared=False), finding("b", level="note", text="b bites", shared=False)
    assert compare(ranks(fine, fine)) == []
    (found,) = compare(ranks(fine, bad, bad))
    assert found.text == "[node0:1] [node1:2] b bites"
    (found,) = compare(ranks(bad, bad))
    assert found.text == "b bites"


def test_offsets_of_clocks_lie_within_their_uncertainty() -> None:
    chance = random.Random(0)
    true = [0.0, 5.0, -0.25]
    readings: list[list[tuple[float, float, float]]] = [[], [], []]
    now = 1000.0
    for _ in range(20):
        before, first = now, now + chance.uniform(1e-4, 1e-3)
        between = [first + chance.uniform(0, 1e-4) for _ in true]
        after = max(between) + chance.uniform(1e-4, 1e-3)
        for rank, shift in enumerate(true):
            readings[rank].append((before + shift, between[rank] + shift, after + shift))
        now = after + 0.01
    for offset, expected in zip(offsets(readings), true, strict=True):
        assert abs(offset.seconds - expected) <= offset.uncertainty + 1e-12
        assert offset.uncertainty < 2e-3


def test_a_clock_that_was_set_meanwhile() -> None:
    ours = [(0.0, 0.1, 0.2), (1.0, 1.1, 1.2)]
    theirs = [(0.0, 0.1, 0.2), (9.0, 9.1, 9.2)]
    assert offsets([ours, theirs])[1].uncertainty >= 0.0


def test_a_skewed_clock_is_named() -> None:
    three = ranks(finding(1), finding(1), finding(1))
    good = [Offset(rank=r, seconds=s, uncertainty=1e-3) for r, s in enumerate((0.0, 2e-4, -1e-4))]
    assert judge_clocks(three, good).level == "ok"
    bad = [*good[:2], Offset(rank=2, seconds=-7.5, uncertainty=1e-3)]
    found = judge_clocks(three, bad)
    assert found.level == "note" and found.text.startswith("[node1:2] -7.5 s (± 0.001 s) from the others: ")


def test_a_skewed_clock_of_rank_0_is_rank_0s() -> None:
    three = ranks(finding(1), finding(1), finding(1))
    bad = [Offset(rank=r, seconds=s, uncertainty=1e-3) for r, s in enumerate((0.0, 30.0, 30.0))]
    assert judge_clocks(three, bad).text.startswith("[node0:0] -30 s")
