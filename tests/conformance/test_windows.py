"""The loops `fixed_length` and `fixed_sentence` against DRAGIN's own baselines, by a record.

Identical: the same queries in the same order, and the
same text. Where the official code goes on after ours has ended, because it asks a model that has
ended its text again, or ends earlier, within the answer (METHODS.md §7.4 #3, #4), one is the
beginning of the other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.answer.events import QueryIssued, StepEnd
from service.core.settings import Settings
from service.strategies import drafting
from service.strategies.base import Method
from service.strategies.drafting import FixedLength, FixedSentence
from tests.conformance import flare_parity as parity
from tests.conformance.dragin_parity import WordRetriever, load_passages, plain
from tests.stubs.token_engine import TokenEngine
from tests.support.asking import inquiry, loop_events

RECORD = Path(__file__).with_name("windows_official.json")
LIMIT, WINDOW = 48, 8
RUNS: dict[str, list[dict[str, Any]]] = json.loads(RECORD.read_text(encoding="utf-8"))
RETRIEVER = WordRetriever(load_passages())
LOOPS: dict[str, type[Method]] = {
    "fix-length-retrieval": FixedLength,
    "fix-sentence-retrieval": FixedSentence,
}


async def run_ours(loop: type[Method], row: dict[str, Any]) -> tuple[list[str], str]:
    settings = {"dragin": {"max_tokens": LIMIT}}
    asked = inquiry(
        TokenEngine(parity.writer(row)),
        RETRIEVER,  # type: ignore[arg-type]
        row["question"],
        settings=Settings.model_validate(settings),
        limits={
            "timeout_s": 3600,
            "max_llm_calls": 10**5,
            "max_retrievals": 10**5,
            "max_tokens": 10**9,
        },
        prompts="full",
        loop=loop.name,
        top_k=parity.PASSAGES_SHOWN,
        max_steps=20,
    )
    queries, windows, kind = [], [], ""
    async for event in loop_events(loop, asked, row["question"]):
        kind = getattr(event, "kind", kind)
        if isinstance(event, QueryIssued):
            queries.append(plain(event.query))
        elif isinstance(event, StepEnd) and kind == "retrieve":
            windows.append(event.answer or "")
    return queries, plain(" ".join(windows))


@pytest.mark.parametrize("method", sorted(LOOPS))
async def test_queries_and_text_are_those_of_the_official_code(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafting, "WINDOW", WINDOW)
    exact = 0
    for row in RUNS[method]:
        queries, text = await run_ours(LOOPS[method], row)
        theirs = [plain(turn["query"]) for turn in row["turns"]]
        shorter = min(len(queries), len(theirs))
        assert queries[:shorter] == theirs[:shorter], row["question"]
        assert text.startswith(plain(row["text"])) or plain(row["text"]).startswith(text)
        exact += (queries, text) == (theirs, plain(row["text"]))
    assert exact >= 9
