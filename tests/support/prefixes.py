"""Requests whose prompts have common prefixes, for tests of engines with a prefix cache."""

from __future__ import annotations

import pytest

from service.engines.base import Completion, GenerationRequest, Message

RULES = "Judge whether the document answers the question. Reply true or false. " * 12
CLOSE = 1e-3


def judgement(number: int, question: str = "Who directed the film?") -> GenerationRequest:
    text = f"{RULES}\nQuestion: {question}\nDoc: The film number {number} is of {1900 + number}."
    return GenerationRequest(
        messages=(Message("user", text),), choices=("true", "false"), logprobs=True
    )


def requests() -> list[GenerationRequest]:
    """Return requests of every kind, most of which have common prefixes."""
    asked = [judgement(number) for number in range(6)]
    asked += [judgement(1, "Where was Leone born?"), judgement(1, "Where was Leone born?")]
    for number in range(4):
        prompt = RULES[: 300 + 90 * number] + "The film"
        asked.append(GenerationRequest(prompt=prompt, max_tokens=12, logprobs=True))
        asked.append(GenerationRequest(prompt=prompt, max_tokens=9, temperature=0.7, seed=number))
    return asked


def same(one: Completion, other: Completion) -> None:
    assert (one.text, one.finish, one.usage) == (other.text, other.finish, other.usage)
    assert one.logprob == pytest.approx(other.logprob, abs=CLOSE)
