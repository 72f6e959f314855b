"""instructor: every answer is a structure, in its mode for JSON schemas."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import instructor
from cells import BASE, KEY, MESSAGES, MODEL, TOOL, Answer, run, told
from openai import AsyncOpenAI

OPENAI = AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0)
CLIENT = instructor.from_openai(OPENAI, mode=instructor.Mode.JSON_SCHEMA)


async def ask(response_model: Any, **fields: Any) -> Any:
    return await CLIENT.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_model=response_model, max_retries=0, **fields
    )


async def parts(question: str) -> AsyncIterator[str]:
    """A stream without a structure: the chunks of OpenAI's client."""
    messages: Any = [{"role": "user", "content": question}]
    stream = await CLIENT.chat.completions.create(
        model=MODEL, messages=messages, response_model=None, stream=True
    )
    async for chunk in stream:
        yield (chunk.choices[0].delta.content or "") if chunk.choices else ""


async def chat() -> dict[str, Any]:
    return told((await ask(None)).choices[0].message.content)


async def tools() -> dict[str, Any]:
    return told((await ask(None, tools=[TOOL])).choices[0].message.content)


async def structured() -> dict[str, Any]:
    return {"object": (await ask(Answer)).model_dump()}


async def citations() -> dict[str, Any]:
    message = (await ask(None)).choices[0].message
    return told(message.content, [each.url_citation.url for each in message.annotations or []])


run(parts, chat=chat, tools=tools, structured=structured, citations=citations)
