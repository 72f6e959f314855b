"""Auto-RAG's loop walks every synthesised dialogue: the same prompts, queries and answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.answer.events import PassagesFound, QueryIssued, Stop, Token
from service.core.domain import Passage
from service.engines.base import Message
from service.strategies.autorag import Autorag
from service.workshop.facts.rows import TrainingRow, read_rows
from service.workshop.synthesis.pipelines.autorag import decisions
from tests.support.asking import ScriptedRetriever, inquiry, loop_events
from tests.support.scripted import ScriptedGenerator, ScriptStep
from tests.unit.workshop.synthesis.test_rounds import BY_NAME, ran

pytestmark = pytest.mark.anyio


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


async def test_dialogues_that_a_teacher_wrote(tmp_path: Path) -> None:
    await ran(BY_NAME["autorag"], tmp_path / "out.jsonl")
    rows = list(read_rows(tmp_path / "out.jsonl"))
    assert rows
    for row in rows:
        await walked(row)
