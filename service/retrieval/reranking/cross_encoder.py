"""A cross-encoder in this process: a transformers model that gives one score to a pair of texts.

torch and transformers are imported at the first use, in a worker thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from service.core.errors import ConfigurationError, RetrievalFailure, RevelatorError
from service.core.offline import prepare_torch

BATCH: Final = 16  # pairs of one forward pass, similar in length
LONGEST: Final = 512  # tokens of a pair; what is longer loses the end of its passage

Score = Callable[[str, Sequence[str]], list[float]]


class CrossEncoder:
    """`folder` holds a sequence classification model with one output, and its tokenizer.

    One forward pass at a time; a caller that leaves waits for at most that one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._turn = anyio.Lock()
        self._model_lock = threading.Lock()
        self._score: Score | None = None

    async def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """Raises ConfigurationError where the model cannot be loaded."""
        order = sorted(range(len(passages)), key=lambda index: len(passages[index]))
        scores = [0.0] * len(passages)
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            texts = [passages[index] for index in part]
            async with self._turn:
                found = await anyio.to_thread.run_sync(
                    self._work, query, texts, abandon_on_cancel=True
                )
            for index, score in zip(part, found, strict=True):
                scores[index] = score
        return scores

    async def aclose(self) -> None:
        """Nothing to do: the model goes with the reranker."""

    def _work(self, query: str, texts: Sequence[str]) -> list[float]:
        """The lock covers threads whose caller has gone."""
        with self._model_lock:
            try:
                self._score = self._score or _load(self._folder)
                return self._score(query, texts)
            except RevelatorError:
                raise
            except Exception as error:
                raise RetrievalFailure(f"the reranker in {self._folder} failed: {error}") from error


def _load(folder: Path) -> Score:
    prepare_torch()
    try:
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"retrieval.reranker.kind = local needs {error.name}; run: pip install "
            "'revelator[transformers]'"
        ) from None
    logging: Any = transformers.logging
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    automatic: Any = transformers.AutoModelForSequenceClassification
    try:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model: Any = automatic.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"the reranker in {folder} cannot be loaded: {str(error).splitlines()[0]}; set "
            "retrieval.reranker.model to its folder"
        ) from None
    if model.config.num_labels != 1:
        raise ConfigurationError(
            f"the model in {folder} has {model.config.num_labels} outputs; a reranker must have one"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.to(device).eval()
    longest = min(LONGEST, model.config.max_position_embeddings)

    def score(query: str, texts: Sequence[str]) -> list[float]:
        inputs = tokenizer(
            [query] * len(texts),
            list(texts),
            padding=True,
            truncation="longest_first",
            max_length=longest,
            return_tensors="pt",
        ).to(device)
        with torch.inference_mode():
            logits = model(**inputs).logits  # (pairs, 1)
        found: list[float] = logits[:, 0].tolist()
        return found

    return score
