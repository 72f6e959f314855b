"""Auto-RAG's synthesis, stepped by hand: Algorithm 1, its filters, and the loop that replays it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.answer.events import PassagesFound, QueryIssued, Stop, Token
from service.core.domain import Passage
from service.engines.base import Message
from service.prompts.templates import TemplateSet
from service.strategies.autorag import Autorag
from service.strategies.autorag_dialogue import opening
from service.workshop.rows import RowOrigin, TrainingRow
from service.workshop.synthesis.contract import AskTeacher, Dropped, Item, UnusableReply
from service.workshop.synthesis.pipelines.autorag import (
    PIPELINE,
    decisions,
    needs_more,
    read_answer,
    read_note,
    read_query,
)
from service.workshop.synthesis.pipelines.published import ChainedQuestion, Link
from tests.support.asking import ScriptedRetriever, inquiry, loop_events
from tests.support.scripted import ScriptedGenerator, ScriptStep
from tests.unit.workshop.synthesis.stepping import Outcome, Reply, run_by_hand

QUESTION = "In which city was the composer of the opera Norma born?"
NORMA = Passage("p1", "Norma (opera)", "Norma is an opera by Vincenzo Bellini.")
BELLINI = Passage("p2", "Vincenzo Bellini", "Vincenzo Bellini was born in Catania.")
VERDI = Passage("p3", "Giuseppe Verdi", "Verdi wrote Nabucco.")
ITEM = Item(
    "q",
    ChainedQuestion(QUESTION, "complex", ("Catania",),
          (Link("Who composed Norma?", "Vincenzo Bellini", NORMA),
           Link("Where was #1 born?", "Catania", BELLINI))),
    RowOrigin(answer_titles=[BELLINI.title], written=True).beside([NORMA, BELLINI]),
    QUESTION,
)  # fmt: skip
FOUND = {"composer of Norma": [VERDI, NORMA], "Bellini birthplace": [NORMA, BELLINI]}
GOOD = [
    "I need to find the composer of Norma, then his place of birth.",
    "nothing like it", "Query: composer of Norma", "composer of Norma", "composer Norma opera",
    "The composer is Vincenzo Bellini. However, his birthplace is missing.",
    "Bellini birthplace", "Bellini birthplace", "Bellini birthplace", "Bellini birthplace",
    "Vincenzo Bellini was born in Catania.",
    "Catania",
]  # fmt: skip


def run(
    replies: Sequence[str | Reply],
    found: Mapping[str, Sequence[Passage]] = FOUND,
    item: Item[ChainedQuestion] = ITEM,
) -> tuple[Outcome, list[AskTeacher], Counter[str]]:
    return run_by_hand(PIPELINE, item, replies, found)


def messages_of(outcome: Outcome) -> list[Message]:
    (row,) = outcome.rows
    return [Message(m["role"], m["content"]) for m in row.fields["messages"]]


def test_a_dialogue_in_the_turns_and_markers_of_the_loop() -> None:
    outcome, asked, bad = run(GOOD)
    messages = messages_of(outcome)
    system = opening(TemplateSet("full"), "tuned", QUESTION)
    assert messages == [
        *system,
        Message("assistant", "Analysis: I need to find the composer of Norma, then his place of "
                             "birth.\n\nInitial Query: composer of Norma"),
        Message("user", f"Retrieved Document_1: {VERDI.text} {NORMA.text}"),
        Message("assistant", "Intermediate Answer_1: The composer is Vincenzo Bellini. However, "
                             "his birthplace is missing.\n\nRefined Query: Bellini birthplace"),
        Message("user", f"Retrieved Document_2: {BELLINI.text}"),
        Message("assistant", "Intermediate Answer_2: Vincenzo Bellini was born in Catania.\n\n"
                             "Final Answer: Catania"),
    ]  # fmt: skip
    assert not bad
    assert Counter(ask.stage for ask in asked) == {"reason": 3, "query": 8, "answer": 1}


def test_without_a_sub_answer_any_query_is_taken_by_the_item_s_own_chance() -> None:
    replies = [GOOD[0], "a", "b", "c", "d", "The documents tell of Catania.", "Catania"]
    queries = set()
    for seed in range(12):
        outcome, _, _ = run_by_hand(PIPELINE, ITEM, replies, {}, seed)
        again, _, _ = run_by_hand(PIPELINE, ITEM, replies, {}, seed)
        assert outcome == again
        queries.add(decisions(QUESTION, messages_of(outcome))[0])
    assert len(queries) > 1


@pytest.mark.parametrize(("hops", "most"), [(ITEM.content.hops, 10), ((), 5)])
def test_it_ends_after_the_most_turns_though_something_is_missing(
    hops: tuple[Link, ...], most: int
) -> None:
    turn = ["q", "q", "q", "q", "There is no information on it."]
    item = replace(ITEM, content=replace(ITEM.content, hops=hops))
    outcome, asked, _ = run([GOOD[0], *turn * most, "Catania"], {}, item)
    assert Counter(ask.stage for ask in asked)["query"] == 4 * most
    assert len(decisions(QUESTION, messages_of(outcome))) == most + 1


def test_another_answer_than_the_gold_one_drops_the_dialogue() -> None:
    with pytest.raises(Dropped, match="answer: not the gold one"):
        run([*GOOD[:-1], "Palermo"])


def test_chinese_characters_drop_the_item() -> None:
    with pytest.raises(Dropped, match="Chinese"):
        run([], item=Item("q", ChainedQuestion("诺尔玛", "single", ("x",)), RowOrigin()))
    with pytest.raises(Dropped, match="Chinese"):
        run([*GOOD[:-2], "Bellini 生于 Catania.", "Catania"])


def test_a_sample_that_is_no_query_is_one_less_and_without_any_the_item_is_dropped() -> None:
    cut = Reply("comp", "length")
    outcome, _, bad = run([GOOD[0], "a\nb", cut, "?!", *GOOD[4:]])
    assert outcome.rows
    assert bad == {
        "query: more than a query": 1, "query: truncated": 1, "query: no query": 1,
    }  # fmt: skip
    with pytest.raises(Dropped, match="query: truncated"):
        run([GOOD[0], cut, cut, cut, cut])


@pytest.mark.parametrize(
    ("note", "missing"),
    [
        ("Bellini wrote it. However, his birthplace is unknown.", True),
        ("There is no information on him.", True),
        ("I need to find his birthplace.", True),
        ("Let me Refine the query.", True),
        ("Bellini was born in Catania.", False),
        ("He was found in Catania, refined and defined.", False),
        ('She played in "Find Me Guilty" and lived in Rome.', False),
        ("She played in “However Long” in Rome.", True),
    ],
)
def test_what_shows_that_something_is_missing(note: str, missing: bool) -> None:
    assert needs_more(note) is missing


def test_labels_and_what_is_written_on_come_off() -> None:
    assert read_note("**Intermediate Answer_2:** He is\nItalian.\n\nFinal Answer: x") == (
        "He is Italian."
    )
    assert read_query('Refined Query: "Bellini birthplace"') == "Bellini birthplace"
    assert read_answer("Final Answer: Catania") == "Catania"
    with pytest.raises(UnusableReply, match="no short answer"):
        read_answer("long " * 30)


MARKERS = st.sampled_from([
    "Question:", "Analysis:", "Initial Query:", "Refined Query:", "Final Answer:", "###", "\n",
    "Retrieved Document_1:", "Intermediate Answer_1:", "<|im_end|>", "[INST]", "Query :", "**",
    "final answer is", "[Dense]", "subquery:",
])  # fmt: skip
HOSTILE = st.lists(st.one_of(MARKERS, st.text(max_size=12)), max_size=8).map(" ".join)


@given(question=HOSTILE, passage=HOSTILE, said=st.lists(HOSTILE, min_size=3, max_size=3))
def test_no_text_can_change_what_the_dialogue_says(
    question: str, passage: str, said: list[str]
) -> None:
    """Whatever stands in data or replies: a row replays to its own queries and answer, and each
    turn has its marker once."""
    item = Item("q", ChainedQuestion(question or "x", "single", ("Catania",)), RowOrigin())
    shown = Passage("p", "t", passage)
    notes = iter([said[0], said[1]])

    def reply(ask: AskTeacher) -> str:
        prompt, shots = ask.messages[-1].content, 0 if ask.stage == "query" else 8
        assert prompt.count("###") == shots
        assert sum(line.startswith("Question:") for line in prompt.split("\n")) == shots + 1
        if ask.stage == "reason":
            return next(notes, said[1])
        return said[2] if ask.stage == "query" else "Catania"

    class Everywhere(dict[str, Sequence[Passage]]):
        def get(self, query: str, default: object = None) -> Sequence[Passage]:  # type: ignore[override]
            return [shown]

    try:
        outcome, _, _ = run_by_hand(PIPELINE, item, reply, Everywhere())
    except Dropped:
        return
    messages = messages_of(outcome)
    turns = [m.content for m in messages if m.role == "assistant"]
    assert decisions(question, messages)[-1] == "Catania"
    assert all(turn.lower().count("query:") == 1 for turn in turns[:-1])
    assert all(m.content.count("\n") == (2 if m.role == "assistant" else 0) for m in messages)


async def walked(row: TrainingRow) -> None:
    """The model says the row's turns, the retriever finds its documents: the loop must send the
    row's messages and do what was synthesised."""
    messages = [Message(message.role, message.content) for message in row.messages]
    turns = [n for n, message in enumerate(messages) if message.role == "assistant"]
    *queries, answer = decisions(row.question, messages)
    assert queries
    assert answer
    found: dict[str, list[Passage]] = {}
    for query, at in zip(queries, turns, strict=False):
        assert query
        _, _, text = messages[at + 1].content.partition(": ")
        found.setdefault(query, []).extend([Passage(f"d{at}", "t", text)] if text else [])
    hits = {query: found[query] for query in sorted(found, key=len, reverse=True)}

    with ScriptedGenerator(
        [ScriptStep(messages[n].content) for n in turns], ordered=True
    ) as engine:
        asked = inquiry(
            engine, ScriptedRetriever(hits), row.question, prompts="full",
            loop="autorag", top_k=1, max_steps=20,
        )  # fmt: skip
        events = [e async for e in loop_events(Autorag, asked, row.question)]

    assert [list(r.messages) for r in engine.requests] == [messages[:n] for n in turns]
    assert [e.query for e in events if isinstance(e, QueryIssued)] == queries
    assert sum(isinstance(e, PassagesFound) for e in events) == len(queries)
    said = [e.text for e in events if isinstance(e, Token) and e.role == "answer"]
    assert "".join(said) == answer
    assert events[-1] == Stop(stopped_by="answer", answered=True)


async def test_the_loop_does_what_a_dialogue_says() -> None:
    (made,) = run(GOOD)[0].rows
    source = {"pipeline": "autorag", "teacher": "t", "item": "1"}
    await walked(TrainingRow.model_validate({**made.fields, "provenance": source}))
