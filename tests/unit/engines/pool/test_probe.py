"""What a probe reads of a worker, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import orjson
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from yarl import URL

from service.core.errors import EngineFailure
from service.core.settings import EngineSettings
from service.engines.pool.upkeep import MOST_BYTES, Probe

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def listing(pieces: Sequence[bytes]) -> AsyncIterator[tuple[Probe, URL]]:
    """A worker that sends its list of models in pieces, with a pause between two of them."""

    async def models(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0.05)
        return response

    app = web.Application()
    app.router.add_get("/v1/models", models)
    probe = Probe(EngineSettings(kind="vllm", urls=["http://localhost/v1"]), 10.0)
    async with TestServer(app) as server:
        yield probe, server.make_url("/v1")
        await probe.aclose()


async def test_a_list_of_models_in_two_pieces_is_read_whole() -> None:
    names = tuple(f"adapter-{number}" for number in range(300))
    body = orjson.dumps({"data": [{"id": name} for name in names]})
    async with listing([body[:1000], body[1000:]]) as (probe, url):
        assert (await probe.profile(url)).models == names


async def test_a_list_of_models_without_end_is_refused() -> None:
    async with listing([b" " * (MOST_BYTES // 2)] * 3) as (probe, url):
        with pytest.raises(EngineFailure, match="/v1/models returned more than 1,000,000 bytes"):
            await probe.profile(url)


async def test_a_name_that_cannot_be_looked_up_is_told() -> None:
    probe = Probe(EngineSettings(kind="vllm", urls=["http://localhost/v1"]), 10.0)
    with pytest.raises(EngineFailure, match=r"a{64} is not a valid host name"):
        await probe.health(URL(f"http://{'a' * 64}:8000/v1"))
    await probe.aclose()
