"""Questions in the shapes of the public sets, and the lines that are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.workshop.synthesis.contract import Item
from service.workshop.synthesis.pipelines.published import ChainedQuestion, read_questions
from tests.unit.workshop.synthesis.stepping import Read, read_by

BELLINI = {"id": "p2", "title": "Vincenzo Bellini", "text": "Vincenzo Bellini was born in Catania."}
NORMA = {"id": "p1", "title": "Norma (opera)", "text": "Norma is an opera by Vincenzo Bellini."}
HOPS = [
    {"question": "Norma >> composer", "answer": "Vincenzo Bellini", "passage_id": "p1"},
    {"question": "Where was #1 born?", "answer": "Catania", "passage_id": "p2"},
]
NORMA_QUESTION = {"id": "q", "question": "Where was the composer of Norma born?",
                  "answer": "Catania", "answer_aliases": ["Catania, Sicily"],
                  "hops": HOPS, "supporting_passage_ids": ["p1", "p2"]}  # fmt: skip
MADE = {"pipeline": "compound", "teacher": "model", "item": "1"}


def read(*lines: Mapping[str, Any]) -> Read:
    return read_by(read_questions, enumerate(lines, 1))


def one(*lines: Mapping[str, Any]) -> Item[ChainedQuestion]:
    (item,) = read(*lines).items
    return item


def test_hops_name_passages_that_are_other_lines() -> None:
    item = one(NORMA_QUESTION, NORMA, BELLINI)
    asked = item.content
    assert asked.route == "complex"
    assert asked.answers == ("Catania", "Catania, Sicily")
    assert [hop.passage and hop.passage.title for hop in asked.hops] == [
        "Norma (opera)", "Vincenzo Bellini",
    ]  # fmt: skip
    assert item.source.titles == ["Norma (opera)", "Vincenzo Bellini"]
    assert item.source.answer_titles == ["Vincenzo Bellini"]
    assert (item.source.written, item.question) == (True, asked.question)


def test_a_passage_that_is_not_there_makes_no_item_since_it_might_be_held_out() -> None:
    reading = read(NORMA_QUESTION, NORMA)
    assert not reading.items
    assert reading.bad == [(1, "a passage that is not in the input")]


def test_musique_s_own_lines() -> None:
    item = one({
        "id": "2hop__1_2", "question": "Where was the composer of Norma born?",
        "answer": "Catania", "answer_aliases": [], "answerable": True,
        "paragraphs": [
            {"idx": 0, "title": "Other", "paragraph_text": "Nothing.", "is_supporting": False},
            {"idx": 1, "title": NORMA["title"], "paragraph_text": NORMA["text"]},
            {"idx": 2, "title": BELLINI["title"], "paragraph_text": BELLINI["text"]},
        ],
        "question_decomposition": [
            {"id": 1, "question": "Norma >> composer", "answer": "Vincenzo Bellini",
             "paragraph_support_idx": 1},
            {"id": 2, "question": "Where was #1 born?", "answer": "Catania",
             "paragraph_support_idx": 2},
        ],
    })  # fmt: skip
    assert [hop.answer for hop in item.content.hops] == ["Vincenzo Bellini", "Catania"]
    assert item.source.sources == ["2hop__1_2-01", "2hop__1_2-02"]


def test_2wiki_s_own_lines_are_asked_by_their_relations() -> None:
    item = one({
        "_id": "w", "question": "Where was the director of Harbour Lights born?",
        "answer": "Leeds", "type": "compositional",
        "context": [["Harbour Lights", ["A film ", "by Ada Verney."]],
                    ["Ada Verney", ["She was born in Leeds."]], ["Leeds", ["A city."]]],
        "supporting_facts": [["Harbour Lights", 1], ["Ada Verney", 0]],
        "evidences": [["Harbour Lights", "director", "Ada Verney"],
                      ["Ada Verney", "place of birth", "Leeds"],
                      ["Ada Verney", "shoe size", "38"]],
    })  # fmt: skip
    assert [hop.question for hop in item.content.hops] == [
        "Who directed Harbour Lights?", "Where was Ada Verney born?", "Ada Verney >> shoe size",
    ]  # fmt: skip
    assert item.source.titles == ["Harbour Lights", "Ada Verney"]


def test_a_compound_of_ours_brings_what_it_was_made_of() -> None:
    item = one({
        "id": "c", "question": "Who wrote Norma, and when?", "answer": "Bellini && 1831",
        "parts": [["Bellini"], ["1831"]], "sub_questions": ["Who wrote Norma?", "When was it?"],
        "route": "compound", "supporting_passage_ids": ["x"],
        "provenance": {**MADE, "titles": ["Norma (opera)", "x"], "answer_titles": ["x"]},
    })  # fmt: skip
    assert item.content.route == "compound"
    assert [hop.answer for hop in item.content.hops] == ["Bellini", "1831"]
    assert not item.source.written
    assert item.source.titles == ["Norma (opera)", "x"]
    assert item.source.answer_titles == ["x"]


@pytest.mark.parametrize(
    ("line", "route"),
    [
        ({"question": "where is a cup?", "choices": {"A": "shelf"}, "answer": "A"}, "direct"),
        ({"question": "who sang it", "answer": ["Nell Ward"]}, "single"),
        ({"question": "Can a cat swim?", "answer": True, "decomposition": ["a", "b"]}, "complex"),
        ({"question": "what", "answer": "x", "route": "direct"}, "direct"),
    ],
)
def test_routes_follow_from_the_shape(line: dict[str, Any], route: str) -> None:
    assert one(line).content.route == route


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"answer": "x"}, "question: Field required"),
        ({"question": "what"}, "has no answer"),
        ({"question": "what", "answer": "x", "hops": []}, "no list `hops`"),
        ({"question": "what", "answer": "x", "hops": ["a"]}, "a hop is no object"),
        ({"question": "what", "answer": "x", "hops": [{"question": "a"}]}, "no `answer`"),
        ({"question": "w", "answer": "x", "parts": ["x"], "sub_questions": ["a", "b"]}, "alike"),
        ({"question": "w", "answer": "x", "evidences": [["a", "b"]]}, "no list `supporting_facts`"),
        ({"question": "w", "answer": "x", "paragraphs": [{"idx": [1]}, {"idx": "1"}, 2],
          "question_decomposition": [{"paragraph_support_idx": [1]}]}, "without its paragraph"),
        ({"question": "w", "answer": "x", "evidences": [["a"]], "context": [["t", ["s"]]],
          "supporting_facts": [["t", 0]]}, "no triples"),
        ({"question": "w", "answer": "x", "provenance": 1}, "not that of a row"),
        ({"question": "w", "answer": "x", "provenance": {**MADE, "titles": [1]}}, "not that of a"),
        ({"title": "t", "text": "no id"}, "no `id`"),
    ],
)  # fmt: skip
def test_bad_lines_say_what_is_wrong(line: dict[str, Any], reason: str) -> None:
    reading = read({"id": "q", "question": "fine?", "answer": "yes"}, line)
    assert [item.id for item in reading.items] == ["q"]
    assert [number for number, _ in reading.bad] == [2]
    assert reason in reading.bad[0][1]


def test_an_id_counts_once() -> None:
    same = {"id": "q", "question": "fine?", "answer": "yes"}
    assert read(same, same).bad == [(2, "id of an earlier line")]


KEYS = st.sampled_from([
    "id", "_id", "question", "answer", "answers", "answer_aliases", "choices", "parts", "route",
    "hops", "passages", "passage", "passage_id", "supporting_passage_ids", "sub_questions", "text",
    "title", "provenance", "titles", "answer_titles", "question_decomposition", "paragraphs", "idx",
    "paragraph_support_idx", "paragraph_text", "evidences", "context", "supporting_facts",
])  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(KEYS, JSON, max_size=8), max_size=4))
def test_any_json_is_an_item_or_a_bad_line(lines: list[dict[str, Any]]) -> None:
    reading = read({"question": "fine?", "answer": "yes", "hops": HOPS[1:]}, BELLINI, *lines)
    assert all(reason for _, reason in reading.bad)
    assert len({item.id for item in reading.items}) == len(reading.items)
