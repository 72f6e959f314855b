"""The probability of a label among the labels, from what a server tells of each token."""

from __future__ import annotations

import math
from typing import Any

import orjson
import pytest

from service.engines.base import Delta, GenerationRequest, Message
from service.engines.openai_wire import LabelChance, Mode, ReplyReader, build_body

LABELS = (
    "straightforward question",
    "single-step question",
    "compound question",
    "complex question",
)


def token(text: str, chance: float, **others: float) -> dict[str, Any]:
    """A token; the keys of `others` are texts, with _ for a space."""
    top = {text: chance} | {name.replace("_", " "): value for name, value in others.items()}
    return {
        "token": text,
        "logprob": math.log(chance),
        "top_logprobs": [{"token": t, "logprob": math.log(c)} for t, c in top.items()],
    }


def chance_of(*tokens: dict[str, Any], labels: tuple[str, ...] = LABELS) -> float | None:
    seen = LabelChance(labels)
    seen.see(tokens)
    return None if seen.logprob is None else round(math.exp(seen.logprob), 4)


def test_what_is_no_label_does_not_count() -> None:
    # 0.01 of all, but 0.01 of 0.0125 that would have begun a label
    assert chance_of(
        token("single", 0.01, The=0.9, straight=0.002, comp=0.0005), token("-step question", 0.5)
    ) == pytest.approx(0.8)


def test_other_spellings_of_the_same_label_count_with_it() -> None:
    first = token("single", 0.4, _single=0.2, sing=0.1, comp=0.3)
    assert chance_of(first, token("-step question", 0.9)) == pytest.approx(0.7)


def test_shares_multiply_where_labels_part_later() -> None:
    assert chance_of(
        token("comp", 0.5, single=0.5), token("ound", 0.2, lex=0.6), token(" question", 1.0)
    ) == pytest.approx(0.5 * 0.25)


def test_a_space_before_the_label_tells_nothing() -> None:
    assert chance_of(
        token(" ", 0.5, single=0.3), token("single", 0.3, complex=0.3), token("-step question", 1)
    ) == pytest.approx(0.5)


def test_two_routes_allowed_are_compared_with_each_other_alone() -> None:
    two = ("single-step question", "complex question")
    first = token("single", 0.1, straight=0.6, complex=0.1)
    assert chance_of(first, token("-step question", 0.9), labels=two) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "tokens",
    [
        [],
        [token("I", 0.9, single=0.1), token(" think", 0.9)],
        [{"token": "single-step question", "logprob": -9.0}],
        [{"token": "single-step question", "logprob": -9.0, "top_logprobs": []}],
        [token("single-step question", 0.0001, I=0.5, The=0.3)],  # so may the others be
        [token("comp", 0.9, single=0.1)],  # cut off
    ],
    ids=["nothing", "prose", "no list", "an empty list", "far down the list", "half a label"],
)
def test_what_cannot_be_known_is_unknown(tokens: list[dict[str, Any]]) -> None:
    assert chance_of(*tokens) is None


def reply(mode: Mode, *tokens: dict[str, Any]) -> Delta:
    request = GenerationRequest(
        messages=(Message("user", "q"),), choices=LABELS, logprobs=True, max_tokens=8
    )
    assert build_body(request, "m", mode)["top_logprobs"] == 20
    reader = ReplyReader(request, mode)
    for each in tokens:
        choice = {"delta": {"content": each["token"]}, "logprobs": {"content": [each]}}
        reader.read(orjson.dumps({"choices": [choice]}))
    reader.read(b"[DONE]")
    return reader.end()


def test_a_reply_gives_it_at_its_end() -> None:
    last = reply("vllm", token("single", 0.02, complex=0.02, I=0.9), token("-step question", 0.9))
    assert math.exp(last.logprob or 0) == pytest.approx(0.5)


def test_a_label_in_a_wrapper_too() -> None:
    last = reply(
        "json_schema",
        token('{"', 0.3, single=0.6),
        token('choice": "', 0.9),
        token("single", 0.02, complex=0.02, I=0.9),
        token('-step question"}', 0.9),
    )
    assert last.text == "single-step question"
    assert math.exp(last.logprob or 0) == pytest.approx(0.5)


def test_prose_around_a_label_has_no_probability() -> None:
    last = reply("none", token("It is a ", 0.9, single=0.1), token("single", 0.9, I=0.1))
    assert last.logprob is None
