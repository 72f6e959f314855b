"""Keys reach the servers as they were meant, and stand in no message, whatever goes wrong."""

from __future__ import annotations

import asyncio
import base64
import logging
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
import structlog
from aiohttp import web

from service.cli.check import check_in_terminal
from service.core.connections import trust
from service.core.errors import RevelatorError
from service.core.settings import RetrievalSettings
from service.engines.factory import open_generator
from service.retrieval.base import SearchRequest
from service.retrieval.collections.backends import open_backends
from service.retrieval.embedding.embedders import HashingEmbedder, open_embedder
from service.retrieval.search.hybrid import HybridRetriever
from service.retrieval.search.reranking import RerankServer, open_reranker
from tests.conftest import unavailable
from tests.server_nodes import Node, running_qdrant
from tests.support.documents import ingest_documents
from tests.support.live import config, live
from tests.support.stub_server import stubbed
from tests.unit.retrieval.worlds import CORPUS, opened

KEY = "zq/vx?y#x@z:1-secret"
NAME = "keyed"


@pytest.fixture(scope="module")
def keyed(qdrant_script: Path) -> Iterator[Node]:
    with running_qdrant(qdrant_script, settings={"QDRANT__SERVICE__API_KEY": KEY}) as node:
        yield node


@contextmanager
def trusting(files: Sequence[Path]) -> Iterator[None]:
    trust(files)
    try:
        yield
    finally:
        trust(())


async def used(folder: Path, **settings: Any) -> tuple[str, ...]:
    """What was missing in a search, after an ingest by these settings."""
    made = RetrievalSettings(embedding_model="hashing", timeout_s=5.0, **settings)
    backends = open_backends(made)
    try:
        async with opened(folder, backends=backends) as collections:
            await backends.drop(NAME)
            await collections.create(NAME)
            await ingest_documents(CORPUS, NAME, collections)
            retriever = HybridRetriever(collections, HashingEmbedder(), made)
            return (await retriever.search(SearchRequest("volcano", 2, NAME))).missing
    finally:
        await backends.aclose()


@pytest.mark.parametrize("place", ["setting", "file", "URL", "encoded URL"])
@pytest.mark.parametrize("protocol", ["gRPC", "REST"])
async def test_qdrant_takes_the_key(tmp_path: Path, keyed: Node, place: str, protocol: str) -> None:
    host = keyed.url.removeprefix("http://")
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    settings: dict[str, Any] = {
        "setting": {"qdrant_url": keyed.url, "qdrant_key": KEY},
        "file": {"qdrant_url": keyed.url, "qdrant_key_file": file},
        "URL": {"qdrant_url": f"http://:{KEY}@{host}"},
        "encoded URL": {"qdrant_url": f"http://:{quote(KEY, safe='')}@{host}"},
    }[place]
    port = keyed.grpc_port if protocol == "gRPC" else 0
    assert await used(tmp_path, qdrant_grpc_port=port, **settings) == ()


class Echo:
    """Answers every request with a status, and all its headers in the body."""

    def __init__(self) -> None:
        self.status = 200
        self.url = ""
        self.seen: set[str] = set()

    async def handle(self, request: web.Request) -> web.Response:
        self.seen.update(request.headers.values())
        said = " ".join(f"{name}: {value}" for name, value in request.headers.items())
        body = {"error": {"type": "echo", "reason": said, "message": said}, "status": said}
        headers = {"x-elastic-product": "Elasticsearch"}
        return web.json_response(body, status=self.status, headers=headers)


echo = stubbed(Echo)


def settings_of(folder: Path, url: str, place: str) -> dict[str, Any]:
    """Every backend at one place, with the key in its `URL` or in a setting of its own; that of
    Elasticsearch is a `password` or an `API key`."""
    in_url = place == "URL"
    host = url.removeprefix("http://")
    with_key = f"http://:{KEY}@{host}" if in_url else url
    with_login = f"http://user:{KEY}@{host}" if in_url else url
    retrieval: dict[str, Any] = {
        "qdrant_url": with_key, "qdrant_grpc_port": 0, "elasticsearch_url": with_login,
        "embedding_model": "other", "timeout_s": 1.0,
        "embedding": {"url": f"{with_login}/v1", "dimension": 3},
        "reranker": {"kind": "tei", "url": with_login},
    }  # fmt: skip
    engine: dict[str, Any] = {"kind": "openai", "urls": [f"{with_login}/v1"], "model": "m"}
    if not in_url:
        retrieval["qdrant_key"] = KEY
        retrieval["elasticsearch_key"] = KEY
        if place != "API key":
            retrieval["elasticsearch_url"] = f"http://user@{host}"
        retrieval["embedding"]["key"] = retrieval["reranker"]["key"] = engine["key"] = KEY
    return {"data_dir": str(folder), "retrieval": retrieval, "engines": {"default": engine}}


