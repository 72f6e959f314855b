"""OpenAI's Agents SDK on chat completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from cells import BASE, KEY, MODEL, QUESTION, Answer, run, told
from openai import AsyncOpenAI

set_tracing_disabled(True)
CLIENT = AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0)


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    raise AssertionError(city)


def agent(**fields: Any) -> Agent[None]:
    return Agent("asks", model=OpenAIChatCompletionsModel(MODEL, CLIENT), **fields)


async def parts(question: str) -> AsyncIterator[str]:
    async for event in Runner.run_streamed(agent(), question).stream_events():
        if event.type == "raw_response_event":
            is_text = event.data.type == "response.output_text.delta"
            yield event.data.delta if is_text else ""


async def chat() -> dict[str, Any]:
    return told((await Runner.run(agent(), QUESTION)).final_output)


async def tools() -> dict[str, Any]:
    return told((await Runner.run(agent(tools=[weather]), QUESTION)).final_output)


async def structured() -> dict[str, Any]:
    found = await Runner.run(agent(output_type=Answer), QUESTION)
    return {"object": found.final_output.model_dump()}


async def citations() -> dict[str, Any]:
    found = await Runner.run(agent(), QUESTION)
    cited = [
        each.url
        for item in found.raw_responses[0].output
        if item.type == "message"
        for part in item.content
        for each in part.annotations
    ]
    return told(found.final_output, cited)


run(parts, chat=chat, tools=tools, structured=structured, citations=citations)
