"""LiteLLM as a library."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import litellm
from cells import BASE, KEY, MESSAGES, MODEL, TOOL, Answer, run, told

GIVEN = {"model": f"openai/{MODEL}", "api_base": BASE, "api_key": KEY}


async def message(**fields: Any) -> Any:
    return (await litellm.acompletion(**GIVEN, messages=MESSAGES, **fields)).choices[0].message


async def parts(question: str) -> AsyncIterator[str]:
    messages = [{"role": "user", "content": question}]
    async for chunk in await litellm.acompletion(**GIVEN, messages=messages, stream=True):
        yield chunk.choices[0].delta.content or ""


async def ask(offering: bool) -> dict[str, Any]:
    found = await message(tools=[TOOL] if offering else None)
    return told(found.content, [each["url_citation"]["url"] for each in found.annotations])


async def structured() -> dict[str, Any]:
    return {"object": json.loads((await message(response_format=Answer)).content)}


run(parts, ask, structured)
