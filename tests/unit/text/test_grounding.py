"""What bears an answer: whole words, numbers and dates in whatever form."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.text import grounding
from service.text.grounding import bearing, bears, is_yes_no, support
from service.text.words import normal_words

NORMA = "Norma: Norma is an opera. It was composed by Vincenzo Bellini."
BORN = "Ingrid Solvang (4 March 1851 – 19 May 1920) was a manufacturer in Eskerby."
AMERICAN = "Blake Edwards (July 26, 1922 – December 15, 2010) was a director."
KENYA = "Mount Kenya: Its highest peak rises 5,199 metres above the sea; it has two lower ones."


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (NORMA, "Vincenzo Bellini"),
        (NORMA, "vincenzo  bellini."),
        (NORMA, "The opera"),
        (NORMA, "“Bellini”"),
        (KENYA, "5199"),
        (KENYA, "5,199 metres"),
        (KENYA, "2"),
        ("It rises 5199 m.", "5,199"),
        ("It has 22 rooms.", "twenty-two"),
        ("It has twenty-two rooms.", "22 rooms"),
        (BORN, "March 4, 1851"),
        (BORN, "4 March 1851"),
        (BORN, "4th of March 1851"),
        ("Maji May ፩ ነው።", "May ፩"),  # a digit that is no decimal
        (BORN, "Mar 4 1851"),
        (BORN, "1851-03-04"),
        (BORN, "March 1851"),
        (BORN, "4 March"),
        (BORN, "in 1851"),
        (BORN, "1920"),
        (AMERICAN, "July 26, 1922"),
        (AMERICAN, "26 July 1922"),
        (AMERICAN, "15 December 2010"),
        ("From March 3 to May 8 it is closed.", "3 March"),
        ("On March 4th, 1851 it opened.", "4 March 1851"),
        ("It opened on 1851-03-04.", "March 4, 1851"),
        ("In March 1851 it opened.", "1851"),
        ("Antonín Dvořák wrote it.", "Dvorak"),
        ("It lies in the U.S. state of Ohio.", "US"),
        ("Bellini's Norma", "Bellini"),
        ("It has 40% of them.", "40 percent"),
        ("It is the 20th century.", "20th century"),
        ("日本の首都は東京です。", "東京"),
        ("Die Straße heißt Ring.", "Strasse"),
        ("He may come on 5 June.", "5 June"),
        ("They are from The Who.", "The Who"),
    ],
)
def test_a_text_that_bears_an_answer(text: str, answer: str) -> None:
    assert bears(text, answer)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("He was known for it.", "no"),
        (NORMA, "Bell"),
        (NORMA, "Vincenzo Verdi"),
        (KENYA, "199"),
        (KENYA, "519"),
        (BORN, "5 March 1851"),
        (BORN, "March 1920"),
        (BORN, "1852"),
        ("In the 1990s it closed.", "1990"),
        ("It is 3.5 km long.", "5 km"),
        (NORMA, ""),
        (NORMA, "?!"),
        ("", "x"),
    ],
)
def test_a_text_that_does_not(text: str, answer: str) -> None:
    assert not bears(text, answer)


def test_a_list_is_borne_where_each_item_is() -> None:
    texts = ["Tacoma is a port.", "Washington is a state.", "Ohio is another."]
    assert support("Tacoma, Washington", "Where?", texts) == [0, 1]
    assert support("Tacoma and Ohio", "Where?", texts) == [0, 2]
    assert support("Tacoma, Nevada", "Where?", texts) == []


def test_a_sentence_is_borne_by_what_it_adds_to_the_question() -> None:
    asked = "Who composed the opera Norma?"
    texts = [NORMA, BORN]
    assert support("The opera Norma was composed by Vincenzo Bellini.", asked, texts) == [0]
    assert support("The opera Norma was composed by Giuseppe Verdi.", asked, texts) == []
    assert support("Bellini composed it in Milan in 1831, they say.", asked, texts) == []
    merged = "Mount Kenya is 5,199 metres tall and was first climbed in 1899."
    parts = ["5,199 metres", "1899"]
    asked = "How tall is Mount Kenya, and in which year was it first climbed?"
    assert support(merged, asked, parts) == [0, 1]
    missing = "Rosa Lindqvist edited the Tidewater Almanac; where it was printed was not found."
    asked = "Who edited the Tidewater Almanac, and where was it printed?"
    assert support(missing, asked, ["Rosa Lindqvist"]) == [0]


def test_yes_and_no_are_borne_by_texts_that_tell_of_what_is_asked() -> None:
    asked = "Are The Glass Orchard and A Winter Ferry both from the same country?"
    orchard, ferry = "The Glass Orchard is a film from Austria.", "A Winter Ferry is from Norway."
    assert support("no", asked, [orchard, ferry, "Known noise."]) == [0, 1]
    assert support("No, they are not.", asked, [orchard, ferry]) == [0, 1]
    again = "A Winter Ferry and The Glass Orchard were shown in one cinema."
    assert support("no", asked, [orchard, ferry, orchard, ferry]) == [0, 1]
    assert support("no", asked, [orchard, again, ferry]) == [1]
    assert support("no", asked, [orchard]) == []
    assert support("no", asked, ["He was known."]) == []
    assert support("yes", "do penguins fly over the sea?", ["Penguins fly under the sea."]) == [0]
    assert support("yes", "do penguins fly over the sea?", ["The sea is wide."]) == []


@pytest.mark.parametrize("answer", ["yes", "No.", "**Yes**", "No, both are", "yes – since 1900"])
def test_yes_or_no(answer: str) -> None:
    assert is_yes_no(answer)


@pytest.mark.parametrize("answer", ["No. 5", "No Country for Old Men", "None", "Yesterday", "know"])
def test_neither_yes_nor_no(answer: str) -> None:
    assert not is_yes_no(answer)


def test_a_title_that_begins_with_yes_is_found_as_a_whole() -> None:
    assert support("Yes, Minister", "Which series?", ["Yes Minister is a series."]) == [0]


PIECES = st.lists(
    st.sampled_from([
        "Vincenzo", "Bellini", "BELLINI", "the", "of", "May", "Mar", "march", "4", "04", "4th",
        "two", "twenty", "22", "1801", "1,801", "1'801", "1\u00a0801", "801", "1801.5",
        "1801-03-04", "U.S.", "US", "U's.S.", "'s", "’s.", "Dvořák", "Dvorak", "Straße",
        "strasse", "\u212aelvin", "kelvin", "İstanbul", "stanbul", "%", "percent", "40",
        "e\u0301", "²", "東京", "x_y", " ", " ", " ", " ", "", ". ", ", ", "(", ") ", "'", "-",
        "\n", "\u0301",
    ]),
    max_size=10,
)  # fmt: skip


@settings(max_examples=400)
@given(PIECES.map(" ".join) | PIECES.map("".join), PIECES.map("".join), st.data())
def test_a_look_at_the_letters_tells_what_the_words_tell(
    text: str, other: str, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, len(text)))
    answer = data.draw(st.sampled_from([other, text[begin : begin + 12], text[begin:]]))
    needle = " ".join(grounding._needle(answer))
    words = [f" {' '.join(normal_words(each))} " for each in (text, other)]
    expected = [index for index, each in enumerate(words) if needle and f" {needle} " in each]
    assert bearing([text, other], answer) == expected


def test_texts_that_hold_or_miss_an_answer_as_it_is_written_are_not_cut_into_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut: list[str] = []
    monkeypatch.setattr(grounding, "_plain", lambda text: cut.append(text) or "")
    accented = "Antonín Dvořák wrote it – in 1893."
    assert bearing([NORMA, accented, BORN], "Vincenzo Bellini") == [0]
    assert bearing([NORMA, accented, BORN], "1893") == [1]
    assert cut == []


@given(st.text(max_size=60), st.text(max_size=30), st.text(max_size=30))
def test_any_text_gives_a_reading(text: str, answer: str, question: str) -> None:
    assert set(support(answer, question, [text])) <= {0}


@given(st.integers(1, 28), st.integers(1, 12), st.integers(1000, 2100))
def test_a_date_is_one_date_in_every_usual_form(day: int, month: int, year: int) -> None:
    name = date(year, month, day).strftime("%B")
    forms = [
        f"{day} {name} {year}",
        f"{name} {day}, {year}",
        f"{year}-{month:02}-{day:02}",
        f"{day:02} {name[:3]} {year}",
    ]
    for said in forms:
        for answer in (*forms, f"{name} {year}", str(year), f"{day} {name}"):
            assert bears(f"It opened on {said}, they say.", answer), (said, answer)
