"""What a question sends is taken out of what is said meanwhile, and nothing else is."""

from __future__ import annotations

import asyncio
import random
from contextvars import copy_context

import pytest

from service.core.private import LEAST, WITHHELD, _without_runs, hold, withhold

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


def by_definition(text: str, source: str) -> str:
    """Mark every character that is in a run of LEAST, and let each stretch of them be one run."""
    starts = [place for place in range(len(text)) if text[place : place + LEAST] in source]
    starts = [place for place in starts if place + LEAST <= len(text)]
    told, end = "", 0
    for place, character in enumerate(text):
        begins = place in starts
        told += WITHHELD if begins and place >= end else ""
        end = place + LEAST if begins else end
        told += character if place >= end else ""
    return told


@pytest.mark.parametrize("letters", ["ab", "abcd\n", "abcdefghijklmnopqrstuvwxyz é"])
def test_runs_are_found_in_random_texts(letters: str) -> None:
    rng = random.Random(7)
    found = 0
    for _ in range(400):
        source = "".join(rng.choices(letters, k=rng.randint(0, 300)))
        parts = []
        for _ in range(rng.randint(0, 6)):
            first = rng.randint(0, len(source))
            quoted = source[first : first + rng.randint(1, 60)]
            parts.append(rng.choice([quoted, "".join(rng.choices(letters, k=rng.randint(0, 9)))]))
        for text in ("|".join(parts), "".join(parts)):
            told = _without_runs(text, source)
            assert told == by_definition(text, source)
            found += WITHHELD in told
    assert found > 100


class Searched(str):
    """Counts how often it is searched."""

    searches = 0

    def __contains__(self, part: str) -> bool:  # type: ignore[override]
        self.searches += 1
        return super().__contains__(part)


def test_a_long_prompt_is_not_searched_for_each_character_of_a_text() -> None:
    source = Searched(PROMPT * 1000)
    assert _without_runs("Traceback: " * 500 + PROMPT, source).endswith(WITHHELD)
    assert source.searches == 0
