"""pydantic-ai: an agent on the chat model; citations, which that model drops, on the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from cells import BASE, KEY, MODEL, QUESTION, Answer, run, told
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.messages import TextPart, TextPartDelta
from pydantic_ai.models.openai import (
    OpenAIChatModel,
    OpenAIResponsesModel,
    OpenAIResponsesModelSettings,
)
from pydantic_ai.providers.openai import OpenAIProvider

PROVIDER = OpenAIProvider(base_url=BASE, api_key=KEY)
CHAT = OpenAIChatModel(MODEL, provider=PROVIDER)


def weather(city: str) -> str:
    """The weather in a city."""
    raise AssertionError(city)


async def parts(question: str) -> AsyncIterator[str]:
    async with Agent(CHAT).run_stream_events(question) as events:
        async for event in events:
            part = getattr(event, "part", None) or getattr(event, "delta", None)
            if event.event_kind == "part_start" and isinstance(part, TextPart):
                yield part.content
            elif event.event_kind == "part_delta" and isinstance(part, TextPartDelta):
                yield part.content_delta
            else:
                yield ""


async def chat() -> dict[str, Any]:
    return told((await Agent(CHAT).run(QUESTION)).output)


async def tools() -> dict[str, Any]:
    return told((await Agent(CHAT, tools=[weather]).run(QUESTION)).output)


async def structured() -> dict[str, Any]:
    agent = Agent(CHAT, output_type=NativeOutput(Answer))
    return {"object": (await agent.run(QUESTION)).output.model_dump()}


async def citations() -> dict[str, Any]:
    settings = OpenAIResponsesModelSettings(openai_include_raw_annotations=True)
    agent = Agent(OpenAIResponsesModel(MODEL, provider=PROVIDER), model_settings=settings)
    found = await agent.run(QUESTION)
    cited = [
        each.get("url") or each["filename"]
        for part in found.response.parts
        for each in (part.provider_details or {}).get("annotations", [])
    ]
    return told(found.output, cited)


run(parts, chat=chat, tools=tools, structured=structured, citations=citations)
