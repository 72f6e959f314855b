"""Reads a draft to its hit, or to its end (METHODS.md §3.2, lines 4 and 5)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from service.answer.calls import restarted
from service.answer.events import Token, Withdraw
from service.core.concurrency import closing
from service.engines.signals import ContextRows, ScoreRequest, SignalRequest
from service.strategies.drafting import DraftCall, drafting, score
from service.strategies.dragin.prompts import Prompt
from service.strategies.dragin.rind import Hit
from service.strategies.dragin.run import Run
from service.strategies.dragin.watching import DraftWatch


@dataclass(slots=True)
class Draft:
    """`rows` are those of the hit's tokens in the draft's own context, where that is asked for."""

    prompt: Prompt
    watch: DraftWatch
    hit: Hit | None = None
    rows: ContextRows | None = None


async def open_draft(run: Run) -> Draft:
    layout = run.layout if run.options.docs_persist else replace(run.layout, passages=())
    prompt = (await run.fit(layout)).prompt()
    return Draft(prompt, DraftWatch(run.options, run.tagger, run.splitter))


async def read_draft(run: Run, draft: Draft) -> None:
    """Emit the draft's tokens as they come; begun again where a pool's worker is lost."""

    async def void() -> None:
        shown = bool(draft.watch.text.strip())
        draft.watch = DraftWatch(run.options, run.tagger, run.splitter)
        if shown:
            await run.step.emit(Withdraw(role="draft", reason="restart"))

    await restarted(lambda: _read(run, draft), void)


async def _read(run: Run, draft: Draft) -> None:
    options, watch = run.options, draft.watch
    request = SignalRequest(
        draft.prompt.text, options.limit, run.stops, attention=options.full_context
    )
    async with drafting(run.step, request) as call:
        await _feed(run, draft, call)
        if options.full_context:
            draft.hit = draft.hit or watch.finish()
            if draft.hit is not None and run.may_retrieve and options.formulation == "real_words":
                draft.rows = await call.rows(hit_tokens(draft.hit))
    if not options.full_context and watch.tokens:
        ids = tuple(token.id for token in watch.tokens)
        scoring = await score(run.step, ScoreRequest(token_ids=ids, entropies=False))
        draft.hit = watch.judge_scored(scoring)


async def _feed(run: Run, draft: Draft, call: DraftCall) -> None:
    """Feed the watch until it has a hit that may be followed by a retrieval; without one the draft
    stands, so it is read to its end. White space before the first word is not shown."""
    watch = draft.watch
    async with closing(aiter(call)) as deltas:
        async for delta in deltas:
            begin = len(watch.text)
            for token in delta.tokens:
                if draft.hit is None or not run.may_retrieve:
                    hit = watch.feed(token)
                    draft.hit = draft.hit or hit
            new = watch.text[begin:] if watch.text[:begin].strip() else watch.text.lstrip()
            if new:
                await run.step.emit(Token(role="draft", text=new))
            if draft.hit is not None and run.may_retrieve:
                return


def hit_tokens(hit: Hit) -> list[int]:
    pairs = zip(hit.words, hit.flags, strict=True)
    return [token for word, flag in pairs if flag for token in word.word.tokens]
