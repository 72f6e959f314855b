"""Who may see what over HTTP: principals from keys, tokens and a gateway's header, and nothing of a
document that its caller may not see in any response of any path.

The model of this server repeats its whole prompt, so that whatever a search finds is in the answer.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from service.core.errors import ConfigurationError
from tests.api.test_bad_input import check_problem
from tests.api.test_collections import add, put
from tests.api.test_files import form
from tests.api.test_forbidden import MCP, RIGHTS, tool
from tests.api.test_tenants import entry, key, tenants
from tests.conftest import need
from tests.support.live import Live, config, live
from tests.support.scripted import ScriptStep, render

HEADER: Final = "X-Groups"
GROUPS: Final = [f"group {n}" for n in range(6)]
DRAWN = random.Random(34)
DOCUMENTS: Final[dict[str, set[str]]] = {
    f"zq{n:02}x": set(DRAWN.sample(GROUPS, DRAWN.choice([0, 1, 1, 2, 3]))) for n in range(40)
}
CALLERS: Final[list[list[str]]] = [
    [], ["nobody"], *([each] for each in GROUPS),
    *(DRAWN.sample(GROUPS, DRAWN.randint(2, 5)) for _ in range(6)),
]  # fmt: skip
QUESTION: Final = "Which word is hidden in the harbour?"


def document(word: str, allowed: set[str]) -> dict[str, Any]:
    """A document whose every part holds its word."""
    text = f"The harbour hides the word {word}."
    made = {"id": word, "title": f"Harbour {word}", "text": text, "note": word, "url": f"x:{word}"}
    return made | ({"access": sorted(allowed)} if allowed else {})


@asynccontextmanager
async def harbour(folder: Path, **server: Any) -> AsyncIterator[Live]:
    settings = config(folder, server=server, answers={"unsupported": "flag"})
    steps = [
        ScriptStep(match="Task: route", reply="single-step question", times=None),
        ScriptStep(match="Task: relevance", reply="true", times=None),
        ScriptStep(reply=render, times=None),
    ]
    async with live(steps, settings=settings, own_stores=True) as service:
        await put(service, "default")
        await add(service, [document(*each) for each in DOCUMENTS.items()], "default")
        yield service


def surfaces(hidden: str) -> list[tuple[str, str, Any, dict[str, str]]]:
    """Every kind of request that may show documents; some name one that the caller cannot see."""
    body = {"question": QUESTION, "top_k": 40}
    chat = {"model": "revelator", "revelator": {"top_k": 40}}
    once = {"Idempotency-Key": "once"}
    at = "/collections/default"
    messages = {"messages": [{"role": "user", "content": QUESTION}]}
    read = {"uri": "revelator://collections/default"}
    rpc = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": read}
    filtered = {"filter": {"access": [*GROUPS, "*"]}}
    return [
        ("POST", "/answer", body, {}),
        ("POST", "/answer", body | filtered, {}),
        ("POST", "/answer", body | {"loop": "no_retrieval"}, {}),
        ("POST", "/answer", body, once),
        ("POST", "/answer/stream", body, {}),
        ("POST", "/answer/stream", body, once),
        ("GET", f"/answer/stream?question={QUESTION}&top_k=40", None, {}),
        ("POST", "/v1/chat/completions", chat | messages, {}),
        ("POST", "/v1/chat/completions", chat | messages | {"stream": True}, {}),
        ("POST", "/v1/responses", chat | {"input": QUESTION}, {}),
        *(
            ("POST", "/search", {"query": QUESTION, "top_k": 100, "retriever": side} | more, {})
            for side in ("bm25", "dense", "hybrid")
            for more in ({}, filtered, {"filter": {"note": hidden}})
        ),
        ("POST", "/search", {"query": QUESTION, "filter": {"colour": "red"}}, {}),
        tool("answer", body),
        tool("search", {"query": QUESTION, "top_k": 100}),
        ("POST", "/mcp", rpc, MCP),
        ("GET", f"{at}/documents?limit=1000", None, {}),
        ("GET", f"{at}/documents?limit=3&after={hidden}", None, {}),
        ("GET", f"{at}/documents?text=harbour", None, {}),
        ("GET", f"{at}/documents?file={hidden}", None, {}),
        ("GET", f"{at}/documents/{hidden}", None, {}),
        ("DELETE", f"{at}/documents/{hidden}", None, {}),
        ("GET", at, None, {}),
        ("GET", "/collections", None, {}),
        ("GET", f"{at}/check", None, {}),
    ]  # fmt: skip


async def told(service: Live, call: tuple[str, str, Any, dict[str, str]], groups: list[str]) -> str:
    method, path, body, headers = call
    sent = headers | ({HEADER: ", ".join(groups)} if groups else {})
    return (await service.request(method, path, json=body, headers=sent)).text


async def test_nothing_of_a_hidden_document_is_in_any_response(tmp_path: Path) -> None:
    need("mcp")
    cases, shown = 0, 0
    async with harbour(tmp_path, principals_header=HEADER) as service:
        resumed: list[str] = []
        for groups in CALLERS:
            seen = {each for each, own in DOCUMENTS.items() if not own or own & set(groups)}
            hidden = next(each for each in DOCUMENTS if each not in seen)
            calls = surfaces(hidden)
            calls += [("POST", "/answer/stream", {}, {"Last-Event-ID": each}) for each in resumed]
            for call in calls:
                text = await told(service, call, groups)
                own = f"{call[1]}{call[2]}"  # what the caller itself has sent may be repeated
                words = set(re.findall(r"zq\d\dx", text)) - set(re.findall(r"zq\d\dx", own))
                assert words <= seen, (groups, call, words - seen)
                cases += len(DOCUMENTS)
                shown += len(words)
                if call[1] == "/collections/default" and call[0] == "GET":
                    assert json.loads(text)["documents"] == len(seen)
                if call[1].endswith("limit=1000") or (call[1] == "/search" and len(call[2]) == 3):
                    assert words == seen, call
                if "Last-Event-ID" in call[3]:
                    assert '"status":410' in text
                if call[3].get("Idempotency-Key") and "stream" in call[1]:
                    resumed = [*resumed[-1:], re.findall("id: (.*)", text)[1]]
    assert cases >= 10_000
    assert shown > cases / 10  # the responses do show what their callers may see


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_header_narrows_what_is_seen_and_never_widens_it(
    tmp_path: Path, trusted: bool
) -> None:
    """`owner` and `gateway` see everything and name a user; `sales` sees what it sees."""
    server = {"principals_header": HEADER} if trusted else {}
    settings = tenants(
        tmp_path,
        entry("gateway", rights=RIGHTS, principals=["*"]),
        entry("sales", rights=RIGHTS, principals=["sales"]),
        entry("other", rights=RIGHTS),
        keys=["owner"],
        **server,
    )
    documents = [{"id": each, "text": "A text.", "access": each} for each in ("b", "sales")]
    every, open_to_all = ["all", "b", "sales"], ["all"]
    async with live(settings=settings, own_stores=True) as service:
        url = "/collections/docs"
        assert (await service.put(url, json={}, headers=key("other"))).status == 200
        body = {"documents": [*documents, {"id": "all", "text": "x"}]}
        url = f"{url}/documents"
        assert (await service.post(url, json=body, headers=key("other"))).status == 200
        for name, sent, expected in (
            ("owner", {}, open_to_all if trusted else every),
            ("gateway", {}, open_to_all if trusted else every),
            ("gateway", {HEADER: " b ,c"}, ["all", "b"] if trusted else every),
            ("gateway", {HEADER: "*"}, open_to_all if trusted else every),
            ("sales", {}, ["all", "sales"]),
            ("sales", {HEADER: "b"}, ["all", "sales"]),
            ("other", {HEADER: "b"}, open_to_all),
        ):
            found = [
                each["id"]
                for each in (await service.get(url, headers=key(name) | sent)).json()["documents"]
            ]
            assert found == expected, (name, sent)
        large = key("gateway") | {HEADER: "x" * 10_240}
        response = await service.get("/collections", headers=large)
        if trusted:
            problem = check_problem(response, 400, "malformed-request")
            assert f"{HEADER} has 10,240 characters" in problem["detail"]
        else:
            assert response.status == 200


async def test_nobody_is_known_on_an_open_server_that_others_reach(tmp_path: Path) -> None:
    everyone = {each for each, own in DOCUMENTS.items() if not own}
    for insecure, expected in ((False, set(DOCUMENTS)), (True, everyone)):
        async with harbour(tmp_path / str(insecure), insecure=insecure) as service:
            call = "GET", "/collections/default/documents?limit=99", None, dict[str, str]()
            found = json.loads(await told(service, call, []))["documents"]
            assert {each["id"] for each in found} == expected


def test_principals_of_a_key_are_limited(tmp_path: Path) -> None:
    from service.api.app import create_app

    settings = tenants(tmp_path, entry("sales", principals=["x" * 5_000, "y" * 5_000]))
    with pytest.raises(ConfigurationError, match=r"tenants\.0\.principals: .*8,000.*have 10,000"):
        create_app(settings)


async def test_access_that_names_nobody_is_refused(mine: Live) -> None:
    wrong = [[], None, "", " ", 7, {"a": 1}, ["a", 1], ["a", ["b"]], "*", ["a", "*"], ["a"] * 257]
    report = await add(mine, [{"text": "A text.", "access": each} for each in wrong])
    assert (report["indexed"], len(report["failed"])) == (0, len(wrong))
    assert all(each["problem"].startswith("access must") for each in report["failed"])


async def test_files_get_the_access_of_their_request(mine: Live) -> None:
    rows = '{"id": "own", "text": "x", "access": "b"}\n{"id": "theirs", "text": "y"}'
    url = "/collections/mine/files?access=a&access=b+c"
    assert (await mine.post(url, data=form(("rows.jsonl", rows)))).status == 200
    for name, access in (("own", "b"), ("theirs", ["a", "b c"])):
        assert (await mine.get(f"/collections/mine/documents/{name}")).json()["metadata"][
            "access"
        ] == access
    url = "/collections/mine/files?access=*"
    check_problem(await mine.post(url, data=form(("rows.jsonl", rows))), 422, "invalid-request")
