"""The loop `dragin` (METHODS.md §3.2): pure functions decide, this makes the calls.

A draft is a step `answer`: its text streams as `draft` tokens, and what stands of it is its
`thought`. Where a word asks for retrieval the draft is withdrawn, and a step `retrieve` follows:
`thought` (what stands of the draft), `trigger`, `query`, `passages`, and as `answer` the sentence
that the model then writes. Drafting starts again from there. The answer of the question is what
stands behind "the answer is", in the last step.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Final

import anyio.to_thread
import structlog

from service.answer.calls import Roles
from service.answer.events import ThoughtWritten, Token, TokenRole, Trigger, Withdraw
from service.answer.inquiry import OpenStep, Scope
from service.core.domain import LoopName
from service.core.errors import LimitReached
from service.core.settings import Settings
from service.engines.base import GenerationRequest
from service.retrieval.base import SearchResult
from service.strategies.base import Outcome
from service.strategies.drafting import gives_signals
from service.strategies.dragin.answers import (
    ANSWER_TOKENS,
    CONCLUSION,
    cut_overrun,
    is_answered,
    read_answer,
)
from service.strategies.dragin.asking import make_query
from service.strategies.dragin.options import resolve
from service.strategies.dragin.prompts import ROLES, Layout, opening_layout, shown
from service.strategies.dragin.reading import Draft, open_draft, read_draft
from service.strategies.dragin.rewriting import rewrite
from service.strategies.dragin.rind import Hit
from service.strategies.dragin.run import SLACK, Run
from service.strategies.dragin.words import join
from service.strategies.revelator import parsing
from service.text.tagging.factory import missing, open_splitter, open_tagger

log = structlog.get_logger(__name__)
TOP_K: Final = 3


class Dragin:
    """Drafts until a word's entropy times attention passes θ, then retrieves for its sentence."""

    name: LoopName = "dragin"

    def missing(self, roles: Roles, settings: Settings) -> str | None:
        """What this deployment lacks for it; None where it can run."""
        reader, own = roles.reader, settings.dragin
        if not gives_signals(reader.generator):
            return (
                f"the engine {reader.generator.name!r} of roles.reader does not provide token "
                "signals; use an engine of kind local, or of kind vllm with workers started by "
                "`revelator worker`"
            )
        if lacking := [role for role in ROLES if not reader.templates.has(role)]:
            return f"the templates in {reader.templates.folder} have no {lacking[0]}.txt"
        return missing(own.tagger) or missing(own.sentences)

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        """Most retrievals: the request's `max_steps` where it names one."""
        inquiry = scope.inquiry
        options = resolve(inquiry.settings.dragin)
        if inquiry.request.max_steps:
            options = replace(options, max_retrievals=inquiry.request.max_steps)
        log.debug("dragin", id=inquiry.id, **asdict(options))
        run = Run(
            scope=scope,
            question=question,
            as_role=as_role,
            options=options,
            tagger=await anyio.to_thread.run_sync(open_tagger, options.tagger),
            splitter=await anyio.to_thread.run_sync(open_splitter, options.splitter),
            layout=opening_layout(
                inquiry.roles.reader.templates, question.strip(), may_decline=options.may_decline
            ),
            step=OpenStep(inquiry, "", "answer"),
        )
        return await _draft_and_retrieve(run)


async def _draft_and_retrieve(run: Run) -> Outcome:
    try:
        while not run.ended:
            if why := run.inquiry.budget.exhausted():
                run.stopped_by = "deadline" if why == "deadline" else "budget"
                break
            await _round(run)
    except LimitReached as limit:
        run.stopped_by = limit.stopped_by
    return await _conclude(run)


async def _round(run: Run) -> None:
    """Lines 3 to 12: a draft that stands, or one that is withdrawn and a retrieval."""
    before = len(run.layout.written)
    await run.open("answer")
    draft = await open_draft(run)
    await read_draft(run, draft)
    run.count_sentences(draft.watch.text)
    if draft.hit is None and run.wants_search(draft.watch.text):
        await run.step.emit(Withdraw(role="draft", reason="trigger"))
        await _search_question(run)
    elif draft.hit is None or not run.may_retrieve:
        run.write(draft.watch.text)
        if text := draft.watch.text.strip():
            await run.step.emit(ThoughtWritten(text=text))
        if draft.hit is not None:
            run.stopped_by, run.ended = "max_steps", True
    else:
        await run.step.emit(Withdraw(role="draft", reason="trigger"))
        await _retrieve(run, draft, draft.hit)
    await _check_end(run, before)


