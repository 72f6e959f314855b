from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from yarl import URL

from service.core.errors import EngineFailure
from service.engines.pool.upkeep import addresses

pytestmark = pytest.mark.anyio


def answering(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    async def getaddrinfo(host: str, port: int, **_: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        kind = socket.SOCK_STREAM
        return [(socket.AF_INET, kind, 6, "", (address, port)) for address in answer]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_a_list_is_taken_as_it_is() -> None:
    urls = [URL("http://b:8000/v1"), URL("http://a:8000/v1"), URL("http://b:8000/v1")]

    assert await addresses(urls, False) == (URL("http://a:8000/v1"), URL("http://b:8000/v1"))


async def test_every_address_of_a_name_is_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, ["10.0.0.2", "10.0.0.1", "fd00::1"])

    found = await addresses([URL("http://workers:8000/v1")], True)

    assert set(map(str, found)) == {
        "http://10.0.0.1:8000/v1", "http://10.0.0.2:8000/v1", "http://[fd00::1]:8000/v1",
    }  # fmt: skip


async def test_an_unknown_name_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, socket.gaierror(-2, "Name or service not known"))

    with pytest.raises(EngineFailure, match=r"no address for workers.*not known.*urls"):
        await addresses([URL("http://workers:8000/v1")], True)
