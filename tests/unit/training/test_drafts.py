"""DRAGIN drafts: what is copied stands in the block, what is withheld does not."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from service.loops.dragin.prompts import opening_layout
from service.prompting.templates import TemplateSet
from service.training.corpora import Passage
from service.training.distractors import Distractors
from service.training.drafts import (
    STATEMENTS,
    Drafts,
    asked,
    context,
    shipped_demonstrations,
    statement,
)
from service.training.facts import COMPILED, all_facts
from service.training.questions import SINGLE
from service.training.substitution import Names
from service.training.synthesis import Maker, hop_of
from service.training.tokenizer import BOS, EOS, Segment, encode, encode_raw, train_tokenizer


@pytest.fixture
def drafts(passages: list[Passage]) -> Drafts:
    rng = random.Random(0)
    facts = all_facts(passages)
    maker = Maker(facts, Names(facts), rng)
    return Drafts(maker, Distractors(passages, maker, rng), rng)


def test_every_kind_has_a_statement() -> None:
    assert STATEMENTS.keys() == SINGLE.keys() == COMPILED.keys()


def test_statement_names_the_asked_before_the_found(passages: list[Passage]) -> None:
    rng = random.Random(0)
    for fact in all_facts(passages):
        said = statement(hop_of(fact, rng))
        assert said.index(fact.subject) < said.rindex(fact.answer)
        assert said.endswith(".")


def test_years_are_in_and_dates_on(passages: list[Passage]) -> None:
    said = {statement(hop_of(fact, random.Random(0))) for fact in all_facts(passages)}
    assert "Green Valley Press was founded in 1921." in said
    assert "Ada Verney was born on 3 May 1890." in said


def test_given_passages_hold_their_facts_and_withheld_ones_do_not(drafts: Drafts) -> None:
    for _ in range(150):
        made = drafts.made()
        given = drafts.given(made)
        if given is None:
            continue
        shown = drafts.passages(made, given, 40)
        answers = {hop.answer for number, hop in enumerate(made.hops) if number in given}
        for number, hop in enumerate(made.hops):
            if number in given:
                assert any(hop.answer in text for text in shown)
            elif hop.answer not in answers and hop.answer != made.hops[0].fact.subject:
                gold = " ".join(hop.fact.passage.text.split()[:40])
                assert gold not in shown


def test_about_half_of_the_facts_are_withheld(drafts: Drafts) -> None:
    shown = facts = 0
    for _ in range(600):
        made = drafts.made()
        given = drafts.given(made)
        facts += len(made.hops)
        shown += len(given or ())
    assert 0.4 < shown / facts < 0.6


def test_a_row_ends_in_its_conclusion(drafts: Drafts) -> None:
    for _ in range(60):
        segments = drafts.row(30)
        text = " ".join(segment.text for segment in segments)
        assert re.search(r"So the answer is .+\.$", segments[-1].text)
        assert text.count("Question:") == text.count("Answer:") == text.count("So the answer is")
        blocks = [segment for segment in segments if segment.text.startswith("Context:")]
        assert len(blocks) <= 1
        assert not any(block.written for block in blocks)


def test_the_block_has_numbered_passages_and_the_reminder() -> None:
    first, *numbered, reminder = context(["a b", "c\nd"]).splitlines()
    assert (first, numbered) == ("Context:", ["[1] a b", "[2] c d"])
    assert reminder


def test_the_prompt_is_the_one_that_serves() -> None:
    layout = opening_layout(TemplateSet("tiny"), "Who wrote it?", may_decline=True)
    assert layout.prompt().text == shipped_demonstrations() + asked("Who wrote it?")
    shown = replace(layout, passages=("a b", "c"), written="It is so.").prompt().text
    head = shipped_demonstrations() + context(["a b", "c"])
    assert shown == f"{head}{asked('Who wrote it?')} It is so."


def test_raw_text_reads_as_one(passages: list[Passage]) -> None:
    tokenizer = train_tokenizer([p.text for p in passages], 400)
    segments = [
        Segment("Question: who?\nAnswer:", False),
        Segment("It is so.\n", True),
        Segment("Question: when?\nAnswer:", False),
        Segment("In 1921.", True),
    ]
    ids, written = encode_raw(tokenizer, segments)
    whole = "Question: who?\nAnswer: It is so.\nQuestion: when?\nAnswer: In 1921."
    assert ids == [BOS, *encode(tokenizer, whole), EOS]
    said = tokenizer.decode([token for token, own in zip(ids, written, strict=True) if own])
    assert said == "It is so. In 1921."
    assert written[-1]
