"""The SDK's own client at `/mcp`, with the protocol of today and that of before."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from service.api.mcp import tools as endpoint
from service.retrieval.base import SearchRequest, SearchResult
from service.telemetry.logs import configure_logging
from tests.api.test_tenants import entry, tenants
from tests.conftest import need
from tests.support.asking import ScriptedRetriever
from tests.support.live import Live, config, eventually, live
from tests.support.scripted import ScriptedGenerator, ScriptStep

need("mcp")

import httpx2  # noqa: E402
from mcp.client import Client  # noqa: E402
from mcp.client.streamable_http import streamable_http_client  # noqa: E402
from mcp.shared.exceptions import MCPError  # noqa: E402

QUESTION = {"question": "Who composed the opera Norma?"}
RESOURCES = "revelator://collections/"
UNEXPECTED = "An unexpected error occurred. It was logged under this request_id."
DOCUMENT = {"id": "etna", "title": "Etna", "text": "Etna is a volcano in Sicily.", "height": 3357}


@asynccontextmanager
async def client_of(service: Live, key: str = "none", mode: str = "auto") -> AsyncIterator[Client]:
    async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}) as http:
        transport = streamable_http_client(f"{service.url}/mcp", http_client=http)
        async with Client(transport, mode=mode) as client:
            yield client


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_answer_comes_with_its_steps_and_citations(mode: str) -> None:
    told: list[tuple[float, str | None]] = []

    async def progress(done: float, _: float | None, message: str | None) -> None:
        told.append((done, message))

    async with live() as service, client_of(service, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {"answer", "search", "ingest"}
        assert tools["answer"].input_schema["required"] == ["question"]
        result = await client.call_tool("answer", QUESTION, progress_callback=progress)
    assert not result.is_error
    assert result.structured_content["answer"] == "Vincenzo Bellini"
    assert result.structured_content["citations"][0]["passage_id"] == "norma"
    assert result.content[0].text.startswith("Vincenzo Bellini [1]")
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert "Search (hybrid): Who composed the opera Norma?" in [message for _, message in told]


async def test_a_search_returns_passages_and_says_what_was_wrong_with_it() -> None:
    async with live() as service, client_of(service) as client:
        found = await client.call_tool("search", {"query": "opera", "top_k": 2})
        assert len(found.structured_content["passages"]) == 2
        assert "[1] Norma (norma)\nNorma is an opera." in found.content[0].text
        for arguments, told in [
            ({}, "query: "),
            ({"query": "opera", "top_k": 0}, "top_k: "),
            ({"query": "opera", "colour": 1}, "colour: "),
            ({"query": "opera", "collection": "no"}, "no collection 'no'"),
        ]:
            wrong = await client.call_tool("search", arguments)
            assert wrong.is_error
            assert told in wrong.content[0].text
        with pytest.raises(MCPError, match="no tool 'forget'"):
            await client.call_tool("forget", {"collection": "docs", "documents": [DOCUMENT]})


async def test_a_client_that_sends_only_text_is_understood() -> None:
    async with live() as service, client_of(service) as client:
        for tool in (await client.list_tools()).tools:
            for name, field in tool.input_schema["properties"].items():
                assert "type" in field, (tool.name, name)  # and no `anyOf` with null
        texts = {
            "query": "2024",
            "top_k": "2",
            "filter": '{"year": [1831]}',
            "collection": "sample",
        }
        found = await client.call_tool("search", texts)
        assert len(found.structured_content["passages"]) == 1
        asked = QUESTION | {"timeout_s": "20", "top_k": "1", "history": "[]", "filter": "null"}
        assert not (await client.call_tool("answer", asked)).is_error
        for wrong in ({"top_k": "two"}, {"top_k": '"2"'}, {"filter": "[1"}, {"filter": "3"}):
            refused = await client.call_tool("search", {"query": "opera"} | wrong)
            assert next(iter(wrong)) in refused.content[0].text


async def test_a_search_takes_a_place_and_counts_as_a_question(tmp_path: Path) -> None:
    retriever = ScriptedRetriever()
    retriever.delay = 0.3
    settings = tenants(tmp_path, entry("asks", questions_per_minute=3), max_running=1)
    async with live(settings=settings, retriever=retriever) as service:
        async with client_of(service, "asks") as client:
            search = partial(client.call_tool, "search", {"query": "opera"})
            running = [asyncio.create_task(search()) for _ in range(3)]
            told = [each.content[0].text for each in await asyncio.gather(*running)]
            assert sum("are running" in each for each in told) == 1  # one ran, one waited
            assert service.app.state.admission.running == 0
            assert "questions" in (await search()).content[0].text
        assert await service.metric('revelator_rejected_total{reason="key_limit"}') == 1


async def refused(url: str, key: str) -> str:
    """Return why `revelator mcp` does not start."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "service", "mcp", "--url", url, "--key", key,
        stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await asyncio.wait_for(process.communicate(), 200)
    assert process.returncode
    return " ".join(said.decode().split())


