"""Embedders in this process, one forward pass at a time in a worker thread, and the opening of the
one that the settings name."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from service.core.errors import ConfigurationError, RevelatorError
from service.core.extras import missing_packages
from service.core.settings import RetrievalSettings
from service.core.settings.retrieval import Pooling
from service.encoders.in_process import (
    InProcess,
    in_batches,
    open_model,
    open_pretrained,
    packs,
    padded_rows,
)
from service.retrieval.embedding.contract import (
    BATCH,
    HASHING,
    MINILM,
    PRESETS,
    Embedder,
    EmbeddingContract,
    Vector,
    preset_of,
)
from service.text import content_words
from service.text.wordpiece import minilm_tokenizer

Encode = Callable[[Sequence[str]], list[Vector]]


class InProcessEmbedder(Embedder):
    """An embedder whose callers take turns by batch, so that a query waits for at most one batch of
    passages.

    `load` creates the model's forward pass at the first use, in a worker thread; `problem` says why
    it cannot, and loads nothing.
    """

    def __init__(
        self,
        contract: EmbeddingContract,
        load: Callable[[], Encode],
        problem: Callable[[], str | None],
    ) -> None:
        self.contract = contract
        self._load = load
        self._problem = problem
        self._model = InProcess(contract.model, self._loaded, RevelatorError)

    def problem(self) -> str | None:
        return self._problem()

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return await in_batches(
            texts, BATCH, lambda part: self._model.run(lambda encode, _: encode(part))
        )

    def _loaded(self) -> Encode:
        if problem := self._problem():
            raise ConfigurationError(problem)
        return self._load()


# Vectors of words alone, for tests and for trying the stores on a base install.


class HashingEmbedder(Embedder):
    """Content words hashed into 384 signed buckets, without weights or torch.

    It matches words, as BM25 does, not meanings.
    """

    contract = HASHING

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        return [_vector(text) for text in texts]


def _vector(text: str) -> Vector:
    vector = [0.0] * HASHING.dimension
    for word in content_words(text) or {text}:
        digest = hashlib.blake2b(word.encode(), digest_size=4).digest()
        number = int.from_bytes(digest)
        vector[number % len(vector)] += 1.0 if number >> 31 else -1.0
    length = math.sqrt(sum(value * value for value in vector))
    if not length:
        return [1.0] + [0.0] * (len(vector) - 1)
    return [value / length for value in vector]


# all-MiniLM-L6-v2 on ONNX Runtime, from the files in `models/minilm`.

FOLDER: Final = Path(__file__).parents[2] / "models" / "minilm"
LAYERS: Final = 6
_NEEDED: Final = ("numpy", "onnxruntime")


def minilm_problem() -> str | None:
    """Return what is not installed and how to install it, or None."""
    return missing_packages("all-MiniLM-L6-v2", _NEEDED, "local")


def minilm_embedder(
    contract: EmbeddingContract, threads: int, layers: int = LAYERS
) -> InProcessEmbedder:
    """Create the embedder. `contract` may differ from the preset only in prefixes and length."""
    return InProcessEmbedder(
        contract, lambda: load_minilm(contract, threads, layers), minilm_problem
    )


def load_minilm(contract: EmbeddingContract, threads: int, layers: int = LAYERS) -> Encode:
    """Load the forward pass through the first `layers` layers. Raises ConfigurationError."""
    tokenizer = minilm_tokenizer()
    if contract.max_length is not None:
        tokenizer.enable_truncation(contract.max_length)
    session = open_model(FOLDER / f"layers-{layers}.onnx", threads, "install revelator again")

    def encode(texts: Sequence[str]) -> list[Vector]:
        tokens = [item.ids for item in tokenizer.encode_batch(list(texts))]
        vectors: list[Vector] = [[]] * len(texts)
        for part in packs([len(ids) for ids in tokens]):
            ids = padded_rows([tokens[index] for index in part])
            mask = padded_rows([[1] * len(tokens[index]) for index in part])
            made = session.run(None, {"ids": ids, "mask": mask})[0].tolist()
            for index, vector in zip(part, made, strict=True):
                vectors[index] = vector
        return vectors

    return encode


# Any encoder that transformers can open, with torch, on a GPU if there is one.


def dimension_of(location: str) -> int | None:
    """Return the size of a model's vectors from its config.json; None if it is not on this disk."""
    path = Path(location) / "config.json"
    if not path.is_file():
        return None
    size = json.loads(path.read_bytes()).get("hidden_size")
    return size if isinstance(size, int) else None


