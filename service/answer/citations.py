"""Citations: the sentence that supports the answer, for each passage shown to a reader (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.answer.events import RetrievedPassage
from service.core.domain import Citation
from service.text import content_words, sentences, shared_words
from service.text.grounding import bearing


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
    spans = [_trim(text, start, end) for start, end in sentences(text)]
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


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
