from __future__ import annotations

import pytest

from service.retrieval.stores.records import fold, paired, query_words


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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("北京大学在哪里?", ["北京", "京大", "大学", "学在", "在哪", "哪里"]),
        ("iPhone手机 水", ["iphone", "手机", "水"]),
        ("東京タワー", ["東京", "京タ", "タワ", "ワー"]),
        ("서울대학교 is", ["서울", "울대", "대학", "학교", "is"]),
        ("น้ำ", ["นำ"]),  # without its tone
        ("Пётр don't", ["пётр", "don't"]),
    ],
)
def test_texts_without_spaces_are_searched_as_pairs(text: str, expected: list[str]) -> None:
    assert query_words(text) == expected
    assert paired("Bellini, né") == "Bellini, né"
