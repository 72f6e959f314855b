"""Models that think before they answer get room for it, and only for it."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.settings import EngineSettings
from service.engines.base import (
    Completion,
    Delta,
    FinishReason,
    GenerationRequest,
    Message,
    TokenUsage,
    complete,
)
from service.engines.openai import OpenAIGenerator
from service.engines.reasoning import Reasoning, ReasoningMode, ThinkFilter, strip_thinking
from tests.stubs.openai_server import StubServer

PROMPT = 7  # tokens
FIELD = ["~Let", "~ me", "~ see", "~."]  # ~: in a field of its own
OPENED = ["<think>", "Let", " me", " see", "</think>"]
UNOPENED = ["Let", " me", " see", "</think>"]
LABEL = GenerationRequest(messages=(Message("user", "Helps?"),), max_tokens=3)


class Model:
    """Writes the same tokens at every call, up to the call's limit."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens
        self.limits: list[int] = []

    async def __call__(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        self.limits.append(request.max_tokens)
        written = self.tokens[: request.max_tokens]
        for token in written:
            thinks = token.startswith("~")
            yield Delta("" if thinks else token, reasoning=thinks)
        finish: FinishReason = "length" if len(written) < len(self.tokens) else "stop"
        yield Delta("", finish=finish, usage=TokenUsage(PROMPT, len(written)))


class _Engine:
    def __init__(self, reasoning: Reasoning, model: Model) -> None:
        self.reasoning, self.model = reasoning, model

    def stream(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        return self.reasoning.stream(request, self.model)


async def ask(reasoning: Reasoning, model: Model, request: GenerationRequest = LABEL) -> Completion:
    completion = await complete(_Engine(reasoning, model), request)  # type: ignore[arg-type]
    return Completion(completion.text.strip(), completion.finish, completion.usage)


WORDS = [f" w{n}" for n in range(30)]


@pytest.mark.parametrize(
    ("mode", "tokens", "said", "limits", "spent"),
    [
        ("auto", ["yes"], ("yes", "stop"), [3], 1),
        *(("on", [*own, "yes"], ("yes", "stop"), [53], len(own) + 1)
          for own in (FIELD, OPENED, UNOPENED)),
        *(("on", [*own, *WORDS], ("w0 w1 w2", "length"), [53], len(own) + 3)
          for own in (FIELD, OPENED, UNOPENED)),
        *(("off", [*own, "yes"], ("", "length"), [3], 3) for own in (FIELD, OPENED)),
        ("auto", [*["~hm"] * 100, "yes"], ("", "length"), [3, 53], 3 + 53),  # not for ever
    ],
)  # fmt: skip
async def test_what_one_call_may_write(
    mode: ReasoningMode, tokens: list[str], said: tuple[str, str], limits: list[int], spent: int
) -> None:
    model = Model(*tokens)

    told = await ask(Reasoning(mode, 50), model)

    assert (told.text, told.finish) == said
    assert model.limits == limits
    assert told.usage.completion_tokens == spent


@pytest.mark.parametrize("thoughts", [FIELD, OPENED], ids=["in a field", "in a block"])
async def test_a_call_that_ends_in_thinking_is_made_again_with_room(thoughts: list[str]) -> None:
    reasoning, model = Reasoning("auto", 50), Model(*thoughts, "yes")

    first = await ask(reasoning, model)
    second = await ask(reasoning, model)

    assert (first.text, first.finish) == (second.text, second.finish) == ("yes", "stop")
    assert model.limits == [3, 53, 53]  # it was learned
    whole = len(thoughts) + 1
    assert first.usage == TokenUsage(2 * PROMPT, 3 + whole)  # what was lost was spent all the same
    assert second.usage == TokenUsage(PROMPT, whole)


async def test_a_model_known_to_think_that_answers_at_once_keeps_to_its_tokens() -> None:
    reasoning = Reasoning("auto", 50)
    await ask(reasoning, Model("~hm", "yes"))

    told = await ask(reasoning, Model(*WORDS))

    assert (told.text, told.finish) == ("w0 w1 w2", "length")


async def test_raw_prompts_are_passed_through() -> None:
    raw = GenerationRequest(prompt="Once", max_tokens=3)
    model = Model("<think>", "a", "b", "c")

    completion = await complete(_Engine(Reasoning("on", 50), model), raw)  # type: ignore[arg-type]

    assert completion.text == "<think>ab"
    assert model.limits == [3]


async def served(server: StubServer, **settings: Any) -> list[Delta]:
    given = EngineSettings.model_validate({"kind": "openai", "urls": [server.url], **settings})
    engine = OpenAIGenerator("remote", given)
    try:
        return [delta async for delta in engine.stream(LABEL)]
    finally:
        await engine.aclose()


@pytest.mark.parametrize("mode", ["auto", "on"])
async def test_a_server_with_a_reasoning_parser(mode: ReasoningMode) -> None:
    async with StubServer(reply="yes", reasoning="Let me think about it .") as server:
        deltas = await served(server, reasoning=mode, reasoning_tokens=10)

    assert "".join(delta.text for delta in deltas) == "yes"
    assert sum(delta.reasoning for delta in deltas) >= 6
    assert [body["max_tokens"] for body in server.bodies] == ([3, 13] if mode == "auto" else [13])
    assert "chat_template_kwargs" not in server.bodies[0]


async def test_off_tells_the_chat_template_and_fields_of_ones_own_go_with_every_call() -> None:
    extra = {"top_k": 20, "chat_template_kwargs": {"thinking": "low", "x": 1}}
    async with StubServer(reply="yes") as server:
        await served(server, reasoning="off", extra_body=extra)

    (body,) = server.bodies
    assert body["chat_template_kwargs"] == {"enable_thinking": False, "thinking": "low", "x": 1}
    assert (body["max_tokens"], body["top_k"]) == (3, 20)
    assert body["messages"] == [{"role": "user", "content": "Helps?"}]


CASES = [
    ("Paris", "Paris"),
    ("<think>Hm, a river.</think>Paris", "Paris"),
    ("<think>\nHm.\n</think>\n\nParis is it.", "Paris is it."),
    ("<THINKING>no</THINKING> Paris", "Paris"),
    ("<reasoning>a < b</reasoning>Paris", "Paris"),
    ("Paris <think>was that right?</think>in France", "Paris in France"),
    ("<think>never closed", ""),
    ("a <b> c </b> <thin", "a <b> c </b> <thin"),
    ("x < y <", "x < y <"),
    ("<think>one</think><think>two</think>Paris", "Paris"),
    ("<think>one<think>two</think>one</think>Paris", "Paris"),
    ("Let me see.</think>Paris", "Paris"),
    ("Let me</think> see <think>more</think>Paris", "see Paris"),
    ("<think>a</think>b</think>Paris", "Paris"),
]


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def shown_of(pieces: Iterable[str]) -> str:
    """What stands at the end for someone who voids what turns out to be reasoning."""
    thinking, text = ThinkFilter(), ""
    for piece in pieces:
        shown = thinking.feed(piece)
        text = shown if thinking.take_unopened() else text + shown
    return text + thinking.flush()


@pytest.mark.parametrize(("text", "shown"), CASES)
@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_reasoning_is_removed_wherever_pieces_end(text: str, shown: str, size: int) -> None:
    assert shown_of(text[at : at + size] for at in range(0, len(text), size)) == shown


@given(
    parts=st.lists(
        st.sampled_from(["<think>", "</think>", "<reasoning>", "<", "<th", "/", "Paris", " ", ">"])
    ),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_pieces_do_not_matter(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    got = shown_of(pieces_of(text, cuts))

    assert got.strip() == shown_of([text]).strip() == strip_thinking(text)
    assert "think>" not in got


def test_text_is_shown_as_soon_as_it_cannot_become_a_tag() -> None:
    thinking = ThinkFilter()

    assert thinking.feed("Paris <") == "Paris "
    assert thinking.feed("thi") == ""
    assert thinking.feed("rd> it") == "<third> it"
