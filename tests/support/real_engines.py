"""What every real server of a language model is held to, whatever its model knows."""

from __future__ import annotations

import json

from service.engines.base import GenerationRequest, Generator, Message, complete

CHOICES = ("true", "false", "false friend")
SCHEMA = {
    "type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 1, "maxItems": 2,
}  # fmt: skip


async def check_choices(engine: Generator, *, raw: bool = False) -> None:
    for seed in range(4):
        request = GenerationRequest(
            messages=() if raw else (Message("user", "Is it?"),),
            prompt="Is it?" if raw else None,
            choices=CHOICES,
            temperature=2.0,
            seed=seed,
            max_tokens=16,
        )
        completion = await complete(engine, request)
        assert completion.text in CHOICES
        assert completion.usage.prompt_tokens > 0
    assert engine.capabilities.choices  # they were not refused


async def check_schema(engine: Generator) -> None:
    messages = (Message("user", "Two names?"),)
    request = GenerationRequest(messages=messages, json_schema=SCHEMA, max_tokens=120)
    assert 1 <= len(json.loads((await complete(engine, request)).text)) <= 2


async def check_stop(engine: Generator) -> None:
    plain = GenerationRequest(prompt="a b c d", max_tokens=30, logprobs=True)
    whole = (await complete(engine, plain)).text
    stop = whole[len(whole) // 2 :][:3]
    cut = GenerationRequest(prompt="a b c d", max_tokens=30, stop=(stop,), logprobs=True)
    completion = await complete(engine, cut)
    assert completion.text == whole[: whole.index(stop)]
    assert completion.finish == "stop"
    assert completion.usage.completion_tokens > 0
    assert completion.logprob is not None
    assert completion.logprob < 0
