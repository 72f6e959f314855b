from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from service.core.settings import EngineSettings
from service.engines.embedded import EmbeddedGenerator
from service.engines.local import LocalGenerator
from tests.stubs.tiny_model import save_tiny_model

OpenLocal = Callable[..., LocalGenerator]
OpenEmbedded = Callable[..., EmbeddedGenerator]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture
async def open_local(tiny_model: Path, anyio_backend: str) -> AsyncIterator[OpenLocal]:
    """Opens engines on the tiny model, and closes them."""
    opened: list[LocalGenerator] = []

    def open_one(**settings: Any) -> LocalGenerator:
        values = {"model": str(tiny_model), **settings}
        opened.append(LocalGenerator("local", EngineSettings.model_validate(values), threads=1))
        return opened[-1]

    yield open_one
    for generator in opened:
        await generator.aclose()


@pytest.fixture
async def open_embedded(anyio_backend: str) -> AsyncIterator[OpenEmbedded]:
    """Opens engines on compiled folders, and closes them."""
    opened: list[EmbeddedGenerator] = []

    def open_one(folder: Path | None, **settings: Any) -> EmbeddedGenerator:
        values = {"kind": "embedded", "model": str(folder) if folder else None, **settings}
        own = EngineSettings.model_validate(values)
        opened.append(EmbeddedGenerator("embedded", own, threads=1))
        return opened[-1]

    yield open_one
    for generator in opened:
        await generator.aclose()
