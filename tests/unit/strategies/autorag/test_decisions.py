"""When a turn of Auto-RAG counts as a loop (METHODS.md §2.2)."""

from __future__ import annotations

import pytest

from service.strategies.autorag_dialogue import (
    is_looping,
)


@pytest.mark.parametrize(
    "text",
    [
        "1.1.1.1.1.1",
        "the the the the the the",
        "New York, New York, New York, New York",
        "He was born in Rome. He was born in Rome. He was born in Rome.",
        "so " * 40,
        "哈哈哈哈哈哈哈哈哈",
    ],
)
def test_loops(text: str) -> None:
    assert is_looping(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "New York, New York",
        "He was born in Rome. She was born in Rome. They were born in Rome.",
        "It has 100000000000 inhabitants.",
        "Intermediate Answer_1: It names her.\n\nRefined Query: her birthplace",
        "----------",
    ],
)
def test_no_loops(text: str) -> None:
    assert not is_looping(text)
