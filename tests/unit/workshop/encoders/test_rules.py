"""Items by rules: labels, next queries and tags on examples worked by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from service.workshop.encoders.lessons import (
    STAYS,
    Lesson,
    Negative,
    UsefulWord,
    filter_rows,
    info_of,
    labeler_rows,
    retyped,
    rewritten,
    text_words,
    worded,
)
from service.workshop.encoders.marks import mark_fact
from service.workshop.encoders.rules import FORMS, Rules
from service.workshop.facts.corpora import Paragraph
from service.workshop.facts.names import Names
from service.workshop.facts.patterns import all_facts
from service.workshop.facts.questions import Maker

NORMA = Paragraph(
    "norma", "Norma (opera)", "Norma is an opera. The music was composed by Vincenzo Bellini.", "t"
)
BELLINI = Paragraph(
    "bellini", "Vincenzo Bellini", "Vincenzo Bellini (born 3 November 1801 in Catania) was an "
    "Italian composer.", "t",
)  # fmt: skip
AIDA = Paragraph("aida", "Aida", "Aida is an opera. The music was composed by Giuseppe Verdi.", "t")


def rules(passages: Sequence[Paragraph], seed: int = 0, made: float = 0.0) -> Rules:
    rng = random.Random(seed)
    facts = all_facts(passages)
    maker = Maker(facts, Names(facts), rng)
    return Rules(maker, {p.id: p.title for p in passages}, rng, made=made)


def bridge() -> Lesson:
    """The worked example of METHODS.md §4.7, typed without changes."""
    for seed in range(50):
        item = rules([NORMA, BELLINI], seed).item("bridge")
        if item and item.question.endswith("?") and {"of", "Norma"} <= set(item.question.split()):
            return item
    pytest.fail("no seed draws it")


def test_marked_are_subject_ties_and_answer() -> None:
    (fact,) = [f for f in all_facts([NORMA]) if f.kind == "composer"]
    marks = mark_fact(fact)
    assert marks is not None
    words = text_words(NORMA)
    assert [w for w, m in zip(words, marks.useful, strict=True) if m] == [
        "Norma", "composed", "Vincenzo", "Bellini",
    ]  # fmt: skip
    assert sum(marks.answer) == 2


def test_a_bridge_goes_on_at_the_first_passage_and_ends_at_the_second() -> None:
    item = bridge()
    rows = list(labeler_rows(item, [Negative(item.question, AIDA)]))
    assert [(row.tag, row.passage.split(":")[0]) for row in rows] == [
        ("continue", "Norma (opera)"), ("finish", "Vincenzo Bellini"), ("terminate", "Aida"),
    ]  # fmt: skip
    assert rows[0].query == item.question
    assert not any(rows[2].labels)
    assert rows[2].provenance.titles == ["Norma (opera)", "Vincenzo Bellini", "Aida"]


def test_the_next_query_is_made_of_words_of_the_query_and_of_the_answer() -> None:
    item = bridge()
    (row,) = filter_rows(item)
    assert item.rewrites[0].result == item.parts[1].query
    assert item.parts[1].query.endswith("Vincenzo Bellini")
    assert not {"Norma", "composer"} & set(item.parts[1].query.split())
    assert "Vincenzo" in row.infos[-1] or "Vincenzo" in row.infos[0]
    assert set(item.parts[1].query.split()) <= set(row.words)


def test_a_wording_loses_the_phrase_of_the_hop_that_is_known() -> None:
    inner = "the director of Heat"
    outer = f"the father of {inner}"
    start = worded(f"When was {outer} born?", (inner, outer))
    assert start is not None
    first = rewritten(start, 1, [[UsefulWord("Heat", False), UsefulWord("Mann", True)]])
    assert first is not None
    infos, marks, after = first
    assert infos == ["Heat Mann"]
    assert after.text == "When was the father of born ? Mann"
    assert sum(marks) == len(after.tokens)
    second = rewritten(after, 2, [[UsefulWord("Mann", False), UsefulWord("Jack", True)]])
    assert second is not None
    assert second[2].text == "When was born ? Jack"
    assert {token.hop for token in second[2].tokens} == {STAYS, 3}


def test_an_info_that_tells_nothing_does_not_shift_the_hops() -> None:
    start = worded("Where is the spouse of Ada?", ("the spouse of Ada",))
    assert start is not None
    noisy = rewritten(start, 1, [[UsefulWord("Else", False)], [UsefulWord("Bob", True)]])
    assert noisy is not None
    assert noisy[2].text == "Where is ? Bob"
    assert noisy[2].tokens[-1].hop == 2


def test_retyping_keeps_the_hops_of_the_words_that_stay() -> None:
    start = worded("When was the director of Heat born?", ("the director of Heat",))
    assert start is not None
    for seed in range(60):
        typed = retyped(start, random.Random(seed))
        kept = {token.text.lower(): token.hop for token in typed.tokens}
        assert kept["heat"] == 1
        assert kept["born"] == STAYS


def test_every_form_gives_rows_that_hold(passages: list[Paragraph]) -> None:
    source = rules(passages, 3, made=0.7)
    made: dict[str, int] = {}
    for _ in range(40):
        for form in sorted(set(FORMS)):
            item = source.item(form)
            if item is None:
                continue
            made[form] = made.get(form, 0) + 1
            rows = list(labeler_rows(item, []))
            assert [row.tag for row in rows][-1] == "finish"
            assert all(row.tag == "continue" for row in rows[:-1])
            assert all(row.question == item.question for row in filter_rows(item))
            assert all(info_of(part) for part in item.parts)
    assert set(made) == set(FORMS)
