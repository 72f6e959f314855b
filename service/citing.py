"""Citations: for each passage shown to a reader, the sentence that bears its answer (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from service.domain import Citation
from service.events import RetrievedPassage
from service.text import content_words, sentences


class Evidence(NamedTuple):
    """What a step's reader was shown, and the (sub-)answer it gave to `question`."""

    step: str
    answer: str
    question: str
    passages: Sequence[RetrievedPassage]


def cite(evidence: Sequence[Evidence]) -> list[Citation]:
    """One citation per passage, in order of step and rank, none twice (design, Answer)."""
    citations: dict[str, Citation] = {}
    for item in evidence:
        for passage in item.passages:
            if passage.passage_id not in citations and passage.text.strip():
                start, end = bearing_sentence(passage.text, item.answer, item.question)
                citations[passage.passage_id] = Citation(
                    passage_id=passage.passage_id,
                    title=passage.title,
                    step=item.step,
                    text=passage.text[start:end],
                    start=start,
                    end=end,
                )
    return list(citations.values())


def bearing_sentence(text: str, answer: str, question: str) -> tuple[int, int]:
    """The span (code points) of the sentence holding `answer`, else the one sharing most content
    words with it; ties go to the sentence closer to the question, then to the earlier one."""
    spans = [_trim(text, start, end) for start, end in sentences(text)]
    spans = [(start, end) for start, end in spans if start < end]
    needle = answer.casefold().strip()
    wanted, asked = content_words(answer), content_words(question)

    def closeness(span: tuple[int, int]) -> tuple[bool, int, int]:
        sentence = text[span[0] : span[1]]
        words = content_words(sentence)
        holds = bool(needle) and needle in sentence.casefold()
        return holds, len(words & wanted), len(words & asked)

    return max(spans, key=closeness)


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
