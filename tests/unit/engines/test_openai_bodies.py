"""Bodies that come in pieces, break off, or have no end, from a server on a real socket."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from service.core.errors import EngineFailure, EngineRefusal
from service.core.settings import EngineSettings
from service.engines import openai, vllm
from service.engines.base import GenerationRequest, Message, complete
from service.engines.openai import OpenAIGenerator
from tests.stubs.openai_server import StubServer

pytestmark = pytest.mark.anyio
CHAT = GenerationRequest(messages=(Message("system", "Short."), Message("user", "Who?")), turn=1)
MEGABYTE = b" " * 1_000_000
JSON = "application/json"


def open_engine(server: StubServer, **settings: Any) -> OpenAIGenerator:
    values = {"kind": "openai", "urls": [server.url], **settings}
    return OpenAIGenerator("remote", EngineSettings.model_validate(values))


async def send(
    request: web.Request, pieces: Sequence[bytes], status: int, kind: str, *, end: str = "end"
) -> web.StreamResponse:
    """Send a body in pieces, with a pause after each of them. `end`: it may also `break` off there,
    or `hang`.
    """
    response = web.StreamResponse(status=status, headers={"Content-Type": kind})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
        await asyncio.sleep(0.05)
    if end == "hang":
        await asyncio.sleep(3600)
    if end == "break":
        assert request.transport is not None
        request.transport.abort()
    return response


class Pieces(StubServer):
    """Sends the text of an error in two pieces, cut at `cut`."""

    cut = 20
    end = "end"

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = await super()._answer(request, body)
        if not isinstance(response, web.Response):
            return response
        assert isinstance(response.body, bytes)
        pieces = [response.body[: self.cut], response.body[self.cut :]]
        return await send(request, pieces, response.status, JSON, end=self.end)


async def test_an_error_in_two_pieces_is_read_whole() -> None:
    async with (
        Pieces(rejects=("priority",)) as server,
        aclosing(open_engine(server, kind="vllm")) as engine,
    ):
        assert (await complete(engine, CHAT)).text == "It is Paris ."

    assert ["priority" in body for body in server.bodies] == [True, False]


async def test_a_template_is_recognised_in_the_second_piece_of_an_error() -> None:
    def refuses(body: dict[str, Any]) -> str | None:
        has_system = body["messages"][0]["role"] == "system"
        return "the chat template has no system messages" if has_system else None

    async with (
        Pieces(refuses=refuses, refusal=500) as server,
        aclosing(open_engine(server)) as engine,
    ):
        assert (await complete(engine, CHAT)).text == "It is Paris ."


@pytest.mark.parametrize("end", ["break", "hang"])
async def test_an_error_whose_text_does_not_end_is_told_as_far_as_it_came(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai, "_ERROR_S", 0.5)
    async with Pieces(failure=400, error_body="the context is full" + " " * 9) as server:
        server.end = end
        async with asyncio.timeout(30), aclosing(open_engine(server)) as engine:
            with pytest.raises(EngineRefusal, match="answered 400: the context is full"):
                await complete(engine, CHAT)


async def test_closing_ends_the_wait_for_the_text_of_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(openai, "_ERROR_S", 600.0)
    async with Pieces(failure=400) as server:
        server.end = "hang"
        engine = open_engine(server, timeout_s=600.0)
        call = asyncio.create_task(complete(engine, CHAT))
        async with asyncio.timeout(30):
            while not server.running:  # noqa: ASYNC110 (the stub has no event to wait for)
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            await engine.aclose()
            with pytest.raises(EngineFailure, match="lost the connection"):
                await call


async def test_a_reply_as_one_body_without_end_is_refused() -> None:
    class Endless(StubServer):
        async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
            return await send(request, [MEGABYTE] * 6, 200, JSON, end="hang")

    async with Endless() as server, aclosing(open_engine(server)) as engine:
        async with asyncio.timeout(30):
            with pytest.raises(EngineFailure, match="sent a body of more than 4,000,000 bytes"):
                await complete(engine, CHAT)


async def test_a_list_of_models_in_pieces_is_read_whole_and_without_end_refused() -> None:
    class Listing(StubServer):
        pieces: Sequence[bytes] = ()

        async def _models(self, request: web.Request) -> web.StreamResponse:
            return await send(request, self.pieces, 200, JSON)

    async with Listing() as server, aclosing(open_engine(server)) as engine:
        body = orjson.dumps({"data": [{"id": "stub-model"}]})
        server.pieces = [body[:9], body[9:]]
        await engine.check()
        server.pieces = [MEGABYTE] * 6
        with pytest.raises(EngineFailure, match="a body of more than 4,000,000 bytes"):
            await engine.check()


async def test_a_plugin_that_sends_more_than_its_replies_have_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm, "LARGEST_REPLY", 2_000_000)

    async def endless(request: web.Request) -> web.StreamResponse:
        return await send(request, [MEGABYTE] * 3, 200, JSON, end="hang")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", endless)
    async with TestServer(app) as server:
        settings = EngineSettings(kind="vllm", urls=[str(server.make_url("/"))])
        async with aclosing(vllm.VllmGenerator("worker", settings)) as worker:
            async with asyncio.timeout(30):
                for call in (worker.plugin_info, partial(worker.token_spans, "text")):
                    with pytest.raises(EngineFailure, match="a body of more than 2,000,000 bytes"):
                        await call()


async def test_what_follows_the_end_of_a_reply_is_not_kept() -> None:
    class Talkative(StubServer):
        sent = 0

        async def _end(self, response: web.StreamResponse, *more: Any) -> None:
            await response.write(b"data: [DONE]\n\n")
            while self.sent < 60:
                await response.write(MEGABYTE)
                self.sent += 1

    async with Talkative() as server, aclosing(open_engine(server)) as engine:
        tracemalloc.start()
        try:
            await complete(engine, CHAT)
            async with asyncio.timeout(10):
                while engine._ending:  # noqa: ASYNC110 (the engine has no event for it)
                    await asyncio.sleep(0.01)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert server.sent > 12
    assert peak < 8_000_000
