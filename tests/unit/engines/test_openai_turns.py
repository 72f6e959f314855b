"""Servers whose chat template takes no system message, or no two turns of one role in a row."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.core.errors import EngineFailure
from service.core.settings import EngineSettings
from service.engines.base import GenerationRequest, Message, complete
from service.engines.encoding import fold_system, merge_turns, simplest
from service.engines.openai import OpenAIGenerator
from tests.stubs.openai_server import StubServer

CHAT = (
    Message("system", "Be short."),
    Message("user", "Who?"),
    Message("user", "When?"),
    Message("assistant", "Hm."),
    Message("user", "Well?"),
)
PLAIN = [
    {"role": "user", "content": "Be short.\nWho?\n\nWhen?"},
    {"role": "assistant", "content": "Hm."},
    {"role": "user", "content": "Well?"},
]
REQUEST = GenerationRequest(messages=CHAT)


def test_folding_and_merging_lose_nothing() -> None:
    assert fold_system(CHAT)[0] == Message("user", "Be short.\nWho?")
    assert [m.role for m in merge_turns(CHAT)] == ["system", "user", "assistant", "user"]
    assert [{"role": m.role, "content": m.content} for m in simplest(CHAT)] == PLAIN
    alone = [Message("system", "Be short.")]
    assert simplest(alone) == alone
    assert simplest(PAIR) == list(PAIR)


PAIR = (Message("user", "Who?"), Message("assistant", "Hm."))


def roles_must_alternate(body: dict[str, Any]) -> str | None:
    roles = [message["role"] for message in body["messages"]]
    wanted = ["user", "assistant"] * len(roles)
    return None if roles == wanted[: len(roles)] else "Conversation roles must alternate"


def open_engine(server: StubServer) -> OpenAIGenerator:
    settings = EngineSettings.model_validate({"kind": "openai", "urls": [server.url]})
    return OpenAIGenerator("remote", settings)


@pytest.mark.anyio
@pytest.mark.parametrize("status", [400, 422, 500])
async def test_what_the_template_refuses_is_asked_without_and_remembered(status: int) -> None:
    async with StubServer(refuses=roles_must_alternate, refusal=status) as server:
        engine = open_engine(server)
        first, second = await complete(engine, REQUEST), await complete(engine, REQUEST)
        await engine.aclose()

    assert first.text == second.text == "It is Paris ."
    assert [len(body["messages"]) for body in server.bodies] == [5, 3, 3]
    assert server.bodies[1]["messages"] == server.bodies[2]["messages"] == PLAIN


@pytest.mark.anyio
async def test_calls_that_are_refused_together_are_all_asked_again() -> None:
    together = asyncio.Barrier(4)

    class Together(StubServer):
        async def _answer(self, request: Any, body: dict[str, Any]) -> Any:
            if len(self.bodies) <= together.parties:
                await together.wait()
            return await super()._answer(request, body)

    async with Together(refuses=roles_must_alternate) as server:
        engine = open_engine(server)
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*(complete(engine, REQUEST) for _ in range(4)))
        await engine.aclose()

    assert [answer.text for answer in answers] == ["It is Paris ."] * 4
    assert [len(body["messages"]) for body in server.bodies] == [5] * 4 + [3] * 4


@pytest.mark.anyio
async def test_a_refused_constraint_is_not_taken_for_the_template() -> None:
    async with StubServer(reply="true", rejects=("response_format",)) as server:
        engine = open_engine(server)
        for _ in range(2):
            request = GenerationRequest(messages=CHAT, choices=("true", "false"))
            assert (await complete(engine, request)).text == "true"
        await engine.aclose()

    assert [len(body["messages"]) for body in server.bodies] == [5, 3, 3, 5]


@pytest.mark.anyio
async def test_a_refusal_of_another_kind_is_told_in_its_own_words() -> None:
    async with StubServer(refuses=lambda body: "the context is full") as server:
        engine = open_engine(server)
        with pytest.raises(EngineFailure, match="the context is full"):
            await complete(engine, REQUEST)
        with pytest.raises(EngineFailure, match="the context is full"):
            await complete(engine, GenerationRequest(messages=PAIR))
        await engine.aclose()

    assert [len(body["messages"]) for body in server.bodies] == [5, 3, 2]  # and nothing is learned


@pytest.mark.anyio
async def test_a_server_that_fails_is_not_asked_otherwise() -> None:
    async with StubServer(refuses=lambda body: "out of memory", refusal=500) as server:
        engine = open_engine(server)
        with pytest.raises(EngineFailure, match="out of memory"):
            await complete(engine, REQUEST)
        await engine.aclose()

    assert server.requests == 1
