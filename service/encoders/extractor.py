"""The extractor: an encoder on ONNX Runtime that finds an answer in passages, or says that
there is none.

An answer is always a copy of a place in a passage (or yes, or no), so it cannot be invented. The
passages of a question are read together, and the scores of their places compare.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, Final, Literal

from pydantic import Field

from service.core.domain import Model, Passage
from service.core.errors import ConfigurationError, EngineFailure
from service.core.extras import missing_packages
from service.core.settings import RoleSettings
from service.encoders.answers import Candidate, best_of, in_order, missing_names
from service.encoders.base import AnswerKind, Reading
from service.encoders.editions import resolve
from service.encoders.in_process import (
    Gone,
    InProcess,
    check_finite,
    file_tokenizer,
    open_chosen,
    open_model,
    packs,
    padded_rows,
    read_card,
)
from service.encoders.windows import SHORTEST, Window, Windows
from service.text.tables import read_tables

SHIPPED: Final = Path(__file__).parents[1] / "models" / "extractor"  # reads for small models
CARD_FILE: Final = "extractor.json"
MODEL_FILE: Final = "model.onnx"
TOKENIZER_FILE: Final = "tokenizer.json"
OUTPUTS: Final = ("places", "kinds")  # (windows, pieces, 2) and (windows, 4)
FILES: Final = (CARD_FILE, MODEL_FILE, TOKENIZER_FILE)

JOINT: Final = ", "  # between the parts of a list
SURE: Final = 0.75  # probability of yes or of no below which the sentence that tells is quoted
MOST_THREADS: Final = 4  # while it reads, the language model has nothing to do
MOST_WINDOWS: Final = 32  # of one reading, those nearest to the question


class ExtractorCard(Model):
    """The content of `extractor.json`.

    `longest` is the number of word pieces of an input. `calibration` has the constant and the
    weights of a logistic regression on the features of a reading (`Candidate.features`), fitted on
    questions that trained nothing. A reading whose probability is below `threshold` is declined.
    `yes` has the constant and the weight of another one, on the log-odds of yes against no.
    """

    format: Literal[1] = 1
    longest: int = Field(ge=SHORTEST, le=512)
    calibration: tuple[float, float, float, float, float] = (0.0, 0.5, 0.0, 0.0, 0.0)
    threshold: float = Field(0.5, ge=0, le=1)
    yes: tuple[float, float] = (0.0, 1.0)
    base_model: str = ""


class Extractor:
    """An encoder with the model of a folder, which is loaded at the first question. What is less
    probable than `threshold` is declined."""

    def __init__(self, folder: Path) -> None:
        """Raise ConfigurationError if a package or a file is missing, or the card cannot be
        read."""
        if problem := missing_packages("the extractor", ("numpy", "onnxruntime"), "local"):
            raise ConfigurationError(problem)
        threads = min(MOST_THREADS, os.cpu_count() or 1)
        self.card = read_card(ExtractorCard, "extractor", folder, FILES)
        self._model = InProcess(
            "the extractor", lambda: _Model(folder, self.card, threads), EngineFailure
        )

    @property
    def threshold(self) -> float:
        return self.card.threshold

    async def read(self, question: str, passages: Sequence[Passage]) -> Reading:
        """Return the best answer in the passages.

        Raises ConfigurationError if the model cannot be opened, EngineFailure if it fails.
        """
        found, pieces = list[Candidate](), 0
        shown = [(passage.title, passage.text) for passage in passages]
        if question.strip() and any(text.strip() for _, text in shown):
            found, pieces = await self._model.run(
                lambda model, gone: model.candidates(question, shown, gone)
            )
        return self._reading(question, passages, found, pieces)

    def _reading(
        self, question: str, passages: Sequence[Passage], found: Sequence[Candidate], pieces: int
    ) -> Reading:
        scores = [0.0] * len(passages)
        if not found:
            return Reading("none", "", score=0.0, scores=tuple(scores), pieces=pieces)
        for candidate in found:
            scores[candidate.passage] = probability(self.card.calibration, candidate.features)
        best, rival = resolve(question, passages, found)
        at = best.passage
        scores[at] = probability(self.card.calibration, best.features)
        if best.kind in ("yes", "no"):
            chance = probability(self.card.yes, (best.yes,))
            sure = max(chance, 1 - chance)
            told: AnswerKind = "yes" if chance >= 0.5 else "no"
            best = replace(best, kind=told if sure >= SURE else "span")
            scores[at] *= sure if sure >= SURE else 1.0
        answer = _text(best, passages[at])
        reading = Reading(best.kind, answer, at, best.spans, scores[at], tuple(scores), pieces)
        if scores[at] < self.threshold:
            return reading._replace(kind="none")
        if rival is None:
            return reading
        both = f"{answer} or {_text(rival, passages[rival.passage])}"
        return reading._replace(kind="span", answer=both, rival=(rival.passage, rival.spans))


def _text(answer: Candidate, passage: Passage) -> str:
    if answer.kind != "span":
        return answer.kind
    return JOINT.join(passage.text[start:end] for start, end in answer.spans)


def open_extractor(settings: RoleSettings, *, small: bool = False) -> Extractor | None:
    """Return the encoder that reads passages, or None if the reader's language model does
    (`open_chosen`). No model is loaded."""
    return open_chosen(Extractor, settings.encoder, SHIPPED, "roles.reader.encoder", small=small)


def probability(weights: Sequence[float], features: Sequence[float]) -> float:
    """Return the probability by a logistic regression; the first weight is its constant."""
    total = weights[0] + sum(w * x for w, x in zip(weights[1:], features, strict=True))
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, total))))


class _Model:
    """The opened model with its tokenizer."""

    def __init__(self, folder: Path, card: ExtractorCard, threads: int) -> None:
        self._longest = card.longest
        self._session = open_model(folder / MODEL_FILE, threads)
        try:
            self._windows = Windows(file_tokenizer(folder / TOKENIZER_FILE))
        except KeyError as error:
            raise ConfigurationError(
                f"{folder / TOKENIZER_FILE} has no token {error}; copy it again"
            ) from None
        if {tensor.name for tensor in self._session.get_outputs()} != set(OUTPUTS):
            raise ConfigurationError(f"{folder / MODEL_FILE} is not an extractor; copy it again")

    def candidates(
        self, question: str, passages: Sequence[tuple[str, str]], gone: Event
    ) -> tuple[list[Candidate], int]:
        """Return the best answer of each passage, best first, and the number of pieces read."""
        cut = self._windows.cut(question, passages, self._longest)
        windows = [(at, window) for at, windows in enumerate(cut) for window in windows]
        windows = [windows[index] for index in nearest_windows(windows, MOST_WINDOWS)]
        best: dict[int, Candidate] = {}
        tabled = read_tables(question, [text for _, text in passages])
        lengths = [len(window.ids) for _, window in windows]
        for pack in packs(lengths):
            if gone.is_set():
                raise Gone
            outputs = self._pass([windows[index][1] for index in pack])
            for index, places, kinds in zip(pack, *outputs, strict=True):
                at, window = windows[index]
                candidate = best_of(at, window, places, kinds, tabled[at], question)
                if candidate and (at not in best or candidate.place > best[at].place):
                    best[at] = candidate
        for at, candidate in best.items():
            best[at] = replace(candidate, missing=missing_names(question, " ".join(passages[at])))
        return in_order(best.values()), sum(lengths)

    def _pass(self, windows: Sequence[Window]) -> tuple[Any, Any]:
        ids = padded_rows([window.ids for window in windows])
        mask = padded_rows([[1] * len(window.ids) for window in windows])
        ids[mask == 0] = self._windows.padding
        places, kinds = self._session.run(list(OUTPUTS), {"ids": ids, "mask": mask})
        check_finite(places, kinds)
        return places, kinds


def nearest_windows(windows: Sequence[tuple[int, Window]], most: int) -> list[int]:
    """Return the indices of at most `most` windows, in order: those that share the rarest word
    pieces with the question."""
    if len(windows) <= most:
        return list(range(len(windows)))
    first = windows[0][1]
    texts = [set(window.ids[window.first : -1]) for _, window in windows]
    asked = set(first.ids[: first.first])
    held = {piece: sum(piece in text for text in texts) for piece in asked}
    worth = {piece: math.log(len(windows) / count) for piece, count in held.items() if count}
    shared = [sum(worth.get(piece, 0.0) for piece in text & asked) for text in texts]
    best = sorted(range(len(windows)), key=lambda index: -shared[index])[:most]
    return sorted(best)
