"""ANRAG, HANRAG's noise-resistant retrieval (METHODS.md §1.2, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from service.answer.events import Judgement, TokenRole
from service.answer.inquiry import OpenStep, Scope
from service.core.domain import LoopName
from service.core.errors import LimitReached
from service.retrieval.base import SearchResult
from service.strategies.base import Outcome
from service.strategies.revelator.in_turn import answer_in_turn
from service.strategies.revelator.reader import Reader, reader_of
from service.strategies.revelator.relevance import Verdict

TOP_K: Final = 3
UNREAD: Final = "judgement could not be parsed"
NOT_JUDGED: Final = "not judged"


class RelevanceChoice(NamedTuple):
    """Whether a passage is shown to the reader, and why."""

    kept: bool
    reason: str


UNSUITABLE: Final = RelevanceChoice(False, "not relevant")


class Anrag:
    """Fetch 10 passages, judge all concurrently, keep at most 3, and answer."""

    name: LoopName = "anrag"

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        step = scope.only_step("retrieve", question)
        await step.start()
        await retrieve_and_answer(step, question, as_role)
        await step.end()
        return Outcome(step.answer, step.stopped_by)


async def retrieve_and_answer(
    step: OpenStep, question: str, as_role: TokenRole, *, judged: bool = True
) -> None:
    """Run one ANRAG cycle in an open step. The answer, or None, is left in `step.answer`, and the
    limit of the question that was reached, if any, in `step.stopped_by`.

    Without `judged`, only the passages for the reader are fetched, and all of them are shown to it.
    """
    settings, reader = step.inquiry.settings.hanrag, reader_of(step, question)
    model = step.inquiry.roles.reader.generator.capabilities
    top_k = step.inquiry.request.top_k or (not reader.reads_all and model.passages) or TOP_K
    try:
        result = await step.search(question, max(settings.fetch_k, top_k) if judged else top_k)
    except LimitReached as limit:
        step.stopped_by = limit.stopped_by
        return
    judged = judged and "relevance" not in settings.skip
    count = len(result.passages)
    if model.one_at_a_time and settings.relevance_by is None and not reader.reads_all:
        await _answer_in_turn(step, question, result, top_k, as_role, judged=judged)
        return
    if not judged:
        choices = keep_first(count, top_k, NOT_JUDGED)
        await step.show_passages(result, *zip(*choices, strict=True) if choices else ((), ()))
    else:
        await step.show_passages(result, [None] * count, [None] * count)
        choices = await _judge(step, reader, result, count if reader.reads_all else top_k)
        for judgement in _judgements(result, choices):
            await step.emit(judgement)
    await _answer(step, reader, result, choices, as_role)


async def _answer_in_turn(
    step: OpenStep,
    question: str,
    result: SearchResult,
    top_k: int,
    as_role: TokenRole,
    *,
    judged: bool,
) -> None:
    """Run GEN over one passage at a time, which also judges it. If none is relevant and passages
    were to be `judged`, `answers.no_evidence` decides.
    """
    passages = [hit.passage for hit in result.passages]
    await step.show_passages(result, [None] * len(passages), [None] * len(passages))
    if await answer_in_turn(step, question, passages, top_k, as_role):
        step.left_unread = step.answer is None and step.stopped_by != "answer"
    elif judged:
        unsuitable = [UNSUITABLE] * len(passages)
        await _answer(step, reader_of(step, question), result, unsuitable, as_role)
    else:
        step.flag("declined")


async def _judge(
    step: OpenStep, reader: Reader, result: SearchResult, top_k: int
) -> list[RelevanceChoice]:
    """Judge all hits concurrently, as far as the limits of the question allow."""
    verdicts = await reader.judge([hit.passage for hit in result.passages])
    limits = [verdict for verdict in verdicts if isinstance(verdict, LimitReached)]
    if limits:
        step.stopped_by = limits[0].stopped_by
    return keep_relevant(verdicts, top_k)


async def _answer(
    step: OpenStep,
    reader: Reader,
    result: SearchResult,
    choices: Sequence[RelevanceChoice],
    as_role: TokenRole,
) -> None:
    """GEN over the kept passages, under `answers.no_evidence` when there is none (METHODS.md
    §1.2)."""
    kept = [
        hit.passage for hit, choice in zip(result.passages, choices, strict=True) if choice.kept
    ]
    if not kept:
        step.flag("no_evidence")
        if not step.inquiry.abstains:
            step.flag("closed_book")
        elif step.inquiry.settings.answers.no_evidence == "abstain" or not result.passages:
            return
        else:
            kept = [hit.passage for hit in result.passages[:TOP_K]]
            for hit in result.passages[:TOP_K]:
                judgement = Judgement(
                    passage_id=hit.passage.passage_id,
                    relevant=False,
                    kept=True,
                    reason="no passage was relevant",
                )
                await step.emit(judgement)
    await reader.read(kept, as_role)
    step.left_unread = bool(kept) and step.answer is None and step.stopped_by != "answer"


def keep_relevant(verdicts: Sequence[Verdict], top_k: int) -> list[RelevanceChoice]:
    """Return the first `top_k` relevant passages in retriever order (METHODS.md §1.2, line 7).

    A judgement that cannot be parsed, or that is missing because a limit was reached, does not mean
    that a passage is irrelevant: if none is known to be relevant, the best-ranked of these are
    kept.
    """
    found = True in verdicts
    choices: list[RelevanceChoice] = []
    for verdict in verdicts:
        room = sum(choice.kept for choice in choices) < top_k
        if verdict is None or isinstance(verdict, LimitReached):
            choices.append(RelevanceChoice(room and not found, NOT_JUDGED if verdict else UNREAD))
        elif not verdict:
            choices.append(UNSUITABLE)
        elif room:
            choices.append(RelevanceChoice(True, "relevant"))
        else:
            choices.append(RelevanceChoice(False, f"beyond the first {top_k} relevant"))
    return choices


def keep_first(count: int, top_k: int, reason: str) -> list[RelevanceChoice]:
    """Return the best-ranked `top_k` passages, if nothing judges them."""
    return [RelevanceChoice(index < top_k, reason) for index in range(count)]


def _relevant(choice: RelevanceChoice) -> bool | None:
    if choice.reason in (UNREAD, NOT_JUDGED):
        return None
    return choice.kept or choice.reason.startswith("beyond")


def _judgements(result: SearchResult, choices: Sequence[RelevanceChoice]) -> list[Judgement]:
    return [
        Judgement(
            passage_id=hit.passage.passage_id,
            relevant=_relevant(choice),
            kept=choice.kept,
            reason=choice.reason,
        )
        for hit, choice in zip(result.passages, choices, strict=True)
    ]
