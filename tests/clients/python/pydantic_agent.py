"""pydantic-ai: an agent on the chat model; citations, which that model drops, on the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from cells import BASE, KEY, MODEL, QUESTION, Answer, run, told, weather
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


async def parts(question: str) -> AsyncIterator[str]:
    async with Agent(CHAT).run_stream_events(question) as events:
        async for event in events:
            part = event.part if event.event_kind == "part_start" else getattr(event, "delta", None)
            if isinstance(part, TextPart):
                yield part.content
            else:
                yield part.content_delta if isinstance(part, TextPartDelta) else ""


async def ask(offering: bool) -> dict[str, Any]:
    agent = Agent(CHAT, tools=[weather] if offering else [])
    return told((await agent.run(QUESTION)).output)


async def structured() -> dict[str, Any]:
    agent = Agent(CHAT, output_type=NativeOutput(Answer))
    return {"object": (await agent.run(QUESTION)).output.model_dump()}


async def cited() -> dict[str, Any]:
    settings = OpenAIResponsesModelSettings(openai_include_raw_annotations=True)
    agent = Agent(OpenAIResponsesModel(MODEL, provider=PROVIDER), model_settings=settings)
    found = await agent.run(QUESTION)
    details = [part.provider_details or {} for part in found.response.parts]
    notes = [each for detail in details for each in detail.get("annotations", [])]
    return told(found.output, [each.get("url") or each["filename"] for each in notes])


run(parts, ask, structured, cited)
