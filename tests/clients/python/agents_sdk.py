"""OpenAI's Agents SDK on chat completions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from cells import BASE, KEY, MODEL, QUESTION, Answer, run, told, weather
from openai import AsyncOpenAI

set_tracing_disabled(True)
CLIENT = AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0)


def agent(**fields: Any) -> Agent[None]:
    return Agent("asks", model=OpenAIChatCompletionsModel(MODEL, CLIENT), **fields)


async def parts(question: str) -> AsyncIterator[str]:
    async for event in Runner.run_streamed(agent(), question).stream_events():
        if event.type == "raw_response_event":
            is_text = event.data.type == "response.output_text.delta"
            yield event.data.delta if is_text else ""


async def ask(offering: bool) -> dict[str, Any]:
    tools = [function_tool(weather)] if offering else []
    found = await Runner.run(agent(tools=tools), QUESTION)
    items = [item for item in found.raw_responses[0].output if item.type == "message"]
    notes = [each for item in items for part in item.content for each in part.annotations]
    return told(found.final_output, [each.url for each in notes])


async def structured() -> dict[str, Any]:
    found = await Runner.run(agent(output_type=Answer), QUESTION)
    return {"object": found.final_output.model_dump()}


run(parts, ask, structured)
