"""From a hit to the query (METHODS.md §3.2, lines 8 and 9)."""

from __future__ import annotations

import anyio.to_thread

from service.engines.signals import ContextRows, ScoreRequest
from service.strategies.drafting import score, token_spans
from service.strategies.dragin.qfs import (
    QueryContext,
    attended,
    generation_context,
    keep_content_words,
    query_text,
    sentence_end,
    text_context,
)
from service.strategies.dragin.queries import QUERY_TOKENS, last_tokens, plain_query
from service.strategies.dragin.reading import Draft
from service.strategies.dragin.rind import Hit
from service.strategies.dragin.run import Run


async def make_query(run: Run, draft: Draft, hit: Hit) -> str:
    """The query, cut to the last 64 tokens of the model; empty where C has no content word."""
    options, question, text = run.options, run.layout.question, run.layout.written
    if options.formulation == "real_words":
        query = await _attended_query(run, draft, hit)
    else:
        query = plain_query(options.formulation, question, text, hit, run.splitter)
    if options.formulation == "last_n_tokens":
        query = last_tokens(query, await token_spans(run.step, query), options.query_words)
    if len(query.encode()) < QUERY_TOKENS:  # a token has a byte at least
        return query
    return last_tokens(query, await token_spans(run.step, query), QUERY_TOKENS)


async def _attended_query(run: Run, draft: Draft, hit: Hit) -> str:
    """QFS: over C read on its own, or inside the draft's own context."""
    prefix_only = run.options.query_prefix_only
    query = query_text(run.layout.question, run.layout.written, hit, prefix_only=prefix_only)
    if draft.rows is not None:
        context, rows = _inside(draft, hit, draft.rows, prefix_only), draft.rows.rows
    else:
        request = ScoreRequest(text=query.text, bos=True, entropies=False, row_spans=query.hits)
        scoring = await score(run.step, request)
        context, rows = text_context(query, scoring), scoring.rows
    content = await anyio.to_thread.run_sync(run.tagger.content_words, query.text)
    return keep_content_words(context, attended(context, rows), content, run.options.query_words)


def _inside(draft: Draft, hit: Hit, rows: ContextRows, prefix_only: bool) -> QueryContext:
    prompt, words = draft.prompt, hit.words[: sentence_end(hit, prefix_only)]
    end = words[-1].word.span[1] if words else 0
    written = (len(prompt.text), len(prompt.text) + end)
    return generation_context(
        rows,
        prompt.text + draft.watch.text,
        [prompt.question, prompt.written, written],
        [row.token for row in rows.rows],
    )
