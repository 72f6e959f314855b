"""The answer in the reader's JSON."""

from __future__ import annotations

import pytest

from service.strategies.efficientrag import answer_in


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