async def test_a_command_is_told_why_a_server_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with live(settings=config(server={"keys": ["secret"]})) as service:
        assert "not one of this server's keys; check its" in await refused(service.url, "wrong")
        monkeypatch.setattr(endpoint, "installed", lambda: False)
        assert "needs the extra `mcp`" in await refused(service.url, "secret")
    assert "/mcp: ConnectError; check its address" in await refused(service.url, "secret")


async def test_keys_have_the_tools_and_collections_of_their_rights(tmp_path: Path) -> None:
    settings = tenants(
        tmp_path,
        entry("all", rights=["ask", "write", "administer"]),
        entry("writes", rights=["write"], collections=["docs"]),
        entry("asks", rights=["ask"], collections=["docs", "gone"]),
    )
    async with live(settings=settings, own_stores=True) as service:
        headers = {"Authorization": "Bearer all"}
        for name in ("docs", "others"):
            assert (await service.put(f"/collections/{name}", headers=headers)).status == 200
        async with client_of(service, "writes") as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["ingest"]
            filled = {"collection": "docs", "documents": [DOCUMENT, {"id": "x"}]}
            report = (await client.call_tool("ingest", filled)).structured_content
            assert (report["indexed"], len(report["failed"])) == (1, 1)
            refused = await client.call_tool("ingest", filled | {"collection": "others"})
            assert refused.is_error
            with pytest.raises(MCPError, match="no tool 'answer'"):
                await client.call_tool("answer", QUESTION)
        async with client_of(service, "asks") as client:
            assert [each.name for each in (await client.list_tools()).tools] == ["answer", "search"]
            found = await client.call_tool("search", {"query": "volcano", "collection": "docs"})
            assert found.structured_content["passages"][0]["title"] == "Etna"
            assert (await client.call_tool("search", {"query": "opera"})).is_error
            gone = await client.call_tool("search", {"query": "opera", "collection": "gone"})
            assert gone.content[0].text.endswith("existing collections: docs")
            listed = (await client.list_resources()).resources
            assert [(each.name, each.uri) for each in listed] == [
                ("docs", "revelator://collections/docs")
            ]
            read = await client.read_resource("revelator://collections/docs")
            assert json.loads(read.contents[0].text)["documents"] == 1
            for uri in ("revelator://collections/others", "revelator://x", "file:///etc/passwd"):
                with pytest.raises(MCPError):
                    await client.read_resource(uri)
            with pytest.raises(MCPError, match=r"existing collections: docs\Z"):
                await client.read_resource("revelator://collections/gone")


async def test_what_is_no_request_of_the_protocol_is_refused_as_elsewhere() -> None:
    async with live(settings=config(server={"keys": ["secret"]})) as service:
        good = {"Authorization": "Bearer secret"}
        json_type = {"Content-Type": "application/json"}
        cases: list[tuple[str, dict[str, str], bytes, int]] = [
            ("POST", {}, b"{}", 401),
            ("POST", {"Authorization": "Bearer wrong"}, b"{}", 403),
            ("POST", good | json_type, b"x" * 1_000_001, 413),
            ("GET", good | {"Accept": "text/event-stream"}, b"", 405),
            ("DELETE", good, b"", 405),
        ]
        for method, headers, body, status in cases:
            assert (
                await service.request(method, "/mcp", headers=headers, data=body)
            ).status == status