async def everything_said(folder: Path, settings: dict[str, Any]) -> str:
    """Bodies of every path that meets a backend, what embedder and engine raise, and what
    `revelator check` prints."""
    told: list[str] = []
    made = config(**settings)
    engine = open_generator("default", made.engines["default"])
    async with live(engine, settings=made, own_stores=True) as service:
        for path in ("/readyz", "/startupz", "/collections", "/collections/c", "/openapi.json"):
            async with service.http.get(path) as response:
                told.append(await response.text())
        for method, path in (("PUT", "/collections/c"), ("DELETE", "/collections/c")):
            async with service.http.request(method, path) as response:
                told.append(await response.text())
        told += [str(await service.ask(route=route)) for route in ("direct", "single")]
        async with service.http.get("/metrics") as response:
            told.append(await response.text())
    told.append(repr(made))
    embedder = open_embedder(made.retrieval)
    for work in (engine.check, lambda: embedder.embed_queries(["q"])):
        try:
            await work()
        except RevelatorError as error:
            told.append(f"{error!r} {error.detail}")
    await engine.aclose()
    await embedder.aclose()
    await check_in_terminal(made)
    return "\n".join(told)


@pytest.mark.parametrize("place", ["URL", "password", "API key"])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 429, 500, 503, 507, None])
async def test_no_message_of_any_fault_holds_the_key(
    tmp_path: Path,
    echo: Echo,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    status: int | None,
    place: str,
) -> None:
    """None: nobody listens."""
    echo.status = status or 500
    url = echo.url if status else "http://127.0.0.1:9"
    caplog.set_level(logging.DEBUG)
    with structlog.testing.capture_logs() as logs:
        told = await everything_said(tmp_path, settings_of(tmp_path, url, place))
    printed = capfd.readouterr()
    told = "\n".join((told, str(logs), caplog.text, printed.out, printed.err))
    assert urlsplit(url).netloc in told
    basic = base64.b64encode(f"user:{KEY}".encode()).decode()
    if status:  # it was sent, as it was meant
        assert any(basic in each for each in echo.seen) or any(KEY in each for each in echo.seen)
    for secret in (KEY, quote(KEY, safe=""), basic, "1-secret", "zq/vx"):
        assert secret not in told


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Self-signed, for 127.0.0.1; key and certificate in one file."""
    if shutil.which("openssl") is None:
        unavailable("openssl", "install it to try servers behind a certificate of their own")
    folder = tmp_path_factory.mktemp("tls")
    key, made, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(key), "-out", str(made)],
        check=True, capture_output=True,
    )  # fmt: skip
    both.write_text(key.read_text() + made.read_text())
    return both


@asynccontextmanager
async def behind_tls(target: str, certificate: Path, port: int = 0) -> AsyncIterator[int]:
    """A port on which TLS is spoken, before a server that speaks none."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    host, _, own = target.partition(":")

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up, down = await asyncio.open_connection(host, int(own))
        await asyncio.gather(pump(reader, down), pump(up, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", port, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("protocol", ["gRPC", "REST"])
async def test_qdrant_behind_a_certificate_of_its_own(
    tmp_path: Path, keyed: Node, certificate: Path, protocol: str
) -> None:
    host = keyed.url.removeprefix("http://")
    async with (
        behind_tls(host, certificate) as port,
        behind_tls(f"127.0.0.1:{keyed.grpc_port}", certificate) as grpc_port,
    ):
        settings = {
            "qdrant_url": f"https://127.0.0.1:{port}", "qdrant_key": KEY,
            "qdrant_grpc_port": grpc_port if protocol == "gRPC" else 0,
        }  # fmt: skip
        with trusting([certificate]):
            assert await used(tmp_path, **settings) == ()
        with pytest.raises(RevelatorError, match=r"cannot be reached.*CERTIFICATE"):
            await used(tmp_path, **settings)


async def test_elasticsearch_behind_a_certificate_of_its_own(
    tmp_path: Path, elasticsearch_url: str, certificate: Path
) -> None:
    async with behind_tls(urlsplit(elasticsearch_url).netloc, certificate) as port:
        settings = {"elasticsearch_url": f"https://127.0.0.1:{port}"}
        with trusting([certificate]):
            assert await used(tmp_path, **settings) == ()
        with pytest.raises(RevelatorError, match=r"(?i)cannot be reached.*certificate"):
            await used(tmp_path, **settings)


async def test_engines_embeddings_and_rerankers_behind_a_certificate_of_their_own(
    tmp_path: Path, echo: Echo, certificate: Path
) -> None:
    """They come through to the server, whose answer is then none that they know."""
    echo.status = 503
    async with behind_tls(urlsplit(echo.url).netloc, certificate) as port:
        url = f"https://127.0.0.1:{port}"
        for files, expected in (([certificate], "answered 503"), ([], "(?i)certificate")):
            made = config(
                engines={"default": {"kind": "openai", "urls": [f"{url}/v1"], "model": "m"}},
                retrieval={
                    "embedding_model": "other",
                    "embedding": {"url": f"{url}/v1", "dimension": 3},
                    "reranker": {"kind": "tei", "url": url},
                },
            )
            engine = open_generator("default", made.engines["default"])
            embedder = open_embedder(made.retrieval)
            assert made.retrieval.reranker is not None
            reranker = open_reranker(made.retrieval.reranker)
            assert isinstance(reranker, RerankServer)
            with trusting(files):
                with pytest.raises(RevelatorError, match=expected):
                    await engine.check()
                with pytest.raises(RevelatorError, match=expected):
                    await embedder.embed_queries(["q"])
                with pytest.raises(RevelatorError, match=expected):
                    await reranker.scores("q", ["p"])
            for each in (engine, embedder, reranker):
                await each.aclose()
