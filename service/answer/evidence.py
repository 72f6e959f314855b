"""A step of a question, as its events tell, and the citations: the sentence that supports the
answer, for each passage shown to a reader (pure).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from service.answer.events import Place, RetrievedPassage
from service.core.domain import (
    CallUsage,
    Citation,
    Flag,
    Passage,
    Step,
    StepKind,
    StepPassage,
    TriggerDetail,
)
from service.text import content_words, sentences
from service.text.grounding import bearing
from service.text.sentences import trimmed

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


def same_question(question: str) -> str:
    """Return the normal form for comparing questions: words, ignoring case and end marks."""
    return " ".join(question.casefold().rstrip(" ?.!").split())


def is_unfounded(flags: Sequence[Flag]) -> bool:
    return not UNFOUNDED.isdisjoint(flags)


def bare(passage: Passage | RetrievedPassage) -> Passage:
    """Return what a reader is shown of a passage, without what else is known of it."""
    return Passage(passage.passage_id, passage.title, passage.text)


def shown_text(passage: RetrievedPassage) -> str:
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
    spans = sentences(text)
    around = [span for span in spans if place and span[0] <= place[0] and place[1] <= span[1]]
    borne = [] if around else bearing([text[start:end] for start, end in spans], answer)
    spans = around[:1] or [spans[index] for index in borne] or spans
    if len(spans) > 1:
        wanted, asked = content_words(answer), content_words(question)

        def closeness(span: tuple[int, int]) -> tuple[int, int]:
            words = content_words(text[span[0] : span[1]])
            return len(words & wanted), len(words & asked)

        spans = [max(spans, key=closeness)]
    return trimmed(text, *spans[0])
