"""A hop: a search, the labels of what it found, the next query (METHODS.md §4.2, lines 3 to 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from service.answer.events import Judgement, ThoughtWritten
from service.answer.inquiry import OpenStep
from service.core.concurrency import deadline
from service.core.domain import Passage
from service.core.errors import DeadlineExceeded, LimitReached
from service.encoders.base import PassageLabel, Tag
from service.encoders.inputs import passage_text
from service.strategies.efficientrag.decisions import (
    Ask,
    Read,
    after_filter,
    after_labels,
    as_tagged,
)
from service.strategies.efficientrag.pool import Candidate, Choice
from service.strategies.efficientrag.run import Run

FETCH: Final = 10
MAX_STEPS: Final = 4
UNLABELLED: Final = 3  # passages of a hop that are read where no label says which


async def hop(run: Run, query: str) -> None:
    """A step `retrieve`; leaves in `run.following` what follows."""
    run.hops += 1
    step = run.scope.step("retrieve", run.question)
    await step.start()
    try:
        await _search(run, step, query)
    except LimitReached as limit:
        run.following = Read(limit.stopped_by)
    if isinstance(run.following, Read) and run.following.flag:
        step.flag(run.following.flag)
    await step.end()


async def _search(run: Run, step: OpenStep, query: str) -> None:
    result = await step.search(query, run.inquiry.request.top_k or FETCH)
    found = [hit.passage for hit in result.passages]
    await step.show_passages(result, [None] * len(found), [None] * len(found))
    try:
        labels = as_tagged(await _label(run, query, found), run.options)
    except DeadlineExceeded:
        await _take(run, step, found, "not labelled")
        raise
    choices = run.pool.add(step.id, found, labels)
    for passage, label, choice in zip(found, labels, choices, strict=True):
        relevant = label.tag is not Tag.TERMINATE
        await step.emit(_judgement(passage, choice, relevant=relevant))
    if not run.pool.candidates:
        step.flag("no_evidence")
        if run.inquiry.settings.answers.no_evidence == "top3_unfiltered":
            await _take(run, step, found, "no passage was kept")
    added = sum(choice.kept for choice in choices)
    left = (run.inquiry.request.max_steps or MAX_STEPS) - run.hops
    decision = after_labels(labels, added, left, run.options)
    if isinstance(decision, Read):
        run.following = decision
        return
    if decision.infos:
        await step.emit(ThoughtWritten(text="\n".join(decision.infos)))
    run.following = await _filter(run, query, decision)


async def _label(run: Run, query: str, passages: Sequence[Passage]) -> list[PassageLabel]:
    texts = [passage_text(passage.title, passage.text) for passage in passages]
    with deadline(run.inquiry.budget.step_remaining_s):
        return await run.labelling.labeler.label(query, texts)


async def _filter(run: Run, query: str, ask: Ask) -> str | Read:
    with deadline(run.inquiry.budget.step_remaining_s):
        filtered = await run.labelling.filter.filter(query, ask.infos)
    return after_filter(query, filtered, run.options)


async def _take(run: Run, step: OpenStep, found: Sequence[Passage], why: str) -> None:
    """The best-ranked passages into the pool, without a label that says so."""
    best = found[:UNLABELLED]
    run.pool.candidates += [Candidate(passage, step.id, Tag.CONTINUE, 0.0, why) for passage in best]
    for passage in best:
        await step.emit(_judgement(passage, Choice(True, why), relevant=False))


def _judgement(passage: Passage, choice: Choice, *, relevant: bool) -> Judgement:
    return Judgement(
        passage_id=passage.passage_id,
        relevant=relevant,
        kept=choice.kept,
        reason=choice.reason,
    )
