"""LiteLLM as a library."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import litellm
from cells import BASE, KEY, MESSAGES, MODEL, TOOL, Answer, run, told

GIVEN = {"model": f"openai/{MODEL}", "api_base": BASE, "api_key": KEY}


async def ask(**fields: Any) -> Any:
    found = await litellm.acompletion(**GIVEN, messages=MESSAGES, **fields)
    return found.choices[0].message


async def parts(question: str) -> AsyncIterator[str]:
    messages = [{"role": "user", "content": question}]
    async for chunk in await litellm.acompletion(**GIVEN, messages=messages, stream=True):
        yield chunk.choices[0].delta.content or ""


async def chat() -> dict[str, Any]:
    return told((await ask()).content)


async def tools() -> dict[str, Any]:
    return told((await ask(tools=[TOOL])).content)


async def structured() -> dict[str, Any]:
    return {"object": json.loads((await ask(response_format=Answer)).content)}


async def citations() -> dict[str, Any]:
    message = await ask()
    return told(message.content, [each["url_citation"]["url"] for each in message.annotations])


run(parts, chat=chat, tools=tools, structured=structured, citations=citations)
