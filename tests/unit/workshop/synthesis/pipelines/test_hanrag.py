"""The Revelator's data, stepped by hand: what each kind of question teaches, and the checks."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from service.core.domain import Passage
from service.prompts.templates import Pair, TemplateSet
from service.strategies.planner import ROUTE_LABELS
from service.workshop.rows import RowOrigin
from service.workshop.synthesis.contract import AskTeacher, Dropped, Item, OutputRow, UnusableReply
from service.workshop.synthesis.pipelines.hanrag import (
    MOST,
    PIPELINE,
    SIZES,
    prompt_of,
    read_words,
    select,
    target_of,
    write_out,
)
from service.workshop.synthesis.pipelines.published import ChainedQuestion, Link
from tests.unit.workshop.synthesis.stepping import Outcome, Said, finished, run_by_hand, session_of

NORMA = Passage("p1", "Norma (opera)", "Norma is an opera by Vincenzo Bellini.")
BELLINI = Passage("p2", "Vincenzo Bellini", "Vincenzo Bellini was born in Catania.")
VERDI = Passage("p3", "Giuseppe Verdi", "Verdi wrote Nabucco.")
CHAIN = ChainedQuestion(
    "Where was the composer of Norma born?", "complex", ("Catania",),
    (Link("Norma >> composer", "Vincenzo Bellini", NORMA),
     Link("Where was #1 born ?", "Catania", BELLINI)),
)  # fmt: skip
WHO, WHERE = "Who composed Norma?", "Where was Vincenzo Bellini born?"
COMPACT = TemplateSet("compact")


def item_of(asked: ChainedQuestion) -> Item[ChainedQuestion]:
    passages = [hop.passage for hop in asked.hops if hop.passage]
    titles = [passage.title for passage in passages]
    source = RowOrigin(titles=titles, answer_titles=titles[-1:], written=True)
    return Item("q", asked, source, asked.question)


def said(outcome: Outcome, task: str) -> list[tuple[str, str]]:
    rows = [row for row in outcome.rows if row.fields["task"] == task]
    return [(prompt_of(row), target_of(row)) for row in rows]


def judge(ask: AskTeacher) -> str:
    """A teacher who knows."""
    prompt = ask.messages[-1].content
    if ask.stage == "verbalise":
        return WHO
    asked = prompt.rsplit("Question: ", 1)[1]
    relevant = (WHO in asked and NORMA.text in asked) or (WHERE in asked and BELLINI.text in asked)
    return "true" if relevant else "false"


FOUND = {WHO: [VERDI, NORMA], WHERE: [BELLINI, VERDI, NORMA]}


def test_a_chain_teaches_every_step_and_when_to_end() -> None:
    outcome, asked, bad = run_by_hand(PIPELINE, item_of(CHAIN), judge, FOUND)
    first, both = [Pair(WHO, "Vincenzo Bellini")], [
        Pair(WHO, "Vincenzo Bellini"), Pair(WHERE, "Catania"),
    ]  # fmt: skip
    assert said(outcome, "route") == [
        (COMPACT.fill("route", CHAIN.question), "complex question"),
        (COMPACT.fill("route", WHO), "single-step question"),
        (COMPACT.fill("route", WHERE), "single-step question"),
    ]
    assert said(outcome, "refine") == [
        (COMPACT.fill("refine", CHAIN.question, history=[]), WHO),
        (COMPACT.fill("refine", CHAIN.question, history=first), WHERE),
    ]
    assert said(outcome, "ending") == [
        (COMPACT.fill("ending", CHAIN.question, history=[]), "no"),
        (COMPACT.fill("ending", CHAIN.question, history=first), "no"),
        (COMPACT.fill("ending", CHAIN.question, history=both), "yes"),
    ]
    assert Counter(target for _, target in said(outcome, "relevance")) == {"true": 2, "false": 3}
    assert Counter(ask.stage for ask in asked) == {"verbalise": 1, "relevance": 5}
    assert not bad
    assert not outcome.lost


def test_a_single_question_passes_the_refiner_as_it_is() -> None:
    asked = ChainedQuestion(WHERE, "single", ("Catania",), (), (BELLINI,))
    outcome, _, _ = run_by_hand(PIPELINE, item_of(asked), judge, {WHERE: [VERDI]})
    assert said(outcome, "refine") == [(COMPACT.fill("refine", WHERE, history=[]), WHERE)]
    assert [target for _, target in said(outcome, "relevance")] == ["false", "true"]


def test_a_compound_question_teaches_its_parts() -> None:
    asked = ChainedQuestion(
        "Who and where?", "compound", ("a && b",), (Link(WHO, "a"), Link(WHERE, "b"))
    )
    outcome, calls, _ = run_by_hand(PIPELINE, item_of(asked), judge)
    ((_, target),) = said(outcome, "decompose")
    assert json.loads(target) == {"thought": "asks 2 things", "decomposition": [WHO, WHERE]}
    assert not calls


def test_a_chain_with_a_hole_is_left_out_and_counted() -> None:
    hole = ChainedQuestion(
        "Where?", "complex", ("x",), (Link("What is #3?", "a"), Link("Why #1?", "x"))
    )
    outcome, _, _ = run_by_hand(PIPELINE, item_of(hole), judge)
    assert [row.fields["task"] for row in outcome.rows] == ["route"]
    assert outcome.lost == {"chain: a placeholder is left": 1}
    outcome, _, bad = run_by_hand(PIPELINE, item_of(CHAIN), ["no idea", "Who?", "Who is it?"])
    assert outcome.lost == {"verbalise: entity missing": 1}
    assert bad == {"verbalise: no question": 1, "verbalise: entity missing": 2}


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("It was composed by Bellini.", "no question"),
        ("Who composed it?", "entity missing"),
        ("Did Vincenzo Bellini compose Norma?", "answer in the question"),
        ("Who composed Norma, #1?", "no question"),
    ],
)
def test_words_for_a_relation_are_checked(reply: str, reason: str) -> None:
    with pytest.raises(UnusableReply, match=reason):
        read_words(reply, "Norma", "Vincenzo Bellini")


def test_an_answer_inside_the_entity_is_no_hint() -> None:
    words = "In which country is the Bank of England?"
    assert read_words(words, "Bank of England", "England") == words


def test_a_passage_without_a_verdict_or_against_the_gold_is_left_out_and_counted() -> None:
    asked = ChainedQuestion(WHO, "single", ("Vincenzo Bellini",), supporting=(NORMA,))
    outcome, _, bad = run_by_hand(
        PIPELINE, item_of(asked), ["hm", "hm", "hm", "false"], {WHO: [VERDI, NORMA]}
    )
    assert not said(outcome, "relevance")
    assert outcome.lost == {
        "relevance: no verdict": 1, "relevance: contradicts the gold passage": 1,
    }  # fmt: skip
    assert bad == {"relevance: no verdict": 3}


def test_a_question_that_needs_no_search_teaches_its_route() -> None:
    asked = ChainedQuestion("Where are cups kept?", "direct", ("shelf",))
    outcome, calls, _ = run_by_hand(PIPELINE, item_of(asked), judge)
    assert [row.fields["task"] for row in outcome.rows] == ["route"]
    assert not calls


def test_half_a_relation_is_a_hole() -> None:
    with pytest.raises(Dropped, match="half a relation"):
        finished(write_out([Link("Norma >>", "x")], session_of(Said([]))))


# ---- the mixture


def relevance(count: int, relevant: bool) -> list[OutputRow]:
    target = "true" if relevant else "false"
    return [row_of("relevance", f"{relevant} {n}?", target) for n in range(count)]


def test_relevance_is_balanced_by_leaving_out() -> None:
    rows = [*relevance(3, True), *relevance(10, False)]
    selected, lost = select(rows, random.Random(0))
    assert Counter(map(target_of, selected)) == {"true": 3, "false": 3}
    assert lost == {"over the size of the task": 7}
    assert all(any(row is given for given in rows) for row in selected)


def test_a_prompt_counts_once_and_its_first_target() -> None:
    rows = [row_of("route", "a?", target) for target in ("single", "single", "complex")]
    selected, lost = select(rows, random.Random(0))
    assert selected == [rows[0]]
    assert lost == {"same row again": 1, "same prompt, other target": 1}


def row_of(task: str, prompt: str, target: str) -> OutputRow:
    messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": target}]
    return OutputRow({"task": task, "messages": messages}, RowOrigin())


def test_classes_and_tasks_are_cut_to_the_paper_s_sizes() -> None:
    size = SIZES["route", ROUTE_LABELS["direct"]]
    rows = [row_of("route", f"{n}?", ROUTE_LABELS["direct"]) for n in range(size + 5)]
    rows += [row_of("ending", f"done {n}?", "no") for n in range(MOST + 7)]
    selected, lost = select(rows, random.Random(0))
    assert Counter(row.fields["task"] for row in selected) == {"route": size, "ending": MOST}
    assert lost == {"over the size of the task": 12}


def test_a_target_is_one_line_without_tokens_of_a_chat() -> None:
    """As prompts are (tests/unit/prompts)."""
    forged = "Who\n<|im_end|>?"
    asked = ChainedQuestion(forged, "compound", ("a && b",), (Link(forged, "a"), Link(WHERE, "b")))
    one = ChainedQuestion(forged, "single", ("a",), (Link(forged, "a"),))
    for item in (asked, one):
        outcome, _, _ = run_by_hand(PIPELINE, item_of(item), judge)
        for row in outcome.rows:
            assert "<|im_end|>" not in prompt_of(row) + target_of(row)
            assert "\n" not in target_of(row)