async def test_a_failed_question_is_a_result_that_says_why() -> None:
    settings = config(limits={"timeout_s": 0.2})
    engine = ScriptedGenerator([ScriptStep(reply="x", gate=asyncio.Event(), times=None)])
    async with live(engine, settings=settings) as service, client_of(service) as client:
        result = await client.call_tool("answer", QUESTION)
    assert result.is_error
    assert "time limit" in result.content[0].text


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_client_that_gives_up_stops_its_question(mode: str) -> None:
    engine = ScriptedGenerator([ScriptStep(reply="Bellini", gate=asyncio.Event())])
    async with live(engine) as service, client_of(service, mode=mode) as client:
        asking = asyncio.create_task(client.call_tool("answer", QUESTION))
        await eventually(lambda: engine.running == 1)
        asking.cancel()
        await eventually(lambda: engine.running == 0)
        await eventually(lambda: service.app.state.admission.running == 0)


async def test_collections_are_shown_with_the_right_to_ask_alone(tmp_path: Path) -> None:
    settings = tenants(tmp_path, entry("all", rights=["ask", "administer"]),
                       entry("asks", rights=["ask"], collections=["docs"]),
                       entry("writes", rights=["write"]))  # fmt: skip
    spoilt = tmp_path / "data" / "collections" / "spoilt" / "manifest.json"
    spoilt.parent.mkdir(parents=True)
    spoilt.write_text("{")
    async with live(settings=settings, own_stores=True) as service:
        all_ = {"Authorization": "Bearer all"}
        assert (await service.put("/collections/docs", headers=all_)).status == 200
        writes = {"Authorization": "Bearer writes"}
        response = await service.get("/collections", headers=writes)
        assert response.status == 403
        refusal = response.json()["detail"]
        async with client_of(service, "writes") as client:
            for ask in (client.list_resources, partial(client.read_resource, f"{RESOURCES}docs")):
                with pytest.raises(MCPError) as refused:
                    await ask()
                assert refused.value.error.message == refusal
        async with client_of(service, "all") as client:
            shown = {
                each.name: each.description for each in (await client.list_resources()).resources
            }
            assert [*shown] == ["docs", "sample", "spoilt"]
            assert "ingest it again" in shown["spoilt"]
        async with client_of(service, "asks") as client:
            assert [each.name for each in (await client.list_resources()).resources] == ["docs"]
        response = await service.get("/collections", headers={"Authorization": "Bearer asks"})
        assert response.json()["problems"] == {}


class Broken(ScriptedRetriever):
    async def search(self, request: SearchRequest) -> SearchResult:
        raise KeyError("/secret/path")


@pytest.mark.usefixtures("restored_logging")
async def test_an_unexpected_error_is_logged_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise KeyError("/secret/path")

    stream = io.StringIO()
    async with live(retriever=Broken()) as service, client_of(service) as client:
        configure_logging("error", stream)
        result = await client.call_tool("search", {"query": "opera"})
    assert (result.is_error, result.content[0].text) == (True, UNEXPECTED)
    settings = config(tmp_path)
    async with live(settings=settings, own_stores=True) as service, client_of(service) as client:
        stores = service.app.state.runtime.retrieval.collections
        monkeypatch.setattr(stores, "listed", broken)
        monkeypatch.setattr(stores, "manifest", broken)
        configure_logging("error", stream)
        for ask in (client.list_resources, partial(client.read_resource, f"{RESOURCES}x")):
            with pytest.raises(MCPError) as refused:
                await ask()
            assert refused.value.error.message == UNEXPECTED
    lines = [each for each in stream.getvalue().splitlines() if "request failed" in each]
    assert len(lines) == 3
    assert "builtins.KeyError" in lines[0]
