"""The answer in the reader's JSON, whole and piece by piece."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.strategies.efficientrag import AnswerField, answer_in


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"answer": "Catania"}', "Catania"),
        ('```json\n{"Answer": "Catania",}\n```', "Catania"),
        ('Here you are: {"answer": "Catania"} and more', "Catania"),
        ('{"answer": 1831}', "1831"),
        ('{"answer": true}', "yes"),
        ('{"answer": ["Norma", "Aida"]}', "Norma, Aida"),
        ("{'answer': 'Catania'}", "Catania"),
        ('{"reply": "Catania"}', None),
        ('{"answer": ""}', None),
        ('{"answer": null}', None),
        ("Catania", None),
        ("", None),
        ('{"answer": "Cata', None),
    ],
)
def test_an_output_is_read_if_it_has_the_key(text: str, expected: str | None) -> None:
    assert answer_in(text) == expected


@given(st.text(), st.integers(1, 7), st.booleans())
def test_the_pieces_shown_are_the_answer(answer: str, size: int, ascii_only: bool) -> None:
    text = json.dumps({"answer": answer}, ensure_ascii=ascii_only)
    field = AnswerField()
    shown = [field.feed(text[at : at + size]) for at in range(0, len(text), size)]
    assert "".join(shown) == field.shown == answer.strip()
