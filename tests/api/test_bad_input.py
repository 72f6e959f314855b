"""Bad input: each a clear 4xx problem before the first byte, and the next question works."""

from __future__ import annotations

import io
from typing import Any

import pytest
from fastapi import Request
from starlette.exceptions import HTTPException

from service.api.wire import MEDIA_TYPE, answer_framework
from tests.support.live import Live, Reply, config, live

PROBLEM = {"type", "title", "status", "detail", "request_id"}
JSON = {"Content-Type": "application/json"}

BODIES: dict[str, tuple[Any, int, str, str]] = {
    "nothing": ({}, 422, "invalid-request", "question"),
    "empty": ({"question": ""}, 422, "invalid-request", "question"),
    "blank": ({"question": " \n\t"}, 422, "invalid-request", "question"),
    "too long": ({"question": "x" * 4001}, 422, "invalid-request", "4000"),
    "a number": ({"question": 7}, 422, "invalid-request", "question"),
    "a list": ({"question": ["Who?"]}, 422, "invalid-request", "question"),
    "null": ({"question": None}, 422, "invalid-request", "question"),
    "no object": (["Who?"], 422, "invalid-request", "object"),
    "a string": ("Who?", 422, "invalid-request", "object"),
    "unknown field": ({"question": "q", "colour": 1}, 422, "invalid-request", "colour"),
    "unknown route": ({"question": "q", "route": "fast"}, 422, "invalid-request", "route"),
    "unknown loop": ({"question": "q", "loop": "magic"}, 422, "invalid-request", "loop"),
    "loop under direct": (
        {"question": "q", "route": "direct", "loop": "anrag"}, 422, "invalid-request", "direct",
    ),
    "unknown retriever": ({"question": "q", "retriever": "web"}, 422, "invalid-request", "retr"),
    "unknown collection": ({"question": "q", "collection": "nope"}, 404, "not-found", "nope"),
    "collection no string": ({"question": "q", "collection": 1}, 422, "invalid-request", "coll"),
    "unknown filter field": (
        {"question": "q", "filter": {"colour": "red"}}, 422, "invalid-request", "colour",
    ),
    "filter no object": ({"question": "q", "filter": "a"}, 422, "invalid-request", "filter"),
    "filter of objects": (
        {"question": "q", "filter": {"year": {"gt": 1}}}, 422, "invalid-request", "filter",
    ),
    "filter of nothing": ({"question": "q", "filter": {"year": []}}, 422, "invalid-request", "fil"),
    "top_k 0": ({"question": "q", "top_k": 0}, 422, "invalid-request", "top_k"),
    "top_k 101": ({"question": "q", "top_k": 101}, 422, "invalid-request", "top_k"),
    "top_k true": ({"question": "q", "top_k": True}, 422, "invalid-request", "top_k"),
    "top_k text": ({"question": "q", "top_k": "3"}, 422, "invalid-request", "top_k"),
    "top_k fraction": ({"question": "q", "top_k": 1.5}, 422, "invalid-request", "top_k"),
    "top_k huge": ({"question": "q", "top_k": 10**30}, 422, "invalid-request", "top_k"),
    "max_steps 21": ({"question": "q", "max_steps": 21}, 422, "invalid-request", "max_steps"),
    "max_steps false": ({"question": "q", "max_steps": False}, 422, "invalid-request", "max"),
    "history too long": (
        {"question": "q", "history": [{"role": "user", "text": "x" * 50_001}] * 2}, 422,
        "invalid-request", "100,000",
    ),
    "timeout 0": ({"question": "q", "timeout_s": 0}, 422, "invalid-request", "timeout_s"),
    "timeout 301": ({"question": "q", "timeout_s": 301}, 422, "invalid-request", "timeout_s"),
    "timeout true": ({"question": "q", "timeout_s": True}, 422, "invalid-request", "timeout_s"),
}  # fmt: skip

