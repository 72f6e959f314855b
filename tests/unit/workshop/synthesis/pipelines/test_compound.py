"""HANRAG's compound benchmark, stepped by hand (METHODS.md §1.5)."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from service.core.domain import Passage
from service.evaluation.datasets import read_question
from service.workshop.rows import RowOrigin
from service.workshop.synthesis.contract import Dropped, Item, OutputRow, UnusableReply
from service.workshop.synthesis.pipelines.compound import (
    PIPELINE,
    SPLITS,
    Entity,
    draw,
    read_compound,
    read_part,
    select,
    split_of,
)
from service.workshop.synthesis.pipelines.published import Link
from tests.unit.workshop.synthesis.stepping import HELD_OUT, KNOWN, read_by, run_by_hand

HEIGHT = Passage("h", KNOWN, f"{KNOWN} lies at 578 metres.")
FOUNDED = Passage("f", f"History of {KNOWN}", f"{KNOWN} was founded in 1913.")


def line(*documents: Passage, entity: str = KNOWN) -> dict[str, Any]:
    rows = [{"id": d.passage_id, "title": d.title, "text": d.text} for d in documents]
    return {"entity": entity, "documents": rows}


def items_of(*lines: dict[str, Any]) -> list[Item[Entity]]:
    reading = read_by(PIPELINE.read, enumerate(lines, 1))
    assert reading.bad == []
    return reading.items


def said(question: str, answer: str) -> str:
    return json.dumps({"Question": question, "Answer": answer})


HOW_HIGH = said(f"How high does {KNOWN} lie?", "578 metres")
WHEN = said(f"When was {KNOWN} founded?", "1913")
BOTH = f"How high does {KNOWN} lie, and when was it founded?"


def test_two_questions_become_one() -> None:
    (item,) = items_of(line(HEIGHT, FOUNDED))
    outcome, asked, bad = run_by_hand(PIPELINE, item, [HOW_HIGH, WHEN, BOTH])
    (row,) = outcome.rows
    assert row.fields["question"] == BOTH
    assert row.fields["answer"] == "578 metres && 1913"
    assert row.source.sources == ["h", "f"]
    assert row.side == "train"
    gold = read_question(row.fields, "1")
    assert (gold.parts, gold.route) == ((("578 metres",), ("1913",)), "compound")
    assert bad == {}
    assert asked[0].messages[0].content.endswith(f"Title: {KNOWN}\nDoc: {HEIGHT.text}\nOutput:")
    assert (
        asked[2]
        .messages[0]
        .content.endswith(
            f"Simple Question1: How high does {KNOWN} lie?\n"
            f"Simple Question2: When was {KNOWN} founded?\nCompound Question:"
        )
    )


def test_no_is_an_answer_and_not_asked_again() -> None:
    (item,) = items_of(line(HEIGHT, FOUNDED))
    outcome, asked, bad = run_by_hand(PIPELINE, item, [HOW_HIGH, WHEN, "No."])
    assert (outcome.rows, outcome.lost) == ([], {"combine: cannot be joined": 1})
    assert (len(asked), bad) == (3, {})


def test_the_same_question_again_is_left_out() -> None:
    (item,) = items_of(line(HEIGHT, HEIGHT))
    with pytest.raises(Dropped, match="fewer than two questions"):
        run_by_hand(PIPELINE, item, [HOW_HIGH, HOW_HIGH.upper().replace("QUESTION", "Question")])
    (alone,) = items_of(line(HEIGHT))
    with pytest.raises(Dropped, match="fewer than two documents"):
        run_by_hand(PIPELINE, alone, [])


def test_an_entity_keeps_the_documents_of_its_side() -> None:
    other = Passage("p", HELD_OUT, "x")
    (item,) = items_of(line(HEIGHT, other, FOUNDED))
    assert item.content.documents == (HEIGHT, FOUNDED)
    outcome, _, _ = run_by_hand(PIPELINE, item, [HOW_HIGH, WHEN, BOTH])
    assert outcome.lost == {"document of the other side": 1}
    (held_out,) = items_of(line(HEIGHT, other, FOUNDED, entity=HELD_OUT))
    assert held_out.content.documents == (other,)
    assert (held_out.side, split_of(held_out.content)) == ("test", "test")


def test_entities_are_gathered_from_passages() -> None:
    passages = [
        {"id": "1", "title": f"{KNOWN} (city)", "text": "A city."},
        {"id": "2", "title": "Lake Burley", "text": f"It lies in {KNOWN}, by the city."},
        {"id": "3", "title": "Act", "text": f"{KNOWN}ns are many."},
    ]
    by_name = {item.content.name: item.content.documents for item in items_of(*passages)}
    assert {name: [d.passage_id for d in docs] for name, docs in by_name.items()} == {
        KNOWN: ["1", "2"], "Lake Burley": ["2"], "Act": ["3"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (said("Tell me", "1913"), "no question"),
        (said("When?", "one two three four five six seven eight nine"), "answer too long"),
        (said("When?", "1914"), "answer not in the document"),
        (said("Was it in 1913?", "1913"), "answer in the question"),
        ('{"Question": "When?"}', "keys missing"),
        ('{"Question": "When?", "Answer": ["1913"]}', "`Answer` is no text"),
        ('{"Question": "When?", "Answer": " "}', "`Answer` is empty"),
    ],
)
def test_questions_that_are_no_good(text: str, reason: str) -> None:
    with pytest.raises(UnusableReply) as failure:
        read_part(text, FOUNDED)
    assert failure.value.reason == reason


PARTS = [
    Link(f"How high does {KNOWN} lie?", "578 metres", HEIGHT),
    Link(f"When was {KNOWN} founded?", "1913", FOUNDED),
]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("How high is it? And when was it founded in 1913?", "answer in the question"),
        (f"When was {KNOWN} founded", "no question"),
        (f"when was {KNOWN} founded?", "only one part"),
        ("!?", "no question"),
    ],
)
def test_compounds_that_are_no_good(text: str, reason: str) -> None:
    with pytest.raises(UnusableReply) as failure:
        read_compound(text, PARTS)
    assert failure.value.reason == reason


def test_six_different_sets_of_two_to_four() -> None:
    parts = [Link(f"{n}?", str(n), HEIGHT) for n in range(10)]
    drawn = draw(parts, random.Random(0))
    assert len({frozenset(part.question for part in chosen) for chosen in drawn}) == 6
    assert {len(chosen) for chosen in drawn} <= {2, 3, 4}
    assert drawn == draw(parts, random.Random(0))
    assert len(draw(parts[:3], random.Random(0))) == 4


def test_each_split_is_cut_to_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPLITS, "dev", 2)
    rows = [OutputRow({"split": "dev", "id": n}, RowOrigin()) for n in range(5)]
    rows += [OutputRow({"split": "train", "id": 9}, RowOrigin())]
    selected, lost = select(rows, random.Random(0))
    assert [row.fields["split"] for row in selected] == ["dev", "dev", "train"]
    assert lost == {"over the size of the split": 3}


def test_dev_is_cut_off_train_by_entity() -> None:
    splits = [split_of(Entity(f"entity {n}", ())) for n in range(4000)]
    trained = splits.count("train") + splits.count("dev")
    assert 0.11 < splits.count("dev") / trained < 0.17  # 8,000 of 58,000 are 0.138
