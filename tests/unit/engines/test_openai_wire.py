from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engines.base import GenerationRequest, Message, TokenUsage
from service.engines.openai_wire import (
    BadCompletion,
    ReplyReader,
    body_error,
    encode_body,
)

CHAT = GenerationRequest(messages=(Message("user", "Who?"),), logprobs=2)
KEYS = ["choices", "delta", "content", "text", "usage", "prompt_tokens", "error", "logprobs"]
KEYS += ["finish_reason", "message", "token_logprobs", "logprob", "top_logprobs", "reasoning"]
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(events=st.lists(JSON, max_size=4), label=st.booleans())
def test_no_json_breaks_the_reader(events: list[Any], label: bool) -> None:
    request = GenerationRequest(prompt="x", choices=("a",)) if label else CHAT
    reader = ReplyReader(request, "json_schema")

    with suppress(BadCompletion):
        for event in events:
            delta = reader.read(orjson.dumps(event))
            assert delta is None or isinstance(delta.text, str)
        assert reader.end().finish in ("stop", "length")


@given(data=st.binary(max_size=20))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    with suppress(BadCompletion):
        ReplyReader(CHAT, "none").read(data)
    assert len(body_error(data)) <= 200


@pytest.mark.parametrize("reply", ['{"choice": "a"', "a", '{"choice": 3}', "[]"])
def test_a_label_that_is_not_wrapped_as_asked_comes_as_it_is(reply: str) -> None:
    reader = ReplyReader(
        GenerationRequest(messages=CHAT.messages, choices=("a", "b")), "json_schema"
    )
    assert reader.read(orjson.dumps({"choices": [{"delta": {"content": reply}}]})) is None
    reader.read(b"[DONE]")

    assert reader.end().text == reply


@pytest.mark.parametrize("form", ["chat", "completion"])
def test_alternatives_of_each_token_are_read(form: str) -> None:
    asked = {"messages": CHAT.messages} if form == "chat" else {"prompt": "Who?"}
    request = GenerationRequest(**asked, logprobs=2)
    body = orjson.loads(encode_body(request, "m", "vllm"))
    if form == "chat":
        assert (body["logprobs"], body["top_logprobs"]) == (True, 2)
        top = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.0}]
        found = {"content": [{"token": "a", "logprob": -0.5, "top_logprobs": top}]}
        choice = {"delta": {"content": "a"}, "logprobs": found}
    else:
        assert body["logprobs"] == 2
        found = {"token_logprobs": [-0.5], "top_logprobs": [{"b": -1.0, "a": -0.5, "c": -3.0}]}
        choice = {"text": "a", "logprobs": found}
    delta = ReplyReader(request, "none").read(orjson.dumps({"choices": [choice]}))
    assert delta is not None
    assert (delta.logprob, delta.best) == (-0.5, ((-0.5, -1.0),))


def test_a_stream_may_end_by_a_finish_reason_alone() -> None:
    reader = ReplyReader(CHAT, "none")
    reader.read(b'{"choices": [{"delta": {"content": "a"}, "finish_reason": "length"}]}')

    last = reader.end()

    assert (last.finish, last.usage) == ("length", TokenUsage(0, 1))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"error": "too long"}', "too long"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"object": "error", "message": "gone"}', "gone"),
        (b"Bad\n gateway", "Bad gateway"),
        (b"", ""),
    ],
)
def test_errors_are_found_in_every_usual_shape(body: bytes, text: str) -> None:
    assert body_error(body) == text
