"""Methods that search at most once, and read: ANRAG, HANRAG's noise-resistant retrieval (METHODS.md
§1.2, Algorithm 1), the baselines of the same kind, and what is left to a loop without an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import ClassVar, Final

from service.answer.events import RetrievedPassage
from service.answer.evidence import bare
from service.answer.inquiry import UNDECIDED, Choice, OpenStep, Scope
from service.core.domain import LoopName, ScoredPassage
from service.core.errors import LimitReached, RetrievalFailure
from service.engines.base import Capabilities
from service.prompts.templates import Titled
from service.retrieval.base import SearchResult
from service.strategies.base import Method
from service.strategies.reader import Reader, Verdict, answer_from_memory, reader_of

TOP_K: Final = 3
UNREAD: Final = "judgement could not be parsed"
NOT_JUDGED: Final = "not judged"
UNSUITABLE: Final = Choice(False, "not relevant")
TOKENS_PER_LETTER: Final = 0.3  # generous: English prose has about 0.25
ROOM_BESIDE: Final = 600  # tokens of a prompt's rules and examples, and of the answer


class Anrag(Method):
    """Fetch 10 passages, judge all concurrently, keep at most 3, and answer."""

    name: ClassVar[LoopName] = "anrag"
    sampled = answering = True
    judged = True

    async def run(self) -> str | None:
        async with self.scope.step("retrieve", self.question, alone=True) as step:
            await search_and_read(step, judged=self.judged)
        return step.answer


class OneRetrieval(Anrag):
    """Search once with the question, and show the reader the best-ranked passages (METHODS.md
    §7.2); nothing judges them."""

    name = "one_retrieval"
    judged = False


class NoRetrieval(Method):
    """The answer from the model's own knowledge (METHODS.md §7.1). Nothing is searched, so it is
    given without support."""

    name = "no_retrieval"
    sampled = from_memory = True

    async def run(self) -> str | None:
        async with self.scope.step("answer", self.question, alone=True) as step:
            await answer_from_memory(step)
        return step.answer


async def search_and_read(step: OpenStep, *, judged: bool = True) -> None:
    """Search once for the question of an open step, and answer it from what is kept.

    The answer, or None, is left in `step.answer`, and the limit of the question that was reached,
    if any, in `step.stopped_by`. If nothing is `judged`, only the passages for the reader are
    fetched, and all of them are shown to it.
    """
    settings, reader = step.inquiry.settings.hanrag, reader_of(step)
    most = None if reader.reads_all else step.inquiry.roles.reader.generator.capabilities.passages
    top_k = step.inquiry.request.top_k or most or TOP_K
    most = max(settings.fetch_k[0], top_k) if judged else top_k
    try:
        # The parts of a question have one step each.
        result = await step.search(step.question, most, widened=step.final)
    except LimitReached as limit:
        step.stopped_by = limit.stopped_by
        return
    if judged and "relevance" not in step.inquiry.request.conditions.skip:
        await step.show_passages(result)
        choices = await _judge(step, reader, result.passages, top_k)
        depths = [] if reader.reads_all else [depth for depth in settings.fetch_k if depth > most]
        for sought, depth in pairwise([most, *depths]):
            helped = any(choice.kept for choice in choices)
            if helped or step.stopped_by != "answer" or len(result.passages) < sought:
                break
            if not (further := await _further(step, result, depth)):
                break
            result = replace(result, passages=(*result.passages, *further))
            await step.show_passages(result, [*choices, *[UNDECIDED] * len(further)])
            choices += await _judge(step, reader, further, top_k)
    else:
        choices = [Choice(n < top_k, NOT_JUDGED) for n in range(len(result.passages))]
        await step.show_passages(result, choices)
    await _read(step, reader, result, choices)


async def _further(step: OpenStep, result: SearchResult, depth: int) -> tuple[ScoredPassage, ...]:
    """Return the hits after those of `result`, down to `depth`; none if the limits of the question
    do not allow to judge them."""
    known = frozenset(hit.passage.passage_id for hit in result.passages)
    more = depth - len(known)
    calls = 1 if step.inquiry.settings.hanrag.judging == "listwise" else more
    if not step.inquiry.budget.allows(calls + 1):  # and to answer from them
        return ()
    try:
        found = await step.search(step.question, more, known, deeper=True)
    except (LimitReached, RetrievalFailure):
        return ()
    return tuple(replace(hit, rank=hit.rank + len(known)) for hit in found.passages)


async def _judge(
    step: OpenStep, reader: Reader, hits: Sequence[ScoredPassage], top_k: int
) -> list[Choice]:
    """Judge all hits concurrently, as far as the limits of the question allow."""
    verdicts = await reader.judge([hit.passage for hit in hits])
    limits = [verdict for verdict in verdicts if isinstance(verdict, LimitReached)]
    if limits:
        step.stopped_by = limits[0].stopped_by
    choices = keep_relevant(verdicts, len(verdicts) if reader.reads_all else top_k)
    for hit, choice, verdict in zip(hits, choices, verdicts, strict=True):
        relevant = verdict if isinstance(verdict, bool) else None
        await step.judged(hit.passage.passage_id, choice, relevant)
    return choices


async def _read(
    step: OpenStep, reader: Reader, result: SearchResult, choices: Sequence[Choice]
) -> None:
    """GEN over the kept passages, under `answers.no_evidence` when there is none (METHODS.md
    §1.2)."""
    found = [hit.passage for hit in result.passages]
    kept = [passage for passage, choice in zip(found, choices, strict=True) if choice.kept]
    if not kept:
        step.flag("no_evidence")
        if not step.inquiry.abstains:
            step.flag("closed_book")
        elif step.inquiry.settings.answers.no_evidence == "abstain" or not found:
            return
        else:
            kept = found[:TOP_K]
            for passage in kept:
                choice = Choice(True, "no passage was relevant")
                await step.judged(passage.passage_id, choice, False)
    await reader.read(kept)
    step.left_unread = bool(kept) and step.answer is None and step.stopped_by != "answer"


def keep_relevant(verdicts: Sequence[Verdict], top_k: int) -> list[Choice]:
    """Return the first `top_k` relevant passages in retriever order (METHODS.md §1.2, line 7).

    A judgement that cannot be parsed, or that is missing because a limit was reached, does not mean
    that a passage is irrelevant: if none is known to be relevant, the best-ranked of these are
    kept.
    """
    found = True in verdicts
    choices: list[Choice] = []
    for verdict in verdicts:
        room = sum(choice.kept is True for choice in choices) < top_k
        if verdict is None or isinstance(verdict, LimitReached):
            choices.append(Choice(room and not found, NOT_JUDGED if verdict else UNREAD))
        elif not verdict:
            choices.append(UNSUITABLE)
        elif room:
            choices.append(Choice(True, "relevant"))
        else:
            choices.append(Choice(False, f"beyond the first {top_k} relevant"))
    return choices


# ---- a loop that ended without an answer


async def answer_from(scope: Scope, passages: Sequence[RetrievedPassage]) -> None:
    """Answer from the passages that were kept before a limit of the question was reached, best
    first, with the reserve kept for the answer, and as many passages as the reader's model can
    take."""
    able = scope.inquiry.roles.reader.generator.capabilities
    async with scope.step("answer", scope.inquiry.question) as step:
        reader = reader_of(step)
        shown = best_first(passages, None if reader.reads_all else able)
        if len(shown) < len({passage.passage_id for passage in passages}):
            step.flag("shortened")
        await reader.read([bare(passage) for passage in shown])


async def search_once(scope: Scope) -> None:
    """Run one ANRAG cycle for the question itself, so that no loop is worse than that."""
    async with scope.step("retrieve", scope.inquiry.question) as step:
        step.flag("last_resort")
        await search_and_read(step)


def best_first(
    passages: Sequence[RetrievedPassage], able: Capabilities | None
) -> list[RetrievedPassage]:
    """Sort by rank, then by the order in which they were found, without duplicates; as many as a
    prompt of the engine has room for (`count_fitting`)."""
    distinct: dict[str, RetrievedPassage] = {}
    for passage in sorted(passages, key=lambda passage: passage.rank):
        distinct.setdefault(passage.passage_id, passage)
    ordered = list(distinct.values())
    return ordered[: count_fitting(ordered, able)]


def count_fitting(passages: Sequence[Titled], able: Capabilities | None) -> int:
    """Return how many of the first passages a prompt has room for, by the number and the context
    that the engine is able to take (None: all of them), and one in any case."""
    count = len(passages)
    if able is None:
        return count
    count = min(able.passages or count, count)
    if able.context_tokens is None:
        return count
    sizes = accumulate(len(passage.title) + len(passage.text) for passage in passages[:count])
    room = (able.context_tokens - ROOM_BESIDE) / TOKENS_PER_LETTER
    return max(min(count, 1), sum(size <= room for size in sizes))
