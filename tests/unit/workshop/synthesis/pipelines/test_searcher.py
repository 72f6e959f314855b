"""Transcripts of a searching model, from chains and from traces."""

from __future__ import annotations

import random
from typing import Any

import pytest

from service.core.domain import Passage
from service.strategies.searcher import PROTOCOLS, read_turn
from service.workshop.rows import TrainingRow
from service.workshop.synthesis.contract import Dropped, OutputRow, Session
from service.workshop.synthesis.pipelines.searcher import PIPELINE
from tests.unit.workshop.synthesis.stepping import read_by

QUESTION = "In which city was the composer of Norma born?"
PARTS = ["Who composed Norma?", "Where was #1 born?"]
TRIPLES = [["Norma", "composer", "Vincenzo Bellini"], ["Bellini", "place of birth", "Catania"]]
CHAIN = {"id": "q", "question": QUESTION, "answers": ["Catania"], "decomposition": PARTS,
         "evidences": TRIPLES}  # fmt: skip
BODY = {
    "id": "q", "question": QUESTION, "answer": "Catania", "supported": True,
    "steps": [
        {"query": None, "answer": None},
        {"query": "Who composed Norma?", "answer": "Vincenzo Bellini"},
        {"query": "Where was Vincenzo Bellini born?", "answer": "Catania"},
    ],
}  # fmt: skip


SHOWN = "Vincenzo Bellini, born in Catania."


async def rows_of(line: dict[str, Any], text: str = SHOWN) -> list[OutputRow]:
    async def find(query: str, top_k: int, retriever: str) -> tuple[Passage, ...]:
        return tuple(Passage(f"{query} {n}", "Norma", text) for n in range(top_k))[: len(text)]

    (item,) = read_by(PIPELINE.read, [(1, line)]).items
    session = Session(None, find, "key")  # type: ignore[arg-type]
    return list(await PIPELINE.work(item, session))


@pytest.mark.parametrize("line", [CHAIN, BODY], ids=["decomposition", "trace"])
async def test_a_chain_becomes_turns_that_the_loop_reads(line: dict[str, Any]) -> None:
    (row,) = await rows_of(line)
    provenance = {"pipeline": "searcher", "teacher": "rules", "item": "q"}
    messages = TrainingRow.model_validate({**row.fields, "provenance": provenance}).messages
    own = [message.content for message in messages if message.learn]
    turns = [read_turn(text, PROTOCOLS["search_r1"]) for text in own]
    assert [turn.calls for turn in turns] == [
        ("Who composed Norma?",), ("Where was Vincenzo Bellini born?",), (),
    ]  # fmt: skip
    assert [turn.thought for turn in turns] == [
        "Nothing is known yet.", "Who composed Norma? Vincenzo Bellini.",
        "Who composed Norma? Vincenzo Bellini. Where was Vincenzo Bellini born? Catania.",
    ]  # fmt: skip
    assert turns[-1].answer == "Catania"
    assert messages[0].content.endswith(f"{QUESTION}\n")
    assert messages[2].content.startswith(f"\n\n<information>Doc 1(Title: Norma) {SHOWN}")
    assert "Norma" in row.source.titles


@pytest.mark.parametrize(
    ("line", "text", "why"),
    [
        (CHAIN, "", "a query that finds nothing"),
        ({**CHAIN, "answers": ["Rome"]}, SHOWN, "an answer that nothing shows"),
        ({"id": "q", "question": QUESTION, "answers": ["Catania"]}, SHOWN, "no chain"),
    ],
)
async def test_what_shows_nothing_is_dropped(line: dict[str, Any], text: str, why: str) -> None:
    with pytest.raises(Dropped, match=why):
        await rows_of(line, text)


def own_turns(row: OutputRow) -> list[str]:
    return [message["content"] for message in row.fields["messages"] if message["learn"]]


async def test_an_answer_that_no_passage_shows_is_not_made_up() -> None:
    """The model is not taught the gold answer of a hop whose passages do not have it."""
    (row,) = await rows_of(CHAIN, "Norma is by Vincenzo Bellini.")
    *searches, last = own_turns(row)
    assert [read_turn(text, PROTOCOLS["search_r1"]).calls for text in searches] == [
        ("Who composed Norma?",), ("Where was Vincenzo Bellini born?",),
    ]  # fmt: skip
    assert last.endswith("do not say it. </think>\n<answer> no answer found </answer>")
    assert "Catania" not in "".join(own_turns(row))


async def test_a_hops_own_passage_is_shown() -> None:
    own = {"id": "own", "title": "Bellini", "text": "Bellini was born in Catania."}
    hops = [{"question": PARTS[0], "answer": "Vincenzo Bellini"},
            {"question": PARTS[1], "answer": "Catania", "passage": own}]  # fmt: skip
    line = {"id": "q", "question": QUESTION, "answers": ["Catania"], "hops": hops}
    (row,) = await rows_of(line, "Norma is by Vincenzo Bellini.")
    assert "Doc 1(Title: Norma)" in row.fields["messages"][2]["content"]
    assert "Bellini was born in Catania." in row.fields["messages"][4]["content"]
    assert own_turns(row)[-1].endswith("<answer> Catania </answer>")


async def test_few_rows_have_no_answer() -> None:
    (answering,) = await rows_of(CHAIN)
    (declining,) = await rows_of(CHAIN, "Norma is by Vincenzo Bellini.")
    rows = [declining, answering, declining, answering, answering, declining]
    kept, lost = PIPELINE.select(rows, random.Random(0))
    assert [row for row in kept if row is answering] == [answering] * 3
    assert len(kept) == 4
    assert list(lost.values()) == [2]


def test_an_unsupported_answer_is_no_gold() -> None:
    read = read_by(PIPELINE.read, [(1, {**BODY, "supported": False})])
    assert (read.items, len(read.bad)) == ([], 1)
