"""The steps of a question, as reconstructed from its events, the support of their answers, and the
citations: the sentence that supports the answer, for each passage shown to a reader (pure).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from service.answer.events import Place, RetrievedPassage, StepEnd
from service.core.domain import (
    CallUsage,
    Citation,
    Flag,
    LoopName,
    Step,
    StepKind,
    StepPassage,
    TriggerDetail,
)
from service.prompts.templates import NO_ANSWER, UNANSWERED
from service.text import content_words, sentences, shared_words
from service.text.grounding import bearing, is_yes_no, support
from service.text.sentences import trimmed

# A merged answer may state that a part was not found; that needs no support.
_DECLINED_PART: Final = re.compile(
    rf"(?:(?:,| and|;)\s*|(?<!\s)\s+)?\b{NO_ANSWER}\b|\. {UNANSWERED}.*", re.IGNORECASE | re.DOTALL
)
# Loops whose retrievals answer a question; in others the step has the model's reasoning.
ANSWERING: Final[frozenset[LoopName | None]] = frozenset(
    [None, "anrag", "one_retrieval", "entropy_gate", "self_ask"]
)
UNFOUNDED: Final[frozenset[Flag]] = frozenset(["unsupported", "closed_book"])


@dataclass(slots=True)
class StepState:
    id: str
    kind: StepKind
    question: str | None
    opened_ms: float
    queries: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    passages: list[RetrievedPassage] = field(default_factory=list)
    kept: dict[str, tuple[bool, str | None]] = field(default_factory=dict)
    answer: str | None = None
    trigger: TriggerDetail | None = None
    flags: list[Flag] = field(default_factory=list)
    usage: CallUsage = field(default_factory=CallUsage)
    confidence: float | None = None
    places: list[Place] = field(default_factory=list)
    ms: float = 0.0
    answer_tokens: list[str] = field(default_factory=list)
    ended: bool = False
    withdrawn: bool = False

    @property
    def written(self) -> str:
        """The part of the answer written in this step that was not withdrawn."""
        return "".join(self.answer_tokens)

    @property
    def query(self) -> str | None:
        return self.queries[-1] if self.queries else None

    def shown(self) -> list[RetrievedPassage]:
        """The passages that a reader was shown."""
        return [p for p in self.passages if self.kept.get(p.passage_id, (p.kept, None))[0]]

    def body(self) -> Step:
        return Step(
            id=self.id,
            kind=self.kind,
            question=self.question,
            query=self.query,
            thought="\n".join(self.thoughts) or None,
            passages=[self._passage(p) for p in self.passages],
            answer=self.answer,
            trigger=self.trigger,
            flags=self.flags,
            llm_calls=self.usage.llm_calls,
            ms=self.ms,
        )

    def _passage(self, passage: RetrievedPassage) -> StepPassage:
        kept, reason = self.kept.get(passage.passage_id, (passage.kept, passage.reason))
        return StepPassage(
            passage_id=passage.passage_id,
            title=passage.title,
            rank=passage.rank,
            score=passage.score,
            kept=kept,
            reason=reason,
        )


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a question so far, in order, and the loop that ran them."""

    all: Sequence[StepState]
    loop: LoopName | None

    def missing_support(self, end: StepEnd) -> Flag | None:
        """Return the flag for the answer of a step: `unsupported` if neither the passages shown so
        far nor supported sub-answers support it, `closed_book` if there were none.

        Yes and no are supported by sub-answers if there are any, and then only by supported ones.
        What an encoder read is supported, since it declines what is not probable enough.
        """
        if end.confidence is not None:
            return None
        step = next((step for step in self.all if step.id == end.step), None)
        if step is None or not end.answer or not self._claims(step) or _unfounded(end.flags):
            return None
        within = self._within(step)
        passages = [passage for each in within for passage in each.shown()]
        parts = [each for each in within if each is not step and each.answer and self._claims(each)]
        sound = [part for part in parts if not _unfounded(part.flags)]
        if not passages and not sound:
            return "unsupported" if any("unsupported" in p.flags for p in parts) else "closed_book"
        if parts and is_yes_no(end.answer):
            return None if len(sound) == len(parts) else "unsupported"
        texts = [_text(passage) for passage in passages]
        texts += [part.answer for part in sound if part.answer]
        answer = _DECLINED_PART.sub("", end.answer) if step.kind == "merge" else end.answer
        borne = support(answer, step.question or "", texts)
        return None if borne else "unsupported"

    @property
    def final(self) -> StepState | None:
        """The step that wrote the final answer."""
        return next((step for step in reversed(self.all) if step.answer_tokens), None)

    @property
    def supported(self) -> bool | None:
        """Whether passages support the final answer. None if nothing was searched."""
        if not any(step.queries for step in self.all):
            return None
        return self.final is not None and not _unfounded(self.final.flags)

    @property
    def confidence(self) -> float | None:
        """The probability that the final answer is right: that of its reading, or the lowest one of
        the sub-answers that support it. None if one of them is unknown.
        """
        final = self.final
        if final is None:
            return None
        if final.confidence is not None or not self.supported:
            return final.confidence
        parts = [
            step.confidence
            for step in self._within(final)
            if step is not final and step.answer and self._claims(step)
        ]
        known = [each for each in parts if each is not None]
        return min(known) if known and len(known) == len(parts) else None

    @property
    def kept(self) -> list[RetrievedPassage]:
        """The passages that readers were shown, or were about to be shown."""
        return [passage for step in self.all if not step.withdrawn for passage in step.shown()]

    def searched(self, question: str) -> bool:
        """Whether this exact question was used as a query."""
        wanted = same_question(question)
        return any(same_question(query) == wanted for step in self.all for query in step.queries)

    def citations(self) -> list[Citation]:
        """Return a sentence of each passage that supports the answer, or a supported sub-answer
        that leads to it. Answers that are unsupported, or come from the model's own knowledge,
        have no citations.

        The citations are in order of step and rank. A merged answer is supported by what supports
        its parts.
        """
        final = self.final
        if final is None or _unfounded(final.flags):
            return []
        within = self._within(final)
        bearing: dict[tuple[str, int], Evidence] = {}
        for step in within:
            if step is not final and step.answer and not _unfounded(step.flags):
                bearing = self._borne(step, step.answer, self._within(step)) | bearing
        parts = any(self._claims(step) and step.answer for step in within if step is not final)
        if final.kind != "merge" and not (parts and is_yes_no(final.written)):
            bearing = self._borne(final, final.written, within) | bearing
        places = {step.id: place for place, step in enumerate(self.all)}
        in_order = sorted(bearing, key=lambda found: (places[found[0]], found[1]))
        return cite([bearing[found] for found in in_order])

    def _borne(
        self, by: StepState, answer: str, within: Sequence[StepState]
    ) -> dict[tuple[str, int], Evidence]:
        """Return the passages that contain an answer, with their step and their place in it."""
        shown = [(step.id, n, p) for step in within for n, p in enumerate(step.shown())]
        if by.places:
            spans = {place.passage_id: (place.start, place.end) for place in reversed(by.places)}
            return {
                (step, n): Evidence(step, p, answer, by.question or "", spans[p.passage_id])
                for step, n, p in shown
                if p.passage_id in spans
            }
        borne = support(answer, by.question or "", [_text(passage) for _, _, passage in shown])
        return {
            shown[index][:2]: Evidence(shown[index][0], shown[index][2], answer, by.question or "")
            for index in borne
        }

    def _claims(self, step: StepState) -> bool:
        """Whether the step's answer answers its question."""
        if step.kind == "retrieve":
            return bool(step.answer_tokens) or self.loop in ANSWERING
        return step.kind in ("answer", "merge")

    def _within(self, step: StepState) -> list[StepState]:
        """Return the steps that may support an answer: a retrieval's own step, else those before it
        in its part of the question, except withdrawn ones.
        """
        if step.kind == "retrieve":
            return [step]
        part = step.id.rpartition(".")[0]
        found: list[StepState] = []
        for each in self.all:
            if not each.withdrawn and (not part or each.id.startswith(f"{part}.")):
                found.append(each)
            if each is step:
                break
        return found


