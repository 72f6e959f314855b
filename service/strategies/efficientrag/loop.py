"""The loop `efficientrag` (METHODS.md §4.2): pure functions decide, this module makes the calls.

A hop is a step `retrieve`: `query`, `passages`, a judgement per passage by its tag, and as
`thought` the words marked for the next query. The last step, `answer`, is the only call of the
model, over the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

import structlog

from service.answer.calls import Roles
from service.answer.events import Judgement, ThoughtWritten, TokenRole
from service.answer.inquiry import Inquiry, OpenStep, Scope
from service.core.concurrency import deadline
from service.core.domain import LoopName, Passage, StoppedBy
from service.core.errors import DeadlineExceeded, LimitReached
from service.core.settings import Settings
from service.encoders.base import Labelling, PassageLabel, Tag
from service.encoders.inputs import passage_text
from service.strategies.base import Outcome
from service.strategies.efficientrag.decisions import (
    PROFILES,
    EfficientRagOptions,
    NextQuery,
    Read,
    after_filter,
    after_labels,
    as_tagged,
)
from service.strategies.efficientrag.pool import Candidate, CandidatePool, PoolChoice
from service.strategies.efficientrag.reader import read, room_for_passages

log = structlog.get_logger(__name__)
FETCH: Final = 10
MAX_STEPS: Final = 4
UNLABELLED: Final = 3  # passages of a hop that are read if no label decides


class EfficientRag:
    """Labels the passages of each search, makes the next query from them, and reads once at the
    end.
    """

    name: LoopName = "efficientrag"

    def missing(self, roles: Roles, settings: Settings) -> str | None:
        """Return what this deployment lacks for the loop, or None if it can run."""
        if roles.labelling is None:
            return "the labeler and the filter were not opened"
        labeler, query_filter = roles.labelling
        return labeler.problem() or query_filter.problem()

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        """The maximum number of retrievals is the request's `max_steps`, or 4."""
        options = PROFILES[scope.inquiry.settings.efficientrag.profile]
        log.debug("efficientrag", id=scope.inquiry.id, **asdict(options))
        run = HopSearch(
            scope=scope,
            question=question,
            as_role=as_role,
            options=options,
            labelling=_labelling(scope.inquiry.roles),
            pool=CandidatePool(options.deduplicate),
            following=question,
        )
        while isinstance(run.following, str):
            if why := run.inquiry.budget.exhausted():
                run.following = Read(why)
                break
            await _hop(run, run.following)
        return await _conclude(run, run.following.stopped_by)


@dataclass(slots=True)
class HopSearch:
    """A question in progress. `following` is the next query, or how the search ended; `hops` is the
    number of retrievals so far."""

    scope: Scope
    question: str
    as_role: TokenRole
    options: EfficientRagOptions
    labelling: Labelling
    pool: CandidatePool
    following: str | Read
    hops: int = 0

    @property
    def inquiry(self) -> Inquiry:
        return self.scope.inquiry


def _labelling(roles: Roles) -> Labelling:
    if roles.labelling is None:
        raise AssertionError("a loop that cannot run must be refused before it starts")
    return roles.labelling


async def _conclude(run: HopSearch, stopped_by: StoppedBy) -> Outcome:
    """Read the pool (line 10). An empty pool is read too if the profile or `answers.no_evidence`
    says so."""
    closed_book = run.options.closed_book or not run.inquiry.abstains
    if not run.pool.candidates and (stopped_by == "deadline" or not closed_book):
        return Outcome(None, stopped_by)
    step = run.scope.step("answer", run.question)
    reader, official = run.inquiry.roles.reader, run.options.official
    most, room = None, None
    if official or run.inquiry.roles.extractor is None:
        most = reader.generator.capabilities.passages
        room = room_for_passages(reader, run.question, official)
    shown = run.pool.to_read(most, room)
    for judgement in _left_out(run.pool, shown):
        await run.inquiry.emit(judgement)
    await step.start()
    if not shown:
        step.flag("closed_book")
    elif len(shown) < min(most or len(run.pool.candidates), len(run.pool.candidates)):
        step.flag("shortened")
    passages = [candidate.passage for candidate in shown]
    await read(step, run.question, passages, run.as_role, official=official)
    await step.end()
    return Outcome(step.answer, stopped_by if step.stopped_by == "answer" else step.stopped_by)


def _left_out(pool: CandidatePool, shown: Sequence[Candidate]) -> list[Judgement]:
    """Judgements of passages that were kept by their step but are not shown to the reader."""
    return [
        Judgement(
            step=candidate.step,
            passage_id=candidate.passage.passage_id,
            relevant=True,
            kept=False,
            reason=f"{candidate.reason}, not among the first {len(shown)} of the pool",
        )
        for candidate in pool.candidates
        if candidate not in shown
    ]


async def _hop(run: HopSearch, query: str) -> None:
    """Run a step `retrieve`, and set `run.following`."""
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


async def _search(run: HopSearch, step: OpenStep, query: str) -> None:
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


async def _label(run: HopSearch, query: str, passages: Sequence[Passage]) -> list[PassageLabel]:
    texts = [passage_text(passage.title, passage.text) for passage in passages]
    with deadline(run.inquiry.budget.step_remaining_s):
        return await run.labelling.labeler.label(query, texts)


async def _filter(run: HopSearch, query: str, ask: NextQuery) -> str | Read:
    with deadline(run.inquiry.budget.step_remaining_s):
        filtered = await run.labelling.filter.filter(query, ask.infos)
    return after_filter(query, filtered, run.options)


async def _take(run: HopSearch, step: OpenStep, found: Sequence[Passage], why: str) -> None:
    """Add the best-ranked passages to the pool although no label decided it."""
    best = found[:UNLABELLED]
    run.pool.candidates += [Candidate(passage, step.id, Tag.CONTINUE, 0.0, why) for passage in best]
    for passage in best:
        await step.emit(_judgement(passage, PoolChoice(True, why), relevant=False))


def _judgement(passage: Passage, choice: PoolChoice, *, relevant: bool) -> Judgement:
    return Judgement(
        passage_id=passage.passage_id,
        relevant=relevant,
        kept=choice.kept,
        reason=choice.reason,
    )
