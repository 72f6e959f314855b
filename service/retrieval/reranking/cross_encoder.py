"""A cross-encoder in this process: a transformers model that gives one score to a pair of texts.

torch and transformers are imported at the first use, in a worker thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from service.core.errors import ConfigurationError, RetrievalFailure
from service.core.extras import lacking
from service.core.offline import import_transformers
from service.encoders.in_process import InProcess, in_batches

BATCH: Final = 16  # pairs of one forward pass, similar in length
LONGEST: Final = 512  # tokens of a pair; longer passages are truncated at their end

Score = Callable[[str, Sequence[str]], list[float]]


class CrossEncoder:
    """`folder` holds a sequence classification model with one output, and its tokenizer.

    One forward pass at a time; a caller that leaves waits for at most that one.
    """

    def __init__(self, folder: Path) -> None:
        self._model = InProcess(
            f"the reranker in {folder}", lambda: _load(folder), RetrievalFailure
        )

    async def scores(self, query: str, passages: Sequence[str]) -> list[float]:
        """Return scores in the order of `passages`. Raises ConfigurationError if the model cannot
        be loaded."""

        async def batch(texts: list[str]) -> list[float]:
            return await self._model.run(lambda score, _: score(query, texts))

        return await in_batches(passages, BATCH, batch)

    async def aclose(self) -> None:
        """Do nothing: the model is freed with the reranker."""


def _load(folder: Path) -> Score:
    try:
        torch, transformers = import_transformers()
    except ImportError as error:
        what = "retrieval.reranker.kind = local"
        raise ConfigurationError(lacking(what, error, "transformers")) from None
    automatic = transformers.AutoModelForSequenceClassification
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = automatic.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
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
