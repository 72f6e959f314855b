"""Which protocol is spoken to a real Qdrant, and that no other server is ever written to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio.to_thread
import pytest

from service.cli.check import check_in_terminal
from service.retrieval.embedding.contract import EmbeddingContract
from service.retrieval.stores import qdrant_server
from service.retrieval.stores.qdrant_server import QdrantServer
from service.retrieval.stores.qdrant_store import QdrantStore
from tests.faults.proxy import free_port
from tests.qdrant_node import QdrantNode, running_qdrant
from tests.support.live import config

pytestmark = pytest.mark.anyio

CONTRACT = EmbeddingContract(model="m", dimension=3)


@pytest.fixture
def nodes(qdrant_script: Path) -> Iterator[list[QdrantNode]]:
    """Two servers that know nothing of each other."""
    with ExitStack() as stack:
        yield [stack.enter_context(running_qdrant(qdrant_script)) for _ in range(2)]


async def create(server: QdrantServer, name: str) -> None:
    await anyio.to_thread.run_sync(QdrantStore.create, server, name, CONTRACT)


async def held(node: QdrantNode) -> list[str]:
    server = QdrantServer(node.url, 5.0, 0)
    try:
        found = await server.call(lambda client: client.get_collections())
        return sorted(each.name for each in found.collections)
    finally:
        await server.aclose()


@pytest.fixture
async def server(nodes: list[QdrantNode]) -> AsyncIterator[QdrantServer]:
    """Named by the first one's URL, with the gRPC port of the second."""
    made = QdrantServer(nodes[0].url, 5.0, nodes[1].grpc_port)
    yield made
    await made.aclose()


@pytest.mark.parametrize("of_both", ["nothing", "the same names", "other names"])
async def test_nothing_goes_to_another_server(
    nodes: list[QdrantNode], server: QdrantServer, of_both: str
) -> None:
    before: list[list[str]] = [[], []]
    for number, node in enumerate(nodes if of_both != "nothing" else []):
        own = QdrantServer(node.url, 5.0, 0)
        name = "held" if of_both == "the same names" else f"held-{number}"
        await create(own, name)
        await own.aclose()
        before[number] = [f"revelator-{name}"]
    await create(server, "new")
    assert server.protocol == "REST"
    assert await held(nodes[0]) == sorted([*before[0], "revelator-new"])
    assert await held(nodes[1]) == before[1]


async def test_grpc_is_spoken_from_the_first_collection_on(nodes: list[QdrantNode]) -> None:
    server = QdrantServer(nodes[0].url, 5.0, nodes[0].grpc_port)
    await server.connect()
    assert server.protocol == "REST"  # an empty server proves nothing
    await create(server, "first")
    assert server.protocol == "gRPC"
    await server.aclose()
    again = QdrantServer(nodes[0].url, 5.0, nodes[0].grpc_port)
    await again.connect()
    assert again.protocol == "gRPC"
    await again.aclose()


async def test_the_grpc_port_is_the_next_one(qdrant_script: Path) -> None:
    port = free_port(pair=True)
    with running_qdrant(qdrant_script, ports=(port, port + 1)) as node:
        server = QdrantServer(node.url, 5.0)
        await create(server, "first")
        assert server.protocol == "gRPC"
        await server.aclose()


async def test_what_began_while_it_was_down_speaks_grpc_later(
    qdrant_script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qdrant_server, "LOOK_AGAIN_S", 0.1)
    with running_qdrant(qdrant_script, data=tmp_path) as node:
        first = QdrantServer(node.url, 5.0, node.grpc_port)
        await create(first, "held")
        await first.aclose()
    server = QdrantServer(node.url, 5.0, node.grpc_port)
    await server.connect()
    with running_qdrant(qdrant_script, tmp_path, (node.port, node.grpc_port)):
        async with asyncio.timeout(30):
            while server.protocol != "gRPC":
                await server.call(lambda client: client.get_collections())
                await asyncio.sleep(0.05)
    await server.aclose()


def qdrant_row(printed: str) -> str:
    """The row of the table, which has a mark before the name; lines of the log have not."""
    (row,) = [line for line in printed.splitlines() if line.split()[1:2] == ["qdrant"]]
    return row


@pytest.mark.parametrize(
    ("at_the_port", "told"),
    [
        ("itself", "gRPC is used"),
        ("another", "REST is used; another server responds at retrieval.qdrant_grpc_port"),
        ("nobody", "REST is used; no gRPC server responds at retrieval.qdrant_grpc_port"),
        ("nothing is tried", "REST is used"),
    ],
)
async def test_check_says_how_it_is_spoken_to(
    tmp_path: Path,
    nodes: list[QdrantNode],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    at_the_port: str,
    told: str,
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    for number, node in enumerate(nodes):
        own = QdrantServer(node.url, 5.0, 0)
        await create(own, f"held-{number}")
        await own.aclose()
    ports = {
        "itself": nodes[0].grpc_port,
        "another": nodes[1].grpc_port,
        "nobody": free_port(),
        "nothing is tried": 0,
    }
    retrieval = {"qdrant_url": nodes[0].url, "qdrant_grpc_port": ports[at_the_port]}
    settings = config(data_dir=str(tmp_path), retrieval={"embedding_model": "hashing", **retrieval})
    await check_in_terminal(settings)
    row = qdrant_row(capsys.readouterr().out)
    assert row.split()[0] == "ok"
    assert row.rstrip().endswith(f"{nodes[0].url}: {told}")


async def test_check_says_that_it_does_not_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    retrieval = {"qdrant_url": f"http://127.0.0.1:{free_port()}"}
    settings = config(data_dir=str(tmp_path), retrieval={"embedding_model": "hashing", **retrieval})
    assert await check_in_terminal(settings) == 1
    row = qdrant_row(capsys.readouterr().out)
    assert row.split()[0] == "failed"
    assert "cannot be reached" in row