RAW: dict[str, tuple[bytes, dict[str, str], int, str]] = {
    "no body": (b"", JSON, 400, "malformed-request"),
    "cut JSON": (b'{"question": "Who', JSON, 400, "malformed-request"),
    "two values": (b'{"question": "q"}{}', JSON, 400, "malformed-request"),
    "NaN": (b'{"question": "q", "timeout_s": NaN}', JSON, 400, "malformed-request"),
    "bad UTF-8": (b'{"question": "\xff\xfe"}', JSON, 400, "malformed-request"),
    "lone surrogate": (b'{"question": "\\ud800"}', JSON, 400, "malformed-request"),
    "deep": (b'{"question": ' + b"[" * 5000 + b"]" * 5000 + b"}", JSON, 400, "malformed-request"),
    "UTF-16": ('{"question": "q"}'.encode("utf-16"), JSON, 400, "malformed-request"),
    "no content type": (b'{"question": "q"}', {}, 415, "unsupported-media-type"),
    "form": (
        b"question=q", {"Content-Type": "application/x-www-form-urlencoded"}, 415,
        "unsupported-media-type",
    ),
    "text": (b'{"question": "q"}', {"Content-Type": "text/plain"}, 415, "unsupported-media-type"),
    "charset": (
        b'{"question": "q"}', {"Content-Type": "application/json; charset=latin-1"}, 415,
        "unsupported-media-type",
    ),
    "no charset's name": (
        b'{"question": "q"}', {"Content-Type": "application/json; charset*=%00''x"}, 415,
        "unsupported-media-type",
    ),
    "parameter of 5,000 digits": (
        b'{"question": "q"}', {"Content-Type": f"application/json; charset*{'9' * 5000}=x"}, 415,
        "unsupported-media-type",
    ),
    "5 MB": (b'{"question": "' + b"x" * 5_000_000 + b'"}', JSON, 413, "body-too-large"),
}  # fmt: skip

QUERIES: dict[str, tuple[str, int, str]] = {
    "nothing": ("", 422, "invalid-request"),
    "blank": ("question=%20", 422, "invalid-request"),
    "unknown field": ("question=q&colour=1", 422, "invalid-request"),
    "top_k text": ("question=q&top_k=three", 422, "invalid-request"),
    "filter no JSON": ("question=q&filter=year", 422, "invalid-request"),
    "filter no object": ("question=q&filter=3", 422, "invalid-request"),
    "bad UTF-8": ("question=%ff%fe", 400, "malformed-request"),
    "unknown loop": ("question=q&loop=magic", 422, "invalid-request"),
    "unknown collection": ("question=q&collection=nope", 404, "not-found"),
    "endless timeout": ("question=q&timeout_s=inf", 422, "invalid-request"),
}


def check_problem(response: Reply, status: int, slug: str) -> dict[str, Any]:
    body: dict[str, Any] = response.json()
    assert response.status == status, body
    assert response.headers["content-type"] == MEDIA_TYPE
    assert set(body) == PROBLEM
    assert body["type"] == f"urn:revelator:problem:{slug}"
    assert body["status"] == status
    assert body["request_id"] == response.headers["x-request-id"]
    assert body["detail"]
    assert len(body["detail"]) < 1000
    return body


async def check_works(service: Live) -> None:
    status, body = await service.ask("Who composed Norma?")
    assert (status, body["answer"]) == (200, "Vincenzo Bellini")


@pytest.mark.parametrize("path", ["/answer", "/answer/stream"])
async def test_each_bad_body_is_a_problem_and_the_next_question_works(
    service: Live, path: str
) -> None:
    for name, (body, status, slug, said) in BODIES.items():
        response = await service.post(path, json=body)
        problem = check_problem(response, status, slug)
        assert said in problem["detail"], name
    await check_works(service)
    assert await service.metric("revelator_questions_in_flight") == 0


