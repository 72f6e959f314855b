"""Whoever may not use a collection is told the same whether it exists or not: nothing of its
fields, documents or errors is in any answer of any path."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

from tests.api.test_tenants import entry, key, status, tenants
from tests.conftest import need
from tests.support.live import Live, live

need("mcp")


THERE, ABSENT = "secret", "absent"  # of equal length
FIELD = "clearance"  # of documents of THERE
DOCUMENTS = {"documents": [{"id": "d", "text": "The vault is in Lugano.", FIELD: "high"}]}
RIGHTS = ["ask", "write", "administer"]
IDENTITIES = [None, "unknown", "all", "asks", "writes", "administers"]
FIELDS: list[dict[str, Any]] = [
    {}, {"filter": {FIELD: "high"}}, {"filter": {"colour": "red"}}, {"filter": {"colour": []}},
    {"retriever": "bm25"}, {"retriever": "dense", "top_k": 3}, {"top_k": 0}, {"max_steps": 2},
    {"route": "direct"}, {"route": "direct", "loop": "dragin"}, {"loop": "dragin"}, {"loop": "x"},
    {"samples": 3, "loop": "ircot"}, {"timeout_s": 0.01}, {"colour": "red"},
]  # fmt: skip
REPEATED = {"Idempotency-Key": "once"}
QUESTION = {"question": "Where is the vault?"}
MCP = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}

Call = tuple[str, str, Any, dict[str, str]]


def asking(name: str, fields: dict[str, Any]) -> list[Call]:
    """All requests that ask about the collection, with these fields."""
    body = QUESTION | {"collection": name} | fields
    query = "&".join(
        f"{field}={json.dumps(value) if isinstance(value, dict) else value}"
        for field, value in body.items()
    )
    chat = {"model": "revelator", "revelator": {"collection": name} | fields}
    messages = {"messages": [{"role": "user", "content": QUESTION["question"]}]}
    search = {"query": QUESTION["question"], "collection": name} | fields
    return [
        ("POST", "/answer", body, {}),
        ("POST", "/answer", body, REPEATED),
        ("POST", "/answer", body, REPEATED),
        ("POST", "/answer/stream", body, {}),
        ("POST", "/answer/stream", body, REPEATED),
        ("POST", "/answer/stream", body, {"Last-Event-ID": "000000-0123-1"}),
        ("GET", f"/answer/stream?{query}", None, {}),
        ("POST", "/v1/chat/completions", chat | messages, {}),
        ("POST", "/v1/chat/completions", chat | messages | {"stream": True}, REPEATED),
        ("POST", "/search", search, {}),
        ("POST", "/v1/responses", chat | {"input": QUESTION["question"]}, {}),
        tool("answer", body),
        tool("search", search),
    ]


def tool(name: str, arguments: dict[str, Any]) -> Call:
    return rpc("tools/call", {"name": name, "arguments": arguments})


def rpc(method: str, params: dict[str, Any]) -> Call:
    return "POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, MCP


def using(name: str) -> list[Call]:
    """All other requests that name the collection."""
    at = f"/collections/{name}"
    read = {"uri": f"revelator://collections/{name}"}
    return [
        ("GET", at, None, {}),
        ("PUT", at, {}, {}),
        ("PUT", at, {"analysis": "no"}, {}),
        ("DELETE", at, None, {}),
        ("GET", f"{at}/documents?file=d", None, {}),
        ("GET", f"{at}/documents", None, {}),
        ("GET", f"{at}/documents/d", None, {}),
        ("DELETE", f"{at}/documents/d", None, {}),
        ("POST", f"{at}/documents", DOCUMENTS, {}),
        ("PUT", f"{at}/documents", {"documents": 1}, {}),
        ("GET", f"{at}/check", None, {}),
        ("POST", f"{at}/repair", None, {"Accept": "text/event-stream"}),
        tool("ingest", {"collection": name, **DOCUMENTS}),
        rpc("resources/read", read),
    ]  # fmt: skip


async def told(service: Live, identity: str | None, name: str, call: Call) -> tuple[Any, ...]:
    """Return the answer without what differs between any two answers, and without the name."""
    method, path, body, headers = call
    headers = headers | (key(identity) if identity else {})
    response = await service.request(method, path, json=body, headers=headers)
    text = response.text
    request_id = response.headers["X-Request-ID"]
    kept = {k: v for k, v in response.headers.items() if k not in ("Date", "X-Request-ID")}
    return response.status, kept, text.replace(request_id, "").replace(name, "")


async def test_a_forbidden_collection_is_answered_as_an_absent_one(tmp_path: Path) -> None:
    settings = tenants(
        tmp_path,
        entry("owner", rights=RIGHTS),
        entry("all", collections=["docs"], rights=RIGHTS),
        *(entry(f"{each}s", collections=["docs"], rights=[each]) for each in RIGHTS),
    )
    async with live(settings=settings, own_stores=True) as service:
        for each in (THERE, "default"):
            assert await status(service, "owner", "PUT", f"/collections/{each}", {}) == 200
            path = f"/collections/{each}/documents"
            assert await status(service, "owner", "POST", path, DOCUMENTS) == 200
        compared = 0
        for identity, fields in itertools.product(IDENTITIES, FIELDS):
            calls = zip(asking(THERE, fields), asking(ABSENT, fields), strict=True)
            for there, absent in calls:
                compared += 1
                answer = await told(service, identity, THERE, there)
                assert answer == await told(service, identity, ABSENT, absent), (identity, there)
                assert answer[0] in (400, 401, 403, 409, 422) or there[1] == "/mcp", answer
                assert "colour" not in answer[2] or FIELD not in answer[2]
        for identity in IDENTITIES:
            for there, absent in zip(using(THERE), using(ABSENT), strict=True):
                compared += 1
                answer = await told(service, identity, THERE, there)
                assert answer == await told(service, identity, ABSENT, absent), (identity, there)
        assert compared > 1_000
        await nothing_of_the_default(service)
        assert await status(service, "owner", "GET", f"/collections/{THERE}/documents/d") == 200


async def nothing_of_the_default(service: Live) -> None:
    """A request that names no collection gets `default`, which this caller may not use."""
    for call in asking("", {"filter": {"colour": "red"}}):
        method, path, body, headers = call
        bare = json.loads(json.dumps(body).replace('"collection": ""', '"collection": null'))
        path = path.replace("collection=&", "")
        answer = await told(service, "asks", "no name", (method, path, bare, headers))
        assert FIELD not in answer[2]
        assert re.search("may not use|Another gateway", answer[2]), answer


async def test_a_stream_is_not_resumed_once_its_collection_is_forbidden(tmp_path: Path) -> None:
    asks = {"name": "asks", "rights": ["ask"]}
    settings = tenants(tmp_path, entry(**asks, collections=["docs", "sample"]))
    async with live(settings=settings) as service:
        question = QUESTION | {"collection": "sample"}
        headers = key("asks") | REPEATED
        last = re.findall(
            "id: (.*)", (await service.post("/answer/stream", json=question, headers=headers)).text
        )[2]
        for rights, expected in ((["docs", "sample"], 200), (["docs"], 403)):
            path = tmp_path / "tenants.toml"
            path.write_text(entry(**asks, collections=rights))
            await service.app.state.access._read(path)
            for again in ({"Last-Event-ID": last}, REPEATED):
                response = await service.post(
                    "/answer/stream", json=question, headers=key("asks") | again
                )
                text = response.text
                assert response.status == expected
                assert ("event: done" in text) is (expected == 200)


async def test_readiness_names_collections_only_to_keys(tmp_path: Path) -> None:
    settings = tenants(tmp_path, entry("owner", rights=RIGHTS), entry("asks", collections=["docs"]))
    async with live(settings=settings, own_stores=True) as service:
        for name in ("docs", THERE):
            assert await status(service, "owner", "PUT", f"/collections/{name}", {}) == 200
            collection = await service.app.state.runtime.retrieval.collections.get(name)
            other = collection.manifest.embedding.model_copy(update={"query_prefix": "query: "})
            await collection.save(collection.manifest.model_copy(update={"embedding": other}))
        for identity, told, counted in (
            ("owner", ["docs", THERE], 0), ("asks", ["docs"], 1), ("unknown", [], 2), (None, [], 2),
        ):  # fmt: skip
            headers = key(identity) if identity else {}
            response = await service.get("/readyz", headers=headers)
            assert response.status == 200
            lines = response.json()["degraded"]
            assert [name for name in ("docs", THERE) if name in "".join(lines)] == told
            assert (f"collections: {counted} have a problem" in "".join(lines)) is bool(counted)