def load_transformers(contract: EmbeddingContract, location: str, threads: int) -> Encode:
    """Load the forward pass that `contract` describes, of the model at `location`: a folder, or a
    name in the local hub cache (HF_HUB_OFFLINE=0 downloads it). Raises ConfigurationError."""
    torch, tokenizer, model = open_pretrained(
        "AutoModel", location, f"the embedding model at {location}",
        "set retrieval.embedding_model to NAME=FOLDER, or retrieval.embedding.url to a server",
    )  # fmt: skip
    if model.config.hidden_size != contract.dimension:
        raise ConfigurationError(
            f"the embedding model at {location} has vectors of size {model.config.hidden_size}, "
            f"but {contract.dimension} was expected; correct retrieval.embedding.dimension"
        )

    def encode(texts: Sequence[str]) -> list[Vector]:
        inputs = tokenizer(
            list(texts),
            padding=True,
            truncation=True,
            max_length=contract.max_length,
            return_tensors="pt",
        ).to(model.device)
        torch.set_num_threads(threads)
        with torch.inference_mode():
            hidden = model(**inputs).last_hidden_state
            vectors = pooled(torch, hidden, inputs["attention_mask"], contract.pooling)
            if contract.normalise:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
        result: list[Vector] = vectors.tolist()
        return result

    return encode


def pooled(torch: Any, hidden: Any, mask: Any, pooling: Pooling) -> Any:
    """Pool states (texts, tokens, size), with their mask (texts, tokens), to (texts, size)."""
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


# Opens the embedder that the settings name.

MOST_THREADS = 4  # more threads hardly speed up a batch of short texts


def open_embedder(
    settings: RetrievalSettings,
    on_resent: Callable[[], None] | None = None,
    threads: int | None = None,
) -> Embedder:
    """Create the embedder without loading or connecting. `on_resent` is called for repeated calls.
    A model in this process uses `threads`, by default half of the cores.

    Raises ConfigurationError.
    """
    if settings.embedding_model == "hashing":
        return HashingEmbedder()
    contract, options = contract_of(settings), settings.embedding
    location = settings.embedding_model.partition("=")[2]  # of NAME=PLACE
    threads = threads or default_threads()
    if options.url:
        from service.retrieval.embedding.http import HttpEmbedder  # noqa: PLC0415

        return HttpEmbedder(contract, options, on_resent, location)
    if contract.model == MINILM.model and not location:
        _check_minilm(contract)
        return minilm_embedder(contract, threads)
    return InProcessEmbedder(
        contract,
        lambda: load_transformers(contract, location or contract.model, threads),
        lambda: missing_packages(contract.model, ("torch", "transformers"), "transformers"),
    )


def _check_minilm(contract: EmbeddingContract) -> None:
    for field in ("pooling", "distance", "dimension"):
        if getattr(contract, field) != getattr(MINILM, field):
            raise ConfigurationError(
                f"retrieval.embedding.{field} does not apply to the shipped {MINILM.model}; "
                "remove it, or set retrieval.embedding_model to NAME=FOLDER"
            )


def default_threads() -> int:
    """Return half of the machine's cores, because a language model may run beside it."""
    return max(1, min(MOST_THREADS, (os.cpu_count() or 1) // 2))


def contract_of(settings: RetrievalSettings) -> EmbeddingContract:
    """Return the preset with the changes from the settings. Raises ConfigurationError."""
    name, _, location = settings.embedding_model.partition("=")
    given = settings.embedding
    changes = given.model_dump(include=set(EmbeddingContract.model_fields), exclude_none=True)
    if given.distance:
        changes["normalise"] = given.distance == "cosine"
    preset = preset_of(name)
    if preset is not None:
        return preset.model_copy(update=changes)
    folder = location or name
    if given.url is None and "/" not in folder and not Path(folder).is_dir():
        raise ConfigurationError(
            f"retrieval.embedding_model is {name!r}, which is not a preset "
            f"({', '.join(PRESETS)}), a folder, or an owner/name of the hub"
        )
    if given.url is None and Path(folder).is_dir() and not (Path(folder) / "config.json").is_file():
        raise ConfigurationError(
            f"retrieval.embedding_model: there is no model in the folder {folder} (config.json is "
            "missing); download the model again, or set another folder"
        )
    dimension = given.dimension or dimension_of(folder)
    if dimension is None:
        raise ConfigurationError(
            f"retrieval.embedding_model is {name!r}; set retrieval.embedding.dimension to the "
            "size of its vectors"
        )
    return EmbeddingContract.model_validate({"model": name, **changes, "dimension": dimension})
