"""What the modules share that need a real engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.vllm import OF_A_POOL, Vllm, vllm_server


@pytest.fixture(scope="session")
def plain_vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """A vLLM without our plugin that serves `tiny.TINY`. Started, not waited for."""
    with vllm_server(tmp_path_factory.mktemp("plain_vllm") / "log", *OF_A_POOL) as server:
        yield server