@pytest.mark.parametrize("path", ["/answer", "/answer/stream"])
async def test_each_unreadable_body_is_a_problem(service: Live, path: str) -> None:
    for data, headers, status, slug in RAW.values():
        skipped = [] if "Content-Type" in headers else ["Content-Type"]
        sent = {"data": io.BytesIO(data), "headers": headers, "skip_auto_headers": skipped}
        check_problem(await service.post(path, **sent), status, slug)
    await check_works(service)


async def test_a_body_without_a_length_is_bounded_too(service: Live) -> None:
    async def endless() -> Any:
        for _ in range(100):
            yield b" " * 50_000

    check_problem(
        await service.post("/answer", data=endless(), headers=JSON), 413, "body-too-large"
    )
    await check_works(service)


async def test_each_bad_query_is_a_problem(service: Live) -> None:
    for query, status, slug in QUERIES.values():
        check_problem(
            await service.get(f"{service.url}/answer/stream?{query}", allow_redirects=False),
            status,
            slug,
        )
    await check_works(service)


async def test_the_framework_s_own_refusals_are_problems(service: Live) -> None:
    check_problem(await service.get("/nowhere"), 404, "not-found")
    response = await service.delete("/answer")
    check_problem(response, 405, "method-not-allowed")
    assert response.headers["allow"] == "POST"
    assert response.json()["detail"] == "This path takes POST, not DELETE."
    for path, methods in [
        ("/answer/stream", "GET, POST"),
        ("/collections/a", "DELETE, GET, PUT"),
        ("/page/page.css", "GET, HEAD"),
    ]:
        assert (await service.request("PATCH", path)).headers["allow"] == methods
    check_problem(await service.delete("/docs/assets/x"), 405, "method-not-allowed")
    check_problem(await service.get("/answer/"), 404, "not-found")


async def test_another_refusal_of_the_framework_does_not_tell_of_methods(service: Live) -> None:
    """The path has a route for another method, too."""
    scope = {"type": "http", "method": "POST", "path": "/answer/stream", "headers": []}
    request = Request({**scope, "app": service.app, "root_path": ""})
    response = await answer_framework(request, HTTPException(400, "No body of a form."))
    assert (response.status_code, "allow" in response.headers) == (400, False)
    assert b'"detail":"No body of a form."' in response.body


async def test_a_harmless_request_id_is_echoed_and_another_replaced(service: Live) -> None:
    for sent, echoed in [("abc-1.2_Z", True), ("a b", False), ("x" * 200, False)]:
        headers = {"X-Request-ID": sent}
        response = await service.get("/nowhere", headers=headers)
        assert (response.headers["x-request-id"] == sent) is echoed
        assert response.json()["request_id"] == (response.headers["x-request-id"])


async def test_keys_are_wanted_where_there_are_some() -> None:
    settings = config(server={"port": 0, "keys": ["one", "two", "schlüsselà"]})
    cases: list[tuple[dict[str, str], int, str]] = [
        ({}, 401, "key-missing"),
        ({"Authorization": "Basic eA=="}, 401, "key-missing"),
        ({"Authorization": "Bearer three"}, 403, "key-refused"),
        ({"X-API-Key": "on"}, 403, "key-refused"),
        ({"X-API-Key": "öne"}, 403, "key-refused"),
    ]
    async with live(settings=settings) as service:
        for headers, status, slug in cases:
            # bad JSON: the key is looked at first
            check_problem(await service.post("/answer", data=b"{", headers=headers), status, slug)
            check_problem(await service.get("/collections", headers=headers), status, slug)
        for headers in (
            {"Authorization": "Bearer two"}, {"X-API-Key": "one"},
            {"Authorization": "Bearer schlüsselà"}, {"X-API-Key": "schlüsselà"},  # sent in UTF-8
        ):  # fmt: skip
            response = await service.post("/answer", json={"question": "Who?"}, headers=headers)
            assert response.status == 200
        for path in ("/healthz", "/readyz", "/startupz", "/metrics"):
            assert (await service.get(path)).status == 200
