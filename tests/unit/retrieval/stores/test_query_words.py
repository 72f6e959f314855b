from __future__ import annotations

import pytest

from service.retrieval.stores.records import fold


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Bellini", "Bellini"),
        ("Bellíni", "Bellini"),
        ("Belli\u0301ni", "Bellini"),
        ("Ærøskøbing, Łódź, Straße", "AEroskobing, Lodz, Strasse"),
        ("ﬁn Ｅ", "fin E"),
        ("北京 Пётр 한국", "北京 Пётр 한국"),
        ("½ … “so”\u00a0", "½ … “so”\u00a0"),
        ("", ""),
    ],
)
def test_letters_with_marks_become_plain(text: str, expected: str) -> None:
    assert fold(text) == expected
