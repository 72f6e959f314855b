"""The loop `dragin` (METHODS.md §3.2): pure functions decide, this module makes the calls.

A draft is a step `answer`: its text streams as `draft` tokens, and the part that is kept is its
`thought`. Where a word requests retrieval the draft is withdrawn, and a step `retrieve` follows:
`thought` (the part of the draft that is kept), `trigger`, `query`, `passages`, and as `answer` the
sentence that the model then writes. Drafting continues from there. The answer to the question is
the text after "the answer is", in the last step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

import anyio.to_thread
import structlog

from service.answer.calls import Roles
from service.answer.events import DraftWord, ThoughtWritten, TokenRole, Trigger, Withdraw
from service.answer.inquiry import Scope
from service.core.domain import LoopName
from service.core.settings import Settings
from service.strategies.base import Outcome
from service.strategies.drafting.calls import gives_signals
from service.strategies.drafting.layout import ROLES, lacking_template
from service.strategies.drafting.steps import conclude, search_and_rewrite
from service.strategies.dragin.draft import Draft, DraginRun, open_draft, read_draft
from service.strategies.dragin.options import resolve
from service.strategies.dragin.query import make_query
from service.strategies.dragin.rind import Hit, ScoredWord
from service.text.tagging import missing, open_tagger

log = structlog.get_logger(__name__)


class Dragin:
    """Drafts until a word's entropy times attention exceeds θ, then retrieves for its sentence."""

    name: LoopName = "dragin"

    def missing(self, roles: Roles, settings: Settings) -> str | None:
        """Return what this deployment lacks for the loop, or None if it can run."""
        reader = roles.reader
        if not gives_signals(reader.generator):
            return (
                f"the engine {reader.generator.name!r} of roles.reader does not provide token "
                "signals; use an engine of kind embedded or local, or of kind vllm with workers "
                "started by `revelator worker`"
            )
        return lacking_template(reader.templates, ROLES) or missing(settings.dragin.tagger)

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        """The request's `max_steps`, if given, is the maximum number of retrievals."""
        inquiry = scope.inquiry
        options = resolve(inquiry.settings.dragin)
        if inquiry.request.max_steps:
            options = replace(options, max_retrievals=inquiry.request.max_steps)
        log.debug("dragin", id=inquiry.id, **asdict(options))
        tagger = await anyio.to_thread.run_sync(open_tagger, options.tagger)
        run = await DraginRun.begin(scope, question, as_role, options, tagger=tagger)
        await run.rounds(partial(_round, run))
        return await conclude(run)


async def _round(run: DraginRun) -> None:
    """Run lines 3 to 12: a draft that is kept, or one that is withdrawn and a retrieval."""
    await run.open("answer")
    draft = await open_draft(run)
    await read_draft(run, draft)
    run.count_sentences(draft.watch.text)
    if draft.hit is None and run.wants_search(draft.watch.text):
        await run.step.emit(Withdraw(role="draft", reason="trigger"))
        await run.open("retrieve")
        await search_and_rewrite(run, run.question.strip(), "")
    elif draft.hit is None or not run.may_retrieve:
        run.write(draft.watch.text)
        if text := draft.watch.text.strip():
            words, threshold = _words(draft.watch.scored), run.options.rule.threshold
            await run.step.emit(ThoughtWritten(text=text, words=words, threshold=threshold))
        if draft.hit is not None:
            run.stopped_by, run.ended = "max_steps", True
    else:
        await run.step.emit(Withdraw(role="draft", reason="trigger"))
        await _retrieve(run, draft, draft.hit)


async def _retrieve(run: DraginRun, draft: Draft, hit: Hit) -> None:
    """Run lines 8 to 11."""
    await run.open("retrieve")
    kept, drafted = hit.previous, hit.sentence
    if kept:
        await run.step.emit(ThoughtWritten(text=kept))
    query = await make_query(run, draft, hit)
    await run.step.emit(_trigger(run, hit, query))
    run.write(kept)
    await search_and_rewrite(run, query, drafted)


def _trigger(run: DraginRun, hit: Hit, query: str) -> Trigger:
    word = hit.strongest
    return Trigger(
        token=word.word.text,
        entropy=word.weight,
        attention=word.attention,
        score=word.score,
        threshold=run.options.rule.threshold,
        query=query,
        words=_words((*hit.before, *hit.words)),
    )


def _words(scored: Sequence[ScoredWord]) -> list[DraftWord]:
    return [
        DraftWord(
            text=each.word.text,
            entropy=each.weight,
            attention=each.attention,
            score=each.score,
        )
        for each in scored
    ]
