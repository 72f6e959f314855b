"""Forward passes of inputs of nearly one length."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.encoders.in_process import PACK, PADDING, packs


@given(st.lists(st.integers(1, 500)))
def test_every_input_is_in_one_pass_with_little_padding(lengths: list[int]) -> None:
    made = list(packs(lengths))
    assert sorted(index for pack in made for index in pack) == list(range(len(lengths)))
    for pack in made:
        padded = len(pack) * max(lengths[index] for index in pack)
        assert padded <= PACK
        assert sum(lengths[index] for index in pack) >= (1 - PADDING) * padded
