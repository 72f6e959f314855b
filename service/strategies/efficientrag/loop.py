"""The loop `efficientrag` (METHODS.md §4.2): pure functions decide, this makes the calls.

A hop is a step `retrieve`: `query`, `passages`, a judgement per passage by its tag, and as
`thought` the words marked for the next query. The last step, `answer`, is the one call of the
model, over the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import structlog

from service.answer.calls import Roles
from service.answer.events import Judgement, TokenRole
from service.answer.inquiry import Scope
from service.core.domain import LoopName, StoppedBy
from service.core.settings import Settings
from service.encoders.base import Labelling
from service.strategies.base import Outcome
from service.strategies.efficientrag.decisions import Read
from service.strategies.efficientrag.hop import hop
from service.strategies.efficientrag.options import PROFILES
from service.strategies.efficientrag.pool import Candidate, Pool
from service.strategies.efficientrag.reading import read, room_for_passages
from service.strategies.efficientrag.run import Run

log = structlog.get_logger(__name__)


class EfficientRag:
    """Labels what each search finds and filters the next query out of it, then reads once."""

    name: LoopName = "efficientrag"

    def missing(self, roles: Roles, settings: Settings) -> str | None:
        """What this deployment lacks for it; None where it can run."""
        if roles.labelling is None:
            return "the labeler and the filter were not opened"
        labeler, query_filter = roles.labelling
        return labeler.problem() or query_filter.problem()

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        """Most retrievals: the request's `max_steps`, else 4."""
        options = PROFILES[scope.inquiry.settings.efficientrag.profile]
        log.debug("efficientrag", id=scope.inquiry.id, **asdict(options))
        run = Run(
            scope=scope,
            question=question,
            as_role=as_role,
            options=options,
            labelling=_labelling(scope.inquiry.roles),
            pool=Pool(options.deduplicate),
            following=question,
        )
        while isinstance(run.following, str):
            if why := run.inquiry.budget.exhausted():
                run.following = Read("deadline" if why == "deadline" else "budget")
                break
            await hop(run, run.following)
        return await _conclude(run, run.following.stopped_by)


def _labelling(roles: Roles) -> Labelling:
    if roles.labelling is None:
        raise AssertionError("a loop that cannot run must be refused before it starts")
    return roles.labelling


async def _conclude(run: Run, stopped_by: StoppedBy) -> Outcome:
    """Line 10. An empty pool is read too where the profile or `answers.no_evidence` says so."""
    policy = run.inquiry.settings.answers.no_evidence
    closed_book = run.options.closed_book or policy == "closed_book"
    if not run.pool.candidates and (stopped_by == "deadline" or not closed_book):
        return Outcome(None, stopped_by)
    step = run.scope.step("answer", run.question)
    reader = run.inquiry.roles.reader
    most = reader.generator.capabilities.passages
    shown = run.pool.to_read(most, room_for_passages(reader, run.question, run.options.official))
    for judgement in _left_out(run.pool, shown):
        await run.inquiry.emit(judgement)
    await step.start()
    if not shown:
        step.flag("closed_book")
    elif len(shown) < min(most or len(run.pool.candidates), len(run.pool.candidates)):
        step.flag("shortened")
    passages = [candidate.passage for candidate in shown]
    await read(step, run.question, passages, run.as_role, official=run.options.official)
    await step.end()
    return Outcome(step.answer, stopped_by if step.stopped_by == "answer" else step.stopped_by)


def _left_out(pool: Pool, shown: Sequence[Candidate]) -> list[Judgement]:
    """Of passages that their step said were kept, and that the reader is not shown."""
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
