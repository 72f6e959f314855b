"""Transcripts of a searching model, from chains and from traces."""

from __future__ import annotations

from typing import Any

import pytest

from service.core.domain import Passage
from service.strategies.searcher import PROTOCOLS, read_turn
from service.workshop.facts.rows import TrainingRow
from service.workshop.synthesis.contract import Dropped, OutputRow
from service.workshop.synthesis.pipelines.searcher import PIPELINE
from service.workshop.synthesis.teacher import Session
from tests.unit.workshop.synthesis.stepping import read_by

pytestmark = pytest.mark.anyio
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


async def rows_of(line: dict[str, Any], text: str = "Bellini.") -> list[OutputRow]:
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
    assert turns[-1].answer == "Catania"
    assert messages[0].content.endswith(QUESTION)
    assert messages[2].content.startswith("\n\n<information>Doc 1(Title: Norma) Bellini.")
    assert "Norma" in row.source.titles


@pytest.mark.parametrize(
    ("line", "text", "why"),
    [
        (CHAIN, "", "a query that finds nothing"),
        ({**CHAIN, "answers": ["Rome"]}, "Bellini.", "an answer that nothing shows"),
        ({"id": "q", "question": QUESTION, "answers": ["Catania"]}, "Bellini.", "no chain"),
    ],
)
async def test_what_shows_nothing_is_dropped(line: dict[str, Any], text: str, why: str) -> None:
    with pytest.raises(Dropped, match=why):
        await rows_of(line, text)


def test_an_unsupported_answer_is_no_gold() -> None:
    read = read_by(PIPELINE.read, [(1, {**BODY, "supported": False})])
    assert (read.items, len(read.bad)) == ([], 1)
