"""Negatives, people's questions, and what may train."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from service.core.errors import InvalidRequest
from service.workshop.encoders.lessons import (
    HopLesson,
    Lesson,
    filter_rows,
    labeler_rows,
    text_words,
)
from service.workshop.encoders.people import mark_answer, musique_item
from service.workshop.encoders.rows import (
    held_out_items,
    negatives_of,
    training_items,
    with_negatives,
    write_rows,
)
from service.workshop.facts.corpora import Paragraph, RealQuestion, load_passages
from service.workshop.facts.rows import LabelerRow, read_rows_of
from service.workshop.facts.search import Nearest
from service.workshop.facts.splits import is_held_out

NAMES = [f"Film {number}" for number in range(100)]
KNOWN = next(name for name in NAMES if not is_held_out(name))
HELD_OUT = next(name for name in NAMES if is_held_out(name))


def passage(title: str, text: str = "A film.") -> Paragraph:
    return Paragraph(f"id of {title}", title, text, "t")


def item(*titles: str) -> Lesson:
    parts = [
        HopLesson(
            f"query {n}", passage(title), [0] * len(text_words(passage(title))), n == len(titles)
        )
        for n, title in enumerate(titles, 1)
    ]
    return Lesson("1", "bridge", "query 1", parts, [], list(titles), titles[-1])


def test_the_first_that_is_no_gold_passage_is_a_negative() -> None:
    made = item("A", "B")
    found = {
        "query 1": [passage("B"), passage("C"), passage("D")],
        "query 2": [passage("A"), passage("B")],
    }
    drawn = {
        (negative.query, negative.passage.title)
        for seed in range(30)
        for negative in negatives_of(made, found, random.Random(seed))
    }
    assert drawn == {("query 1", "C"), ("query 1", "D"), ("query 2", "A")}
    for seed in range(30):
        first = next(iter(negatives_of(made, found, random.Random(seed))))
        assert (first.query, first.passage.title) == ("query 1", "C")


def test_a_row_of_a_held_out_passage_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    write_rows(labeler_rows(item(KNOWN, HELD_OUT), []), file)
    with pytest.raises(InvalidRequest, match=rf"rows\.jsonl:1: .*'{HELD_OUT}'"):
        list(read_rows_of(LabelerRow, file, "train"))
    assert len(list(read_rows_of(LabelerRow, file, "test"))) == 2


def test_a_row_whose_words_are_not_the_encoders_is_refused(tmp_path: Path) -> None:
    (row,) = labeler_rows(item(KNOWN), [])
    file = tmp_path / "rows.jsonl"
    file.write_text(row.model_dump_json().replace('"A"', '"An"'), encoding="utf-8")
    with pytest.raises(InvalidRequest, match="split into other words than the encoders use"):
        list(read_rows_of(LabelerRow, file))


class NearBm25:
    """Negatives without embeddings."""

    def __init__(self, passages: list[Paragraph]) -> None:
        self.near = Nearest(passages)

    def top(self, queries: Sequence[str]) -> list[list[Paragraph]]:
        return [self.near.search(query) for query in queries]


def test_items_give_rows_of_their_side_of_the_split_only(data: Path) -> None:
    for make, side in ((training_items, "train"), (held_out_items, "test")):
        rng = random.Random(4)
        items = make(data, 60, rng)
        passages = load_passages(data, held_out=False if side == "train" else None)
        pairs = list(with_negatives(items, NearBm25(passages), rng))
        rows = [row for item, negatives in pairs for row in labeler_rows(item, negatives)]
        rows_of_both = [*rows, *(row for item, _ in pairs for row in filter_rows(item))]
        assert {row.side for row in rows_of_both} == {side}
        assert {row.tag for row in rows} == {"continue", "finish", "terminate"}


def test_an_answer_is_marked_where_its_sentence_shares_most_words() -> None:
    told = passage("Norma", "In 1831 it rained. Bellini wrote the opera Norma in 1831.")
    marks = mark_answer(told, "1831", "When was the opera written?")
    assert marks is not None
    words = text_words(told)
    assert [w for w, m in zip(words, marks.useful, strict=True) if m] == ["opera", "1831"]
    assert marks.answer.index(1) > words.index("Bellini")
    assert mark_answer(told, "1832", "When?") is None


def test_a_question_with_hops_loses_the_words_of_each_as_it_is_known() -> None:
    film = passage("Heat", "Heat was directed by Michael Mann.")
    man = passage("Michael Mann", "Michael Mann was born in Chicago.")
    row = {
        "id": "2hop",
        "hops": [
            {"question": "Heat >> director", "answer": "Michael Mann", "passage_id": film.id},
            {"question": "Where was #1 born?", "answer": "Chicago", "passage_id": man.id},
        ],
    }
    question = RealQuestion("Where was the director of Heat born?", "musique", row)
    made = musique_item(question, {film.id: film, man.id: man})
    assert made is not None
    assert made.written
    assert [part.last for part in made.parts] == [False, True]
    assert made.parts[1].query == "Where was the born ? Michael Mann"
    assert musique_item(question, {film.id: film}) is None
