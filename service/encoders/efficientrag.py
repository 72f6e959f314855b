"""EfficientRAG's labeler and filter. Inputs that arrive together share forward passes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Final

from service.core.concurrency import Batcher
from service.core.errors import ConfigurationError, EngineFailure, LoopUnavailable
from service.core.extras import missing_packages
from service.core.settings.loops import EfficientragSettings
from service.encoders.base import Labelling, PassageLabel, Tag
from service.encoders.checkpoint import CheckpointCard, Kind, is_saved, read_card
from service.encoders.in_process import InProcess
from service.encoders.inputs import Encoded, encode_passages, encode_query, marked_text
from service.encoders.session import Output, Session, load_session
from service.retrieval.embedding.embedders import default_threads

SERVED: Final = "served"  # name of the checkpoint in the folder that `revelator train` wrote
SHIPPED: Final = Path(__file__).parents[1] / "models" / "efficientrag"
QUESTIONS: Final = 8  # questions whose calls share forward passes
Asked = tuple[str, Sequence[str]]
_NEEDED: Final = ("numpy", "onnxruntime", "tokenizers")
_NEEDED_SAVED: Final = ("torch", "transformers", "safetensors", "tokenizers")


class EncoderModel:
    """A checkpoint that is loaded at its first use."""

    def __init__(self, folder: Path, kind: Kind, threads: int) -> None:
        """Read the card only. `problem` says what is wrong with the checkpoint."""
        self._folder = folder
        self._threads = threads
        self._model = InProcess(f"the model in {folder}", self._load, EngineFailure)
        self.run = self._model.run
        self.card: CheckpointCard | None = None
        needed, extra = (_NEEDED_SAVED, "transformers") if is_saved(folder) else (_NEEDED, "local")
        self.problem = missing_packages(f"the {kind}", needed, extra)
        try:
            self.card = read_card(folder, kind)
        except ConfigurationError as error:
            self.problem = error.detail

    def _load(self) -> Session:
        """Load the checkpoint. Raises LoopUnavailable."""
        if self.card and self.problem is None:
            try:
                return load_session(self._folder, self.card, self._threads)
            except ConfigurationError as error:
                self.problem = error.detail
        raise LoopUnavailable(self.problem or "")


class EncoderLabeler:
    """LABEL (METHODS.md §4.2). The most probable tag is chosen."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._model = EncoderModel(folder, "labeler", threads)
        self._batcher = Batcher[Asked, list[PassageLabel]](self._send, QUESTIONS)
        self.tags = (self._model.card and self._model.card.tags) or 3

    def problem(self) -> str | None:
        return self._model.problem

    async def label(self, query: str, passages: Sequence[str]) -> list[PassageLabel]:
        return await self._batcher.ask((query, passages))

    async def _send(self, asked: Sequence[Asked]) -> list[list[PassageLabel]]:
        return await self._model.run(partial(_label, asked))


class EncoderFilter:
    """FILTER (METHODS.md §4.2)."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._model = EncoderModel(folder, "filter", threads)
        self._batcher = Batcher[Asked, str](self._send, QUESTIONS)

    def problem(self) -> str | None:
        return self._model.problem

    async def filter(self, query: str, infos: Sequence[str]) -> str:
        return await self._batcher.ask((query, infos))

    async def _send(self, asked: Sequence[Asked]) -> list[str]:
        return await self._model.run(partial(_filter, asked))


def _label(asked: Sequence[Asked], session: Session, gone: Event) -> list[list[PassageLabel]]:
    most = session.card.max_pieces
    groups = [encode_passages(session.tokenizer, *each, most) for each in asked]
    outputs = iter(session.forward([each for group in groups for each in group], gone))
    return [[_read(each, next(outputs)) for each in group] for group in groups]


def _read(encoded: Encoded, output: Output) -> PassageLabel:
    best = max(range(len(output.tags)), key=output.tags.__getitem__)
    return PassageLabel(Tag(best), marked_text(encoded, output.margins), output.tags[best])


def _filter(asked: Sequence[Asked], session: Session, gone: Event) -> list[str]:
    most = session.card.max_pieces
    inputs = [encode_query(session.tokenizer, *each, most) for each in asked]
    outputs = session.forward(inputs, gone)
    return [marked_text(*pair) for pair in zip(inputs, (o.margins for o in outputs), strict=True)]


def open_labelling(settings: EfficientragSettings) -> Labelling:
    """Open both encoders without loading a model. The `problem` of each says what is missing."""
    threads, folder = default_threads(), settings.location or SHIPPED
    return Labelling(
        EncoderLabeler(_checkpoint(folder / "labeler"), threads),
        EncoderFilter(_checkpoint(folder / "filter"), threads),
    )


def _checkpoint(folder: Path) -> Path:
    """Return the folder of a checkpoint, or that of the checkpoint in the folder of a training
    run.
    """
    return served if (served := folder / SERVED).is_dir() else folder
