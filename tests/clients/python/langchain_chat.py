"""langchain-openai; citations by the newer form, since its chat completions drop annotations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from cells import BASE, KEY, MODEL, QUESTION, TOOL, Answer, run, told
from langchain_openai import ChatOpenAI

GIVEN: dict[str, Any] = {"model": MODEL, "base_url": BASE, "api_key": KEY, "max_retries": 0}
CHAT = ChatOpenAI(**GIVEN)


async def parts(question: str) -> AsyncIterator[str]:
    async for chunk in CHAT.astream(question):
        yield chunk.text


async def ask(offering: bool) -> dict[str, Any]:
    model = CHAT.bind_tools([TOOL]) if offering else CHAT
    return told((await model.ainvoke(QUESTION)).text)


async def structured() -> dict[str, Any]:
    found = await CHAT.with_structured_output(Answer).ainvoke(QUESTION)
    return {"object": found.model_dump()}


async def cited() -> dict[str, Any]:
    message = await ChatOpenAI(**GIVEN, use_responses_api=True).ainvoke(QUESTION)
    notes = [each for block in message.content_blocks for each in block.get("annotations", [])]
    return told(message.text, [each.get("url") or each["title"] for each in notes])


run(parts, ask, structured, cited)
