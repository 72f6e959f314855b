"""The pairs of stores that every contract of retrieval is held to. Add an adapter here."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from service.retrieval.catalog.backends import Backends
from service.retrieval.stores.elastic_server import ElasticServer
from service.retrieval.stores.qdrant_server import QdrantServer
from tests.unit.retrieval.worlds import SETTINGS

# qdrant-client's engine in this process says that it scans everything.
QUIET = pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning")


def elastic_server(request: pytest.FixtureRequest) -> ElasticServer:
    return ElasticServer(request.getfixturevalue("elasticsearch_url"), SETTINGS.timeout_s)


def qdrant_server() -> QdrantServer:
    """The one of QDRANT_URL, else qdrant-client's engine in this process."""
    return QdrantServer(os.environ.get("QDRANT_URL") or ":memory:", SETTINGS.timeout_s)


WORLDS: dict[str, Callable[[pytest.FixtureRequest], Backends]] = {
    "tantivy and qdrant-edge": lambda request: Backends(),
    "tantivy and Qdrant": lambda request: Backends(None, qdrant_server()),
    "Elasticsearch and qdrant-edge": lambda request: Backends(elastic_server(request), None),
    "Elasticsearch and Qdrant": lambda request: Backends(elastic_server(request), qdrant_server()),
}
