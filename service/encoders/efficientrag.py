"""EfficientRAG's labeler and filter. Inputs that arrive together share forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, ClassVar, Final, NamedTuple

from service.core.concurrency import Batcher
from service.core.errors import ConfigurationError, EngineFailure, LoopUnavailable
from service.core.extras import missing_packages
from service.core.settings.loops import EfficientragSettings
from service.encoders.base import PassageLabel, Tag
from service.encoders.checkpoint import (
    INPUTS,
    TOKENIZER_FILE,
    CheckpointCard,
    Kind,
    Run,
    open_model,
    read_card,
)
from service.encoders.in_process import (
    Gone,
    InProcess,
    check_finite,
    file_tokenizer,
    packs,
    padded_rows,
    softmax,
)
from service.encoders.inputs import Encoded, encode_passages, encode_query, marked_text
from service.retrieval.embedding.embedders import default_threads
from service.text.wordpiece import minilm_tokenizer

SERVED: Final = "served"  # name of the checkpoint in the folder that `revelator train` wrote
SHIPPED: Final = Path(__file__).parents[1] / "models" / "efficientrag"
QUESTIONS: Final = 8  # questions whose calls share forward passes
_NEEDED: Final = ("numpy", "onnxruntime")
Asked = tuple[str, Sequence[str]]


class Read(NamedTuple):
    """An input with what the model said of it: its marked words, and the probability of each tag
    (none for a filter)."""

    marked: str
    tags: list[float]


class CheckpointEncoder:
    """A checkpoint that is loaded at its first use.

    `problem` says why it cannot run here and what to do, or is None if no problem is known. Its
    calls raise LoopUnavailable for such a problem, also for one that is found when the model is
    loaded, and EngineFailure if the model fails.
    """

    kind: ClassVar[Kind]

    def __init__(self, folder: Path, threads: int) -> None:
        """Read the card only. `problem` says what is wrong with the checkpoint."""
        self._folder = folder
        self._threads = threads
        self._model = InProcess(f"the model in {folder}", self._load, EngineFailure)
        self._batcher = Batcher[Asked, list[Read]](self._send, QUESTIONS)
        self._card: CheckpointCard | None = None
        self._problem = missing_packages(f"the {self.kind}", _NEEDED, "local")
        try:
            self._card = read_card(folder, self.kind)
        except ConfigurationError as error:
            self._problem = error.detail

    def problem(self) -> str | None:
        return self._problem

    def _inputs(self, tokenizer: Any, asked: Asked, most: int) -> list[Encoded]:
        raise NotImplementedError

    def _load(self) -> tuple[CheckpointCard, Any, Run]:
        """Load tokenizer and model. Raises LoopUnavailable."""
        if self._card and self._problem is None:
            try:
                tokenizer = _open_tokenizer(self._folder, self._card)
                return self._card, tokenizer, open_model(self._folder, self._card, self._threads)
            except ConfigurationError as error:
                self._problem = error.detail
        raise LoopUnavailable(self._problem or "")

    async def _send(self, asked: Sequence[Asked]) -> list[list[Read]]:
        return await self._model.run(partial(self._read, asked))

    def _read(
        self, asked: Sequence[Asked], model: tuple[CheckpointCard, Any, Run], gone: Event
    ) -> list[list[Read]]:
        """Read the inputs of several questions. Raises Gone between two passes."""
        card, tokenizer, run = model
        groups = [self._inputs(tokenizer, query, card.max_pieces) for query in asked]
        inputs = [pieces for group in groups for pieces in group]
        found: dict[int, Read] = {}
        for pack in packs([len(pieces.ids) for pieces in inputs]):
            if gone.is_set():
                raise Gone
            found |= zip(pack, _pass(run, [inputs[index] for index in pack]), strict=True)
        ordered = iter([found[index] for index in range(len(inputs))])
        return [[next(ordered) for _ in group] for group in groups]


class Labeler(CheckpointEncoder):
    """LABEL (METHODS.md §4.2): tags passages, and marks the words that are useful for a query. The
    most probable tag is chosen."""

    kind = "labeler"

    async def label(self, query: str, passages: Sequence[str]) -> list[PassageLabel]:
        """Return a label for each passage, which has the form of `encoders.inputs.passage_text`."""
        read = await self._batcher.ask((query, passages))
        return [PassageLabel(Tag(t.index(max(t))), marked, max(t)) for marked, t in read]

    def _inputs(self, tokenizer: Any, asked: Asked, most: int) -> list[Encoded]:
        return encode_passages(tokenizer, *asked, most)


class QueryFilter(CheckpointEncoder):
    """FILTER (METHODS.md §4.2): chooses the words of a query and of infos that form the next query.

    It takes the query and the infos separately: if the input is too long, the infos are shortened
    and never the query (METHODS.md §6 #27).
    """

    kind = "filter"

    async def filter(self, query: str, infos: Sequence[str]) -> str:
        """Return the chosen words in the order of the input, or "" if none is chosen."""
        found = await self._batcher.ask((query, infos))
        return found[0].marked

    def _inputs(self, tokenizer: Any, asked: Asked, most: int) -> list[Encoded]:
        return [encode_query(tokenizer, *asked, most)]


def _open_tokenizer(folder: Path, card: CheckpointCard) -> Any:
    """Raise ConfigurationError for a file that is no tokenizer of a BERT."""
    path = folder / TOKENIZER_FILE
    tokenizer = minilm_tokenizer() if card.tokenizer == "minilm" else file_tokenizer(path)
    if absent := [mark for mark in ("[CLS]", "[SEP]") if tokenizer.token_to_id(mark) is None]:
        raise ConfigurationError(f"{path} has no token {absent[0]}")
    return tokenizer


def _pass(run: Run, inputs: Sequence[Encoded]) -> list[Read]:
    fields = (
        [pieces.ids for pieces in inputs],
        [[1] * len(pieces.ids) for pieces in inputs],
        [pieces.types for pieces in inputs],
    )
    tokens, *tags = run(dict(zip(INPUTS, map(padded_rows, fields), strict=True)))
    check_finite(tokens, *tags)
    margins = (tokens[..., 1] - tokens[..., 0]).tolist()
    shares = softmax(tags[0]).tolist() if tags else [[] for _ in inputs]
    return [Read(marked_text(*pair), s) for *pair, s in zip(inputs, margins, shares, strict=True)]


class Labelling(NamedTuple):
    """The labeler and the filter of the loop EfficientRAG."""

    labeler: Labeler
    filter: QueryFilter


def open_labelling(settings: EfficientragSettings) -> Labelling:
    """Open both encoders without loading a model. The `problem` of each says what is missing."""
    threads, folder = default_threads(), settings.location or SHIPPED
    return Labelling(
        Labeler(_checkpoint(folder / "labeler"), threads),
        QueryFilter(_checkpoint(folder / "filter"), threads),
    )


def _checkpoint(folder: Path) -> Path:
    """Return the folder of a checkpoint, or that of the checkpoint in the folder of a training
    run.
    """
    return served if (served := folder / SERVED).is_dir() else folder
