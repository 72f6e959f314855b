"""Tenants over HTTP: rights, collections, rates, a file that changes, and a fair share."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.api import access as security
from service.api import admission as limits
from service.api.app import create_app
from service.api.tenants import digest
from service.core.errors import ConfigurationError
from service.core.settings import Settings
from tests.api.test_bad_input import check_problem
from tests.api.test_files import form
from tests.support.live import Live, answering, config, eventually, live
from tests.support.scripted import ScriptedGenerator, ScriptStep

DOCUMENTS = {"documents": [{"id": "d", "text": "Etna is a volcano."}]}
CHAT = {
    "model": "revelator",
    "messages": [{"role": "user", "content": "Who?"}],
    "revelator": {"collection": "docs"},
}
RESPONSE = {"model": "revelator", "input": "Who?", "revelator": {"collection": "docs"}}
# What needs which right, in an order in which all of it can be done.
PATHS: list[tuple[str, str, Any, str]] = [
    ("PUT", "/collections/docs", {}, "administer"),
    ("POST", "/collections/docs/documents", DOCUMENTS, "write"),
    ("PUT", "/collections/docs/documents", DOCUMENTS, "write"),
    ("GET", "/collections", None, "ask"),
    ("GET", "/collections/docs", None, "ask"),
    ("GET", "/collections/docs/documents?file=d", None, "ask"),
    ("GET", "/collections/docs/documents/d", None, "ask"),
    ("POST", "/answer", {"question": "Who?", "collection": "docs"}, "ask"),
    ("POST", "/answer/stream", {"question": "Who?", "collection": "docs"}, "ask"),
    ("POST", "/search", {"query": "Who?", "collection": "docs"}, "ask"),
    ("GET", "/answer/stream?question=Who&collection=docs", None, "ask"),
    ("POST", "/v1/chat/completions", CHAT, "ask"),
    ("POST", "/v1/responses", RESPONSE, "ask"),
    ("GET", "/v1/models", None, "ask"),
    ("GET", "/v1/models/revelator", None, "ask"),
    ("POST", "/collections/docs/files", lambda: form(("a.txt", "Text.")), "write"),
    ("GET", "/collections/docs/documents/a.txt/file", None, "ask"),
    ("POST", "/feedback", {"answer_id": "x", "verdict": "up"}, "ask"),
    ("GET", "/collections/docs/check", None, "administer"),
    ("POST", "/collections/docs/repair", None, "administer"),
    ("DELETE", "/collections/docs/documents/d", None, "write"),
    ("DELETE", "/collections/docs", None, "administer"),
]


def entry(name: str, **fields: Any) -> str:
    """Its key is its name."""
    given = {"name": name, "key_sha256": [digest(name.encode())]} | fields
    return "[[tenants]]\n" + "".join(f"{key} = {value!r}\n" for key, value in given.items())


def tenants(folder: Path, *entries: str, **server: Any) -> Settings:
    path = folder / "tenants.toml"
    path.write_text("".join(entries))
    return config(folder / "data", server={"tenants_file": path, **server})


def key(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


async def status(service: Live, name: str, method: str, path: str, body: Any = None) -> int:
    given = {"data": body()} if callable(body) else {"json": body}
    response = await service.request(method, path, headers=key(name), **given)
    if response.status == 403 and not path.startswith("/v1/"):
        check_problem(response, 403, "not-allowed")
    return response.status


async def test_each_path_needs_its_right(tmp_path: Path) -> None:
    rights = ["ask", "write", "administer"]
    settings = tenants(
        tmp_path, entry("all", rights=rights), *(entry(each, rights=[each]) for each in rights)
    )
    async with live(settings=settings, own_stores=True) as service:
        documented = {
            (method.upper(), path)
            for path, methods in service.app.openapi()["paths"].items()
            for method in methods
            if "403" in methods[method]["responses"]
        }
        assert len(documented) == len(PATHS)  # a new path says here what it needs
        for method, path, body, right in PATHS:
            for each in rights:
                if each != right:
                    assert await status(service, each, method, path, body) == 403, (path, each)
            kept = path.endswith("/file") or path == "/feedback"  # of this server, nothing
            expected = (404,) if kept else (200, 204)
            assert await status(service, "all", method, path, body) in expected, path


async def test_what_is_deleted_under_a_question_tells_no_names_of_others(tmp_path: Path) -> None:
    settings = tenants(tmp_path, entry("own", rights=["administer"]),
                       entry("asks", collections=["a-*"]))  # fmt: skip
    gate, (route, *rest) = asyncio.Event(), answering()
    engine = ScriptedGenerator([replace(route, gate=gate), *rest])
    async with live(engine, settings=settings, own_stores=True) as service:
        for name in ("a-one", "of-another"):
            assert await status(service, "own", "PUT", f"/collections/{name}", {}) == 200
        body = {"question": "Who composed Norma?", "collection": "a-one"}
        asking = asyncio.create_task(service.post("/answer", json=body, headers=key("asks")))
        await eventually(lambda: engine.running == 1)
        assert await status(service, "own", "DELETE", "/collections/a-one") == 204
        gate.set()
        problem = check_problem(await asking, 404, "not-found")
        assert problem["detail"] == "there is no collection 'a-one'"


async def test_a_tenant_sees_and_uses_its_collections_alone(tmp_path: Path) -> None:
    rights = ["ask", "write", "administer"]
    settings = tenants(tmp_path, entry("a", collections=["a-*"], rights=rights))
    async with live(settings=settings, own_stores=True) as service:
        for name, expected in [("a-one", 200), ("b", 403), ("sample", 403)]:
            assert await status(service, "a", "PUT", f"/collections/{name}", {}) == expected
        listed = [
            each["name"]
            for each in (await service.get("/collections", headers=key("a"))).json()["collections"]
        ]
        assert listed == ["a-one"]
        for collection, expected in [("a-one", 200), ("absent", 403), ("sample", 403), (None, 403)]:
            question = {"question": "Who?", "collection": collection}
            assert await status(service, "a", "POST", "/answer", question) == expected
        question = {"question": "Who?", "collection": "a-two"}
        problem = check_problem(
            await service.post("/answer", json=question, headers=key("a")), 404, "not-found"
        )
        assert problem["detail"].endswith("existing collections: a-one")
        chat = {
            "model": "revelator", "messages": [{"role": "user", "content": "Who?"}],
            "revelator": {"collection": "a-two"},
        }  # fmt: skip
        assert (await service.post("/v1/chat/completions", json=chat, headers=key("a"))).json()[
            "error"
        ]["message"] == problem["detail"]


async def test_the_first_request_too_many_is_told_when_to_come_back(tmp_path: Path) -> None:
    settings = tenants(
        tmp_path, entry("a", questions_per_minute=2, requests_per_minute=4), entry("b")
    )
    async with live(settings=settings) as service:
        told = []
        for _ in range(3):
            response = await service.post("/answer", json={"question": "Who?"}, headers=key("a"))
            told.append((response.status, response.headers["RateLimit"]))
            policy = response.headers["RateLimit-Policy"]
        assert policy == '"requests";q=4;w=60, "questions";q=2;w=60'
        assert told[0] == (200, '"requests";r=3;t=15, "questions";r=1;t=30')
        assert [each[0] for each in told] == [200, 200, 429]
        response = await service.post("/answer", json={"question": "Who?"}, headers=key("a"))
        problem = check_problem(response, 429, "rate-limited")
        assert "2 questions a minute" in problem["detail"]
        assert 1 <= int(response.headers["Retry-After"]) <= 30
        response = await service.post("/answer", json=[], headers=key("a"))
        check_problem(response, 429, "rate-limited")  # requests are used up, too
        assert '"requests";r=0' in response.headers["RateLimit"]
        assert await service.metric('revelator_rejected_total{reason="key_limit"}') == 3
        rejected = 'revelator_questions_total{loop="none",outcome="rejected",route="none"}'
        assert await service.metric(rejected) == 3
        assert await status(service, "b", "POST", "/answer", {"question": "Who?"}) == 200


async def test_keys_change_without_a_restart_and_a_wrong_file_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "LOOK_S", 0.02)
    settings = tenants(tmp_path, entry("old"), keys=["owner"])
    path = tmp_path / "tenants.toml"

    async with live(settings=settings) as service:

        async def works(name: str) -> bool:
            return (
                await service.post("/answer", json={"question": "Who?"}, headers=key(name))
            ).status == 200

        async def until(name: str, working: bool) -> None:
            for _ in range(500):
                if await works(name) is working:
                    return
                await asyncio.sleep(0.01)
            raise AssertionError(name)

        assert [await works(each) for each in ("old", "new", "owner")] == [
            True,
            False,
            True,
        ]
        path.write_text(entry("old") + entry("new"))
        await until("new", True)
        assert await works("old")
        replaced = tmp_path / "next.toml"
        replaced.write_text(entry("new"))
        replaced.replace(path)
        await until("old", False)
        path.write_text("[[tenants]\n")
        await asyncio.sleep(0.2)
        assert await works("new")
        path.unlink()
        await asyncio.sleep(0.2)
        assert [await works(each) for each in ("old", "new", "owner")] == [
            False,
            True,
            True,
        ]


async def test_a_wrong_file_stops_the_start_and_a_file_allows_other_hosts(tmp_path: Path) -> None:
    create_app(tenants(tmp_path, entry("a"), host="0.0.0.0"))
    settings = tenants(tmp_path, "[[tenants]]\n")
    with pytest.raises(ConfigurationError, match=r"tenants.0.name: Field required"):
        create_app(settings)


async def test_a_flood_of_one_tenant_does_not_starve_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "WAITING", 2)
    gate = asyncio.Event()
    engine = ScriptedGenerator([ScriptStep(reply="Bellini", gate=gate, times=None)])
    settings = tenants(tmp_path, entry("flood"), entry("small"), max_running=4)
    question = {"question": "Who?", "route": "direct"}
    async with live(engine, settings=settings) as service:
        admission = service.app.state.admission
        flood = [
            asyncio.create_task(status(service, "flood", "POST", "/answer", question))
            for _ in range(36)
        ]
        await eventually(lambda: (admission.running, admission.waiting) == (4, 8))
        await eventually(lambda: sum(task.done() for task in flood) == 24)
        small = [
            asyncio.create_task(status(service, "small", "POST", "/answer", question))
            for _ in range(4)
        ]
        await eventually(lambda: sum(task.done() for task in flood) == 28)
        assert (admission.running, admission.waiting) == (4, 8)
        gate.set()
        assert [await task for task in small] == [200] * 4
        ends = [await task for task in flood]
        assert (ends.count(200), ends.count(503)) == (8, 28)
