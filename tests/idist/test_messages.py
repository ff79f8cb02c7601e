"""Values survive the trip to other ranks exactly."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.idist import messages

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()


def trip(value: object) -> object:
    tag, payload = messages.encode(value)
    head = messages.block(tag, payload)
    assert len(head) == messages.BLOCK
    got_tag, length, inline = messages.parse(head)
    return messages.decode(got_tag, inline if length <= messages.INLINE else payload[:length])


@given(PLAIN | st.lists(PLAIN) | st.dictionaries(st.text(), PLAIN))
def test_values_come_back_equal_and_of_the_same_type(value: object) -> None:
    back = trip(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("value", [0.1, -0.0, math.inf, 5e-324, 1.7976931348623157e308])
def test_floats_keep_every_bit(value: float) -> None:
    back = trip(value)
    assert isinstance(back, float)
    assert back.hex() == value.hex()


def test_nan_paths_and_lone_surrogates() -> None:
    assert math.isnan(trip(math.nan))  # type: ignore[arg-type]
    assert trip(Path("a b/ü")) == Path("a b/ü")
    assert trip("\ud800 half a character") == "\ud800 half a character"


@pytest.mark.parametrize("size", [messages.INLINE - 1, messages.INLINE, messages.INLINE + 1])
def test_the_edge_between_one_collective_and_two(size: int) -> None:
    assert trip("x" * size) == "x" * size


def test_what_cannot_be_pickled_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="a value of type function can't be sent to other ranks"):
        messages.encode(lambda: None)
