"""Collections and documents over HTTP, in the real embedded stores with a hashing embedder."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from yarl import URL

from service.api import wire as bodies
from service.cli.ingest import run_ingest
from service.cli.options import IngestOptions
from service.cli.upkeep import list_collections
from service.client import Client
from service.retrieval.documents import Document
from tests.api.test_bad_input import check_problem
from tests.conftest import need
from tests.support.live import Live, config, live
from tests.support.office import pdf

NDJSON = {"Content-Type": "application/x-ndjson"}
TEXT = "Norma was composed by Vincenzo Bellini."
METADATA = {"year": 1831, "url": "https://example.org/n", "page": 2}
NORMA = {"id": "n", "title": "Norma", "text": TEXT, **METADATA}


@asynccontextmanager
async def stored(tmp_path: Path) -> AsyncIterator[Live]:
    async with live(settings=config(tmp_path), own_stores=True) as service:
        yield service


async def put(service: Live, name: str = "mine", **body: Any) -> dict[str, Any]:
    response = await service.put(f"/collections/{name}", json=body)
    assert response.status == 200, response.text
    found: dict[str, Any] = response.json()
    return found


async def add(service: Live, documents: list[Any], name: str = "mine") -> dict[str, Any]:
    url = f"/collections/{name}/documents"
    response = await service.post(url, json={"documents": documents})
    assert response.status == 200, response.text
    report: dict[str, Any] = response.json()
    return report


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, ["n", "t"]),
        ({"top_k": 1}, ["n"]),
        ({"retriever": "bm25", "filter": {"year": 1887}}, ["t"]),
        ({"retriever": "dense", "filter": {"year": [1831, 1887]}}, ["n", "t"]),
        ({"filter": {"year": 1900}}, []),
    ],
)
async def test_a_search_returns_passages_without_an_answer(
    mine: Live, fields: dict[str, Any], found: list[str]
) -> None:
    await add(mine, [NORMA, {"id": "t", "text": "Otello was composed.", "year": 1887}])
    body = {"query": "Who composed Norma?", "collection": "mine"} | fields
    passages = (await mine.post("/search", json=body)).json()["passages"]
    assert [each["passage_id"] for each in passages] == found
    assert [each["rank"] for each in passages] == list(range(1, len(found) + 1))
    async with Client(mine.url) as client:
        same = await client.search(**body)
    assert [each.passage_id for each in same] == found
    if "n" in found:
        assert (same[0].text, same[0].url, same[0].page) == (TEXT, METADATA["url"], 2)
    assert await mine.metric("revelator_questions_in_flight") == 0


@pytest.mark.parametrize(
    ("fields", "status", "named"),
    [
        ({"query": ""}, 422, "query"),
        ({"query": "a" * 4_001}, 422, "query"),
        ({"top_k": 0}, 422, "top_k"),
        ({"filter": {"colour": "red"}}, 422, "colour"),
        ({"collection": "gone"}, 404, "gone"),
        ({"question": "Who?"}, 422, "question"),
    ],
)
async def test_a_search_says_what_is_wrong(
    mine: Live, fields: dict[str, Any], status: int, named: str
) -> None:
    body = {"query": "Who composed Norma?", "collection": "mine"} | fields
    response = await mine.post("/search", json=body)
    problem = response.json()
    assert response.status == status
    assert named in problem["detail"]


async def test_a_collection_lives_from_put_to_delete(tmp_path: Path) -> None:
    async with stored(tmp_path) as service:
        made = await put(service, description="operas", metadata_fields=["year"])
        assert (made["name"], made["description"], made["documents"]) == ("mine", "operas", 0)
        response = await service.put("/collections/mine")
        assert (response.status, response.json()) == (200, made)
        changed = await put(service, metadata_fields=["city"])
        assert changed["metadata_fields"] == ["city", "year"]
        assert changed["description"] == "operas"
        assert (await put(service, description="new", analysis="english"))["description"] == "new"
        response = await service.get("/collections")
        names = [each["name"] for each in response.json()["collections"]]
        assert "mine" in names
        response = await service.delete("/collections/mine")
        assert (response.status, response.content) == (204, b"")
        for method in ("get", "delete"):
            check_problem(await service.request(method, "/collections/mine"), 404, "not-found")


async def test_documents_go_in_once_are_found_and_go_out(mine: Live) -> None:
    assert await add(mine, [NORMA]) == {"indexed": 1, "unchanged": 0, "failed": []}
    assert await add(mine, [NORMA]) == {"indexed": 0, "unchanged": 1, "failed": []}
    document = (await mine.get("/collections/mine/documents/n")).json()
    assert document["passages"] == [{"passage_id": "n", "text": TEXT}]
    assert document["metadata"] == METADATA
    status, body = await mine.ask(
        "Who composed Norma?", collection="mine", route="single", filter={"year": 1831}
    )
    assert (status, body["answer"]) == (200, "Vincenzo Bellini")
    (citation,) = body["citations"]
    assert (citation["passage_id"], citation["url"], citation["page"]) == (
        "n", "https://example.org/n", 2,
    )  # fmt: skip
    assert (await mine.delete("/collections/mine/documents/n")).status == 204
    check_problem(await mine.get("/collections/mine/documents/n"), 404, "not-found")
    check_problem(await mine.delete("/collections/mine/documents/n"), 404, "not-found")


async def test_pages_that_a_file_no_longer_has_are_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    need("pypdf")
    file = tmp_path / "handbook.pdf"
    settings = config(tmp_path)
    async with live(settings=settings, own_stores=True, watched=False) as service:
        for pages, told in (
            (["Norma.", "Tosca.", "Aida.", "Etna."], "4 documents indexed"),
            (["Norma.", "Etna."], "2 removed, because their files no longer contain them"),
            (["Norma."], "1 removed, because their files no longer contain them"),
        ):
            file.write_bytes(pdf(pages))
            options = IngestOptions(collection="mine", url=service.url)
            assert await run_ingest([file], options, settings) == 0
            assert told in " ".join(capsys.readouterr().out.split())
        found = (await service.get("/collections/mine/documents?file=handbook.pdf")).json()
        (page,) = found["documents"]
        assert (page["id"], page["title"], page["passages"]) == (
            "handbook.pdf#page=1", "handbook", 1,
        )  # fmt: skip
        assert found["next"] is None
        assert (await service.get("/collections/mine")).json()["documents"] == 1


async def test_documents_are_listed_a_page_at_a_time(mine: Live) -> None:
    await add(mine, [{"id": f"d{n}", "title": f"Part {n}", "text": "Text."} for n in range(5)])
    seen, after, pages = [], "", 0
    while after is not None:
        at = f"/collections/mine/documents?limit=2&after={after}"
        page = (await mine.get(at)).json()
        seen += [each["id"] for each in page["documents"]]
        after, pages = page["next"], pages + 1
    assert (seen, pages) == (["d0", "d1", "d2", "d3", "d4"], 3)
    for text, found in (("D3", ["d3"]), ("part 4", ["d4"]), ("none", [])):
        at = f"/collections/mine/documents?text={text}"
        assert [each["id"] for each in (await mine.get(at)).json()["documents"]] == found


async def test_bad_documents_are_named_and_the_rest_goes_in(mine: Live) -> None:
    documents = [
        NORMA, {"id": "x"}, 7, {"text": "No id is fine."}, {"id": "n", "text": "The later wins."},
        None,
    ]  # fmt: skip
    report = await add(mine, documents)
    assert report["indexed"] == 3
    assert [(each["index"], each["id"]) for each in report["failed"]] == [
        (1, "x"), (2, None), (5, None),
    ]  # fmt: skip
    assert all(each["problem"] for each in report["failed"])
    assert report["failed"][2]["problem"].endswith("not null")
    assert (await mine.get("/collections/mine/documents/n")).json()["passages"][0][
        "text"
    ] == "The later wins."
    assert (await mine.get("/collections/mine")).json()["documents"] == 2


async def test_lines_may_be_many_and_a_line_of_5_mb_is_one_bad_line(
    mine: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_BODY_BYTES", 1000)

    async def lines() -> AsyncIterator[bytes]:
        for number in range(600):
            line = json.dumps({"id": f"d{number}", "text": f"Text {number}."}).encode() + b"\n"
            yield line[:7]  # lines and chunks do not agree
            yield line[7:]
        yield b'{"id": "cut'
        yield b"\n\n"
        for _ in range(100):
            yield b"x" * 50_000
        yield b'\n{"text": "\xff"}\n'
        yield b'{"id": "last", "text": "Without an end."}'

    url = "/collections/mine/documents"
    report = (await mine.post(url, data=lines(), headers=NDJSON)).json()
    assert report["indexed"] == 601
    assert [each["index"] for each in report["failed"]] == [600, 602, 603]
    assert "1,000,000" in report["failed"][1]["problem"]
    found = (await mine.get("/collections/mine")).json()
    assert (found["documents"], found["state"]) == (601, "complete")


async def test_a_client_that_leaves_an_upload_leaves_a_whole_collection(mine: Live) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", mine.port)
    head = "POST /collections/mine/documents HTTP/1.1\r\nHost: localhost\r\n"
    writer.write(f"{head}Content-Length: 9999\r\n".encode())
    writer.write(b"Content-Type: application/x-ndjson\r\n\r\n")
    writer.write(b'{"id": "a", "text": "Whole."}\n{"id": "b", "te')
    await writer.drain()
    await asyncio.sleep(0.2)
    writer.close()
    await writer.wait_closed()
    found: dict[str, Any] = {}
    with anyio.fail_after(30):  # what came before it left is written in its own time
        while found.get("documents") != 1:
            found = (await mine.get("/collections/mine")).json()
    report = await add(mine, [{"id": "c", "text": "Next."}])
    assert report["indexed"] == 1
    found = (await mine.get("/collections/mine")).json()
    assert (found["documents"], found["state"]) == (2, "complete")
    del reader


BAD: list[tuple[str, str, Any, int, str]] = [
    ("put", "/collections/Bad%20Name", {}, 422, "invalid-request"),
    ("put", "/collections/sample", {}, 422, "invalid-request"),
    ("put", "/collections/mine", {"colour": 1}, 422, "invalid-request"),
    ("put", "/collections/mine", {"analysis": "klingon"}, 422, "invalid-request"),
    ("put", "/collections/mine", {"metadata_fields": "year"}, 422, "invalid-request"),
    ("put", "/collections/mine", [], 422, "invalid-request"),
    ("post", "/collections/none/documents", {"documents": []}, 404, "not-found"),
    ("post", "/collections/mine/documents", {"documents": {}}, 422, "invalid-request"),
    ("post", "/collections/mine/documents", {"docs": []}, 422, "invalid-request"),
    ("get", "/collections/none", None, 404, "not-found"),
    ("get", "/collections/mine/documents/none", None, 404, "not-found"),
    ("delete", "/collections/sample", None, 422, "invalid-request"),
    # Only a question in progress may name a generation.
    ("get", "/collections/mine@1", None, 404, "not-found"),
    ("put", "/collections/mine@1", {}, 422, "invalid-request"),
    ("delete", "/collections/mine@1", None, 404, "not-found"),
    ("post", "/collections/sample@1/documents", {"documents": [NORMA]}, 404, "not-found"),
    ("put", "/collections/mine@/documents", {"documents": [NORMA]}, 404, "not-found"),
    ("delete", "/collections/mine@1/documents/n", None, 404, "not-found"),
    ("post", "/answer", {"question": "Who?", "collection": "mine@1"}, 404, "not-found"),
    ("get", f"/collections/mine/documents?file={'é' * 257}", None, 422, "invalid-request"),
    ("get", f"/collections/mine/documents?file={'é' * 512}", None, 422, "invalid-request"),
    ("get", f"/collections/mine/documents?after={'é' * 257}", None, 422, "invalid-request"),
    ("get", "/collections/mine/documents?limit=1001", None, 422, "invalid-request"),
    ("get", "/collections/absent/documents", None, 404, "not-found"),
]


async def test_each_bad_request_is_a_problem(mine: Live) -> None:
    await add(mine, [NORMA])
    assert (await mine.get("/collections/sample/documents?file=x")).status == 200  # which opens it
    for method, path, body, status, slug in BAD:
        check_problem(await mine.request(method, f"{mine.url}{path}", json=body), status, slug)
    url = "/collections/mine/documents"
    check_problem(
        await mine.post(url, data=b"a,b", headers={"Content-Type": "text/csv"}),
        415,
        "unsupported-media-type",
    )


async def test_a_line_break_in_a_path_names_no_other_document(mine: Live) -> None:
    report = await add(mine, [NORMA, NORMA | {"id": "n\n"}, NORMA | {"id": "a\nb"}])
    assert report["indexed"] == 1
    assert [(each["index"], each["id"]) for each in report["failed"]] == [
        (1, "n\n"),
        (2, "a\nb"),
    ]
    assert "must not contain line breaks" in report["failed"][0]["problem"]
    for method in ("get", "delete"):
        for name in ("n%0A", "%0An", "n%0Ab"):
            url = URL(f"{mine.url}/collections/mine/documents/{name}", encoded=True)
            check_problem(await mine.request(method, url), 404, "not-found")
    assert (await mine.get("/collections/mine/documents/n")).status == 200


async def test_an_old_document_with_a_line_break_in_its_id_can_be_deleted(mine: Live) -> None:
    async with mine.app.state.runtime.retrieval.collections.writing("mine") as writer:
        await writer.write([Document("a/b\nc\n", "", TEXT)])
    url = URL(f"{mine.url}/collections/mine/documents/a%2Fb%0Ac%0A", encoded=True)
    assert (await mine.get(url)).json()["id"] == "a/b\nc\n"
    assert (await mine.delete(url)).status == 204


async def test_a_file_may_have_the_longest_name_of_a_document(mine: Live) -> None:
    names = ["é" * 256, "漢" * 170, "." * 512]
    await add(mine, [NORMA | {"id": name} for name in names])
    for name in names:
        url = "/collections/mine/documents"
        assert [
            each["id"] for each in (await mine.get(url, params={"file": name})).json()["documents"]
        ] == [name]


async def test_a_document_that_is_nested_too_deeply_leaves_the_others(mine: Live) -> None:
    deep = b'{"id": "deep", "text": "Text.", "m": ' + b"[" * 253 + b"]" * 253 + b"}"
    url, lines = "/collections/mine/documents", json.dumps(NORMA).encode() + b"\n" + deep
    response = await mine.post(url, data=lines, headers=NDJSON)
    report = response.json()
    assert (response.status, report["indexed"]) == (200, 1)
    [failed] = report["failed"]
    assert failed["id"] == "deep"
    assert "the field 'm' has objects or lists nested more than 30 deep" in failed["problem"]


async def test_one_collection_that_cannot_be_read_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt = tmp_path / "collections" / "spoilt" / "manifest.json"
    spoilt.parent.mkdir(parents=True)
    spoilt.write_text("{")
    async with stored(tmp_path) as service:
        await put(service)
        found = (await service.get("/collections")).json()
        assert [each["name"] for each in found["collections"]] == ["mine", "sample"]
        assert [*found["problems"]] == ["spoilt"]
        assert "delete the collection and ingest it again" in found["problems"]["spoilt"]
        await list_collections(service.app.state.settings, url=service.url)
        printed = capsys.readouterr().out
        assert "mine" in printed
        assert f"spoilt: {spoilt}" in printed