def same_question(question: str) -> str:
    """Return the normal form for comparing questions: words, ignoring case and end marks."""
    return " ".join(question.casefold().rstrip(" ?.!").split())


def _unfounded(flags: Sequence[Flag]) -> bool:
    return not UNFOUNDED.isdisjoint(flags)


def _text(passage: RetrievedPassage) -> str:
    return f"{passage.title}: {passage.text}" if passage.title else passage.text


# ---- citations


class Evidence(NamedTuple):
    """A passage that supports the (sub-)answer to a question, and the step in which it was shown.
    `span` is the place of the answer in its text, if that is known."""

    step: str
    passage: RetrievedPassage
    answer: str
    question: str
    span: tuple[int, int] | None = None


def cite(evidence: Sequence[Evidence]) -> list[Citation]:
    """Return one citation per passage, in the order given, without duplicates."""
    citations: dict[str, Citation] = {}
    for step, passage, answer, question, span in evidence:
        if passage.passage_id not in citations and passage.text.strip():
            start, end = bearing_sentence(passage.text, answer, question, span)
            citations[passage.passage_id] = Citation(
                passage_id=passage.passage_id,
                title=passage.title,
                step=step,
                text=passage.text[start:end],
                start=start,
                end=end,
                url=passage.url,
                page=passage.page,
            )
    return list(citations.values())


def bearing_sentence(
    text: str, answer: str, question: str, place: tuple[int, int] | None = None
) -> tuple[int, int]:
    """Return the span (code points) of the sentence that contains `answer`, at `place` if that is
    given and lies in one sentence. If none does (for a
    list, a sentence, yes or no, or an answer in the title), return the one that shares most
    content words with it. Ties go to the sentence closer to the question, then to the earlier
    one."""
    spans = [trimmed(text, start, end) for start, end in sentences(text)]
    spans = [(start, end) for start, end in spans if start < end]
    around = [span for span in spans if place and span[0] <= place[0] and place[1] <= span[1]]
    if around:
        return around[0]
    borne = bearing([text[start:end] for start, end in spans], answer)
    spans = [spans[index] for index in borne] or spans
    if len(spans) == 1:
        return spans[0]
    wanted, asked = content_words(answer), content_words(question)

    def closeness(span: tuple[int, int]) -> tuple[int, int]:
        shared = shared_words(text[span[0] : span[1]], wanted | asked)
        return len(shared & wanted), len(shared & asked)

    return max(spans, key=closeness)
