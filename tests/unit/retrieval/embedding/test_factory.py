from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from service.core.errors import ConfigurationError
from service.core.settings import EmbeddingSettings, RetrievalSettings
from service.retrieval.embedding.contract import (
    BATCH,
    HASHING,
    MINILM,
    PRESETS,
    EmbeddingContract,
    Vector,
    differences,
    preset_of,
)
from service.retrieval.embedding.embedders import (
    HashingEmbedder,
    InProcessEmbedder,
    contract_of,
    open_embedder,
)
from service.retrieval.embedding.http import HttpEmbedder


def settings(model: str = "minilm", **embedding: Any) -> RetrievalSettings:
    return RetrievalSettings(embedding_model=model, embedding=EmbeddingSettings(**embedding))


def test_a_preset_is_found_by_its_name_and_by_the_models() -> None:
    for name, contract in PRESETS.items():
        assert preset_of(name) == preset_of(contract.model) == contract
    assert preset_of("sentence-transformers/all-MiniLM-L6-v2") == MINILM
    assert preset_of("e5") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("minilm", ("", "", "mean", True, "cosine", 256, 384)),
        ("e5-base-v2", ("query: ", "passage: ", "mean", True, "cosine", 512, 768)),
        ("e5-large-v2", ("query: ", "passage: ", "mean", True, "cosine", 512, 1024)),
        ("multilingual-e5-small", ("query: ", "passage: ", "mean", True, "cosine", 512, 384)),
        ("multilingual-e5-base", ("query: ", "passage: ", "mean", True, "cosine", 512, 768)),
        ("contriever-msmarco", ("", "", "mean", False, "dot", 512, 768)),
        (
            "bge-base-en-v1.5",
            ("Represent this sentence for searching relevant passages: ", "", "cls", True,
             "cosine", 512, 768),
        ),
    ],
)  # fmt: skip
def test_presets_are_as_their_model_cards_say(name: str, expected: tuple[Any, ...]) -> None:
    preset = PRESETS[name]
    assert (
        preset.query_prefix, preset.passage_prefix, preset.pooling, preset.normalise,
        preset.distance, preset.max_length, preset.dimension,
    ) == expected  # fmt: skip


def test_settings_change_a_preset_field_by_field() -> None:
    changed = contract_of(settings("e5-base-v2", query_prefix="", max_length=128))
    assert changed == PRESETS["e5-base-v2"].model_copy(
        update={"query_prefix": "", "max_length": 128}
    )
    assert differences(changed, PRESETS["e5-base-v2"]) == (
        "query_prefix is '', but the settings say 'query: '; max_length is 128, but the settings "
        "say 512"
    )
    assert differences(changed, changed) == ""


def test_a_model_without_a_preset(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 48}))
    assert contract_of(settings(str(tmp_path), pooling="cls")) == EmbeddingContract(
        model=str(tmp_path), dimension=48, pooling="cls"
    )
    served = contract_of(settings("text-embedding-3-small", url="http://h/v1", dimension=1536))
    assert (served.model, served.dimension) == ("text-embedding-3-small", 1536)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (settings("e5"), "not a preset .*e5-base-v2.*, a folder"),
        (settings("owner/name"), "set retrieval.embedding.dimension"),
        (settings("any", url="http://h/v1"), "set retrieval.embedding.dimension"),
        (settings("minilm", pooling="cls"), "embedding.pooling does not apply"),
    ],
)
def test_a_model_that_nobody_knows_is_refused(wrong: RetrievalSettings, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        open_embedder(wrong)


def test_the_settings_pick_the_embedder() -> None:
    assert open_embedder(settings()).contract == MINILM
    served = open_embedder(settings("bge-base-en-v1.5=mine", url="http://h/v1"))
    assert isinstance(served, HttpEmbedder)
    assert served.contract == PRESETS["bge-base-en-v1.5"]
    hashing = open_embedder(settings("hashing"))
    assert isinstance(hashing, HashingEmbedder)
    assert hashing.contract == HASHING


def test_importing_the_retriever_imports_nothing_heavy() -> None:
    code = (
        "import sys, service.retrieval.search.hybrid, service.retrieval.embedding.embedders\n"
        "heavy = {'torch', 'transformers', 'numpy', 'tantivy', 'qdrant_edge', 'elasticsearch',"
        " 'qdrant_client', 'tokenizers', 'onnx', 'onnxruntime', 'huggingface_hub'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


CONTRACT = EmbeddingContract(model="a model", dimension=1)


class Forward:
    """A stand-in for a model's forward pass: notes batches, waits when told to, may fail."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.started = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def __call__(self, texts: Sequence[str]) -> list[Vector]:
        self.started.set()
        assert self.gate.wait(20)
        self.batches.append(list(texts))
        if self.failure:
            raise self.failure
        return [[float(len(text))] for text in texts]


@pytest.fixture
def forward() -> Forward:
    return Forward()


@pytest.fixture
def embedder(forward: Forward) -> InProcessEmbedder:
    return InProcessEmbedder(CONTRACT, lambda: forward, lambda: None)


async def running(forward: Forward) -> None:
    await anyio.to_thread.run_sync(forward.started.wait)


async def test_passages_go_in_batches_by_length_and_come_back_in_order(
    forward: Forward, embedder: InProcessEmbedder
) -> None:
    texts = ["x" * (n * 37 % 100 + 1) for n in range(70)]
    vectors = await embedder.embed_passages(texts)
    assert vectors == [[float(len(text))] for text in texts]
    assert [len(batch) for batch in forward.batches] == [32, 32, 6]
    assert max(map(len, forward.batches[0])) <= min(map(len, forward.batches[1]))
    assert await embedder.embed_passages([]) == []


async def test_a_query_waits_for_one_batch_of_passages(
    forward: Forward, embedder: InProcessEmbedder
) -> None:
    forward.gate.clear()
    async with anyio.create_task_group() as group:
        group.start_soon(embedder.embed_passages, ["passage"] * 3 * BATCH)
        await running(forward)
        group.start_soon(embedder.embed_queries, ["query"])
        await anyio.lowlevel.checkpoint()
        forward.gate.set()
    assert [len(batch) for batch in forward.batches] == [BATCH, 1, BATCH, BATCH]
