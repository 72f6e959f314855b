"""instructor over OpenAI's client, in its mode for JSON schemas."""

from __future__ import annotations

from typing import Any

import instructor
from cells import BASE, KEY, MESSAGES, MODEL, Answer, of_openai, run
from openai import AsyncOpenAI

OPENAI = AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0)
CLIENT = instructor.from_openai(OPENAI, mode=instructor.Mode.JSON_SCHEMA)


async def structured() -> dict[str, Any]:
    found = await CLIENT.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_model=Answer, max_retries=0
    )
    return {"object": found.model_dump()}


run(*of_openai(CLIENT, response_model=None), structured)
