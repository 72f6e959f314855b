"""Forward passes of inputs of nearly one length."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.encoders.in_process import PACK, PADDING, packs


def test_inputs_of_a_length_go_together() -> None:
    assert list(packs([100, 200, 101, 50, 100])) == [[3], [0, 4, 2], [1]]


def test_a_pass_has_its_most() -> None:
    assert list(packs([PACK // 2] * 3)) == [[0, 1], [2]]
    assert list(packs([2 * PACK, 1])) == [[1], [0]]


@given(st.lists(st.integers(1, 500)))
def test_every_input_is_in_one_pass_with_little_padding(lengths: list[int]) -> None:
    made = list(packs(lengths))
    assert sorted(index for pack in made for index in pack) == list(range(len(lengths)))
    for pack in made:
        padded = len(pack) * max(lengths[index] for index in pack)
        assert padded <= PACK
        assert sum(lengths[index] for index in pack) >= (1 - PADDING) * padded
