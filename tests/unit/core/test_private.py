"""What a question sends is taken out of what is said meanwhile, and nothing else is."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

from service.core.private import LEAST, WITHHELD, hold, withhold

PROMPT = 'Question: Who composed the opera Norma?\nDoc1: "Norma was first given in 1831."'


def held(text: str) -> str:
    def run() -> str:
        hold("question", "Who?")
        hold("prompt", "an earlier prompt of this question")
        hold("prompt", PROMPT)
        return withhold(text)

    return copy_context().run(run)


def test_whole_texts_and_long_runs_are_withheld() -> None:
    assert held("failed on Who? at once") == f"failed on {WITHHELD} at once"
    assert held(f"said {PROMPT}") == f"said {WITHHELD}"
    assert held("line 3: 'composed the opera Norma' is wrong") == f"line 3: '{WITHHELD}' is wrong"
    escaped = held(f"{PROMPT!r}")
    assert "Norma" not in escaped


def test_other_words_stay() -> None:
    for text in ("answered 503: overloaded", "Norma", "an earlier prompt of this question", ""):
        assert held(text) == text
    assert len("opera Norma") < LEAST


def test_a_task_keeps_its_own() -> None:
    async def ask(question: str) -> str:
        hold("question", question)
        await asyncio.sleep(0)
        return withhold("Who? What?")

    async def both() -> list[str]:
        return await asyncio.gather(ask("Who?"), ask("What?"))

    assert asyncio.run(both()) == [f"{WITHHELD} What?", f"Who? {WITHHELD}"]
    assert withhold("Who? What?") == "Who? What?"
