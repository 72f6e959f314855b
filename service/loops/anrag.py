"""ANRAG, HANRAG's retrieval against noise (methods §1.2, Algorithm 1)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from service.concurrency import closing
from service.domain import LoopName
from service.errors import DeadlineExceeded
from service.events import BaseEvent, Judgement, Stop, TokenRole
from service.inquiry import OpenStep, Scope
from service.prompting.templates import PassageText
from service.retrieval.base import SearchResult
from service.revelator.reading import write_answer
from service.revelator.relevance import judge_relevance

TOP_K: Final = 3


class Choice(NamedTuple):
    """Whether a passage goes to the reader, and why."""

    kept: bool
    reason: str


class Anrag:
    """Fetch 10, judge all at once, keep at most 3, answer."""

    name: LoopName = "anrag"

    async def run(
        self, scope: Scope, question: str, as_role: TokenRole
    ) -> AsyncIterator[BaseEvent]:
        step = scope.only_step("retrieve", question)
        yield step.start()
        async with closing(retrieve_and_answer(step, question, as_role)) as events:
            async for event in events:
                yield event
        yield step.end()
        yield Stop(step=step.id, stopped_by=step.stopped_by, answered=step.answer is not None)


async def retrieve_and_answer(
    step: OpenStep, question: str, as_role: TokenRole
) -> AsyncIterator[BaseEvent]:
    """One ANRAG cycle in an open step; the answer, or None, is left in `step.answer`."""
    settings = step.inquiry.settings.hanrag
    reader = step.inquiry.roles.reader.generator.capabilities
    top_k = step.inquiry.request.top_k or reader.passages or TOP_K
    yield step.query_event(question)
    result = await step.search(question, max(settings.fetch_k, top_k))
    count = len(result.passages)
    if not settings.relevance:
        choices = keep_first(count, top_k, "not judged")
        yield step.passages_event(result, *zip(*choices, strict=True) if choices else ((), ()))
    else:
        yield step.passages_event(result, [None] * count, [None] * count)
        choices = await _judge(step, question, result, top_k)
        for judgement in _judgements(step, result, choices):
            yield judgement
    async with closing(_answer(step, question, result, choices, as_role)) as events:
        async for event in events:
            yield event


async def _judge(step: OpenStep, question: str, result: SearchResult, top_k: int) -> list[Choice]:
    """Judge all hits; when time runs out, the best-ranked unjudged ones are the evidence."""
    passages = [hit.passage for hit in result.passages]
    try:
        verdicts = await judge_relevance(step, question, passages)
    except DeadlineExceeded:
        step.stopped_by = "deadline"
        return keep_first(len(passages), top_k, "not judged")
    return keep_relevant(verdicts, top_k)


async def _answer(
    step: OpenStep,
    question: str,
    result: SearchResult,
    choices: Sequence[Choice],
    as_role: TokenRole,
) -> AsyncIterator[BaseEvent]:
    """GEN over the kept passages, under `on_no_evidence` when there is none (methods §1.2)."""
    settings = step.inquiry.settings.hanrag
    kept = [
        hit.passage for hit, choice in zip(result.passages, choices, strict=True) if choice.kept
    ]
    if not kept:
        step.flag("no_evidence")
        if settings.on_no_evidence == "abstain":
            return
        if settings.on_no_evidence == "closed_book":
            step.flag("closed_book")
        else:
            kept = [hit.passage for hit in result.passages[:TOP_K]]
            for hit in result.passages[:TOP_K]:
                yield Judgement(
                    step=step.id,
                    passage_id=hit.passage.passage_id,
                    relevant=False,
                    kept=True,
                    reason="none was relevant",
                )
    texts = [PassageText(passage.title, passage.text) for passage in kept]
    prompt = step.inquiry.roles.reader.templates.answer(question, texts)
    async with closing(write_answer(step, prompt, as_role)) as events:
        async for event in events:
            yield event


def keep_relevant(verdicts: Sequence[bool | None], top_k: int) -> list[Choice]:
    """The first `top_k` relevant passages in retriever order (methods §1.2, line 7)."""
    choices: list[Choice] = []
    for verdict in verdicts:
        if verdict is None:
            choices.append(Choice(False, "judgement not readable"))
        elif not verdict:
            choices.append(Choice(False, "not relevant"))
        elif sum(choice.kept for choice in choices) < top_k:
            choices.append(Choice(True, "relevant"))
        else:
            choices.append(Choice(False, f"beyond the first {top_k} relevant"))
    return choices


def keep_first(count: int, top_k: int, reason: str) -> list[Choice]:
    """The best-ranked `top_k`, where nothing judges."""
    return [Choice(index < top_k, reason) for index in range(count)]


def _judgements(step: OpenStep, result: SearchResult, choices: Sequence[Choice]) -> list[Judgement]:
    return [
        Judgement(
            step=step.id,
            passage_id=hit.passage.passage_id,
            relevant=choice.kept or choice.reason.startswith("beyond"),
            kept=choice.kept,
            reason=choice.reason,
        )
        for hit, choice in zip(result.passages, choices, strict=True)
    ]