async def _check_end(run: Run, before: int) -> None:
    """Line 12; `before` is the length of the text when the round began."""
    text = run.layout.written
    if run.ended or is_answered(text):
        run.ended = True
    elif (
        len(text.encode()) + SLACK > run.options.limit and await run.count(text) > run.options.limit
    ):
        run.stopped_by, run.ended = "budget", True
    elif len(text) <= before:
        run.step.flag("no_progress")
        run.ended = True


async def _retrieve(run: Run, draft: Draft, hit: Hit) -> None:
    """Lines 8 to 11."""
    await run.open("retrieve")
    kept, drafted = hit.previous, hit.sentence
    if run.options.truncate_at_token:
        kept = join(kept, *(word.word.text for word in hit.words[: hit.first]))
        drafted = join(*(word.word.text for word in hit.words[hit.first :])) or drafted
    if kept:
        await run.step.emit(ThoughtWritten(text=kept))
    query = await make_query(run, draft, hit)
    await run.step.emit(_trigger(run, hit, query))
    run.write(kept)
    await _search(run, query, drafted)


async def _search_question(run: Run) -> None:
    """A draft declined before anything was searched, sure that it does not know: the question is
    the query, and nothing of the draft stands."""
    await run.open("retrieve")
    await _search(run, run.question.strip(), "")


async def _search(run: Run, query: str, drafted: str) -> None:
    """Passages for the query, and the sentence that the model writes from them."""
    run.retrievals += 1
    run.step.hallucinated = 1
    layout = replace(run.layout, passages=())
    if query:
        top_k = run.inquiry.request.top_k or TOP_K
        result = await run.step.search(query, top_k, shape="best_fields")
        layout = await _with_passages(run, layout, result)
        await _show_passages(run, result, layout)
    run.layout = layout
    await rewrite(run, drafted)


def _trigger(run: Run, hit: Hit, query: str) -> Trigger:
    word = hit.strongest
    return Trigger(
        token=word.word.text,
        entropy=word.weight,
        attention=word.attention,
        score=word.score,
        threshold=run.options.rule.threshold,
        query=query,
    )


async def _with_passages(run: Run, layout: Layout, result: SearchResult) -> Layout:
    """The layout with as many of the passages as fit."""
    texts = shown([scored.passage.text for scored in result.passages])
    run.seen = run.seen or bool(texts)
    return await run.fit(replace(layout, passages=texts))


async def _show_passages(run: Run, result: SearchResult, layout: Layout) -> None:
    """Nobody judges, so what the prompt shows is kept."""
    room, kept = len(layout.passages), []
    for scored in result.passages:
        has_line = bool(shown([scored.passage.text]))
        kept.append(has_line and room > 0)
        room -= has_line
    reasons = [None if keep else "not shown" for keep in kept]
    await run.step.show_passages(result, kept, reasons)


async def _conclude(run: Run) -> Outcome:
    """The answer out of the text, after a call for it where the text has none
    (METHODS.md §3.2, failures)."""
    if run.unfounded:
        await run.step.end()
        return Outcome(None, run.stopped_by)
    if run.step.kind != "answer" or not run.step.id:
        await run.open("answer")
    text = await _concluded(run)
    answer = read_answer(text)
    if answer is None and run.stopped_by == "deadline":
        answer = text or None
    if answer and parsing.read_answer(answer, run.question).declined:
        run.step.flag("declined")
        answer = None
    if answer and run.borrows(answer):
        run.step.flag("prompt_example")
        answer = answer if run.inquiry.settings.dragin.profile != "service" else None
    if not run.retrievals:
        run.step.flag("closed_book")
    if answer:
        run.step.answer = answer
        await run.step.emit(Token(role=run.as_role, text=answer))
    await run.step.end()
    return Outcome(answer or None, run.stopped_by)


async def _concluded(run: Run) -> str:
    """The text with its conclusion; only the question's own answer may use the time reserve (a
    compound part leaves it to the merge)."""
    text = cut_overrun(run.layout.written)
    if is_answered(text):
        return text
    layout = await run.fit(replace(run.layout, passages=(), written=join(text, CONCLUSION)))
    request = GenerationRequest(prompt=layout.prompt().text, max_tokens=ANSWER_TOKENS)
    try:
        final = run.as_role == "answer"
        completion = await run.step.ask("reader", request, final=final)
    except LimitReached as limit:
        run.stopped_by = limit.stopped_by
        return text
    concluded = cut_overrun(join(text, CONCLUSION, completion.text))
    if completion.finish == "length" and parsing.ends_with(concluded, completion.text.strip()):
        run.step.flag("shortened")
    return concluded
