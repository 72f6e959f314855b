"""The query of a hit (METHODS.md §3.2, lines 8 and 9; METHODS.md §3.3).

It is made by QFS: the words that a doubtful word attends to most. `make_query` makes the calls;
everything else is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import anyio.to_thread

from service.engines.signals import AttentionRow, ContextRows, ScoreRequest, Scoring, Span
from service.strategies.drafting.calls import score, token_spans
from service.strategies.dragin.draft import Draft, DraginRun
from service.strategies.dragin.rind import Hit, Word, group_words, has_content

QUERY_TOKENS: Final = 64  # tokens of the model; a longer query loses its beginning


async def make_query(run: DraginRun, draft: Draft, hit: Hit) -> str:
    """Return the query, cut to the last 64 tokens of the model. It is empty if C has no content
    word."""
    query = await _attention_query(run, draft, hit)
    if len(query.encode()) < QUERY_TOKENS:  # a token has at least one byte
        return query
    return last_tokens(query, await token_spans(run.step, query), QUERY_TOKENS)


async def _attention_query(run: DraginRun, draft: Draft, hit: Hit) -> str:
    """Run QFS over C, read on its own or inside the draft's own context."""
    query = query_text(run.layout.question, run.layout.written, hit)
    if draft.rows is not None:
        context, rows = _inside(draft, hit, draft.rows), draft.rows.rows
    else:
        request = ScoreRequest(text=query.text, bos=True, entropies=False, row_spans=query.hits)
        scoring = await score(run.step, request)
        context, rows = text_context(query, scoring), scoring.rows
    content = await anyio.to_thread.run_sync(run.tagger.content_words, query.text)
    return keep_content_words(
        context, word_attention(context, rows), content, run.options.query_words
    )


def _inside(draft: Draft, hit: Hit, rows: ContextRows) -> QueryContext:
    prompt = draft.prompt
    end = hit.words[-1].word.span[1] if hit.words else 0
    written = (len(prompt.text), len(prompt.text) + end)
    return generation_context(
        rows,
        prompt.text + draft.watch.text,
        [prompt.question, prompt.written, written],
        [row.token for row in rows.rows],
    )


def last_tokens(text: str, spans: Sequence[Span], most: int) -> str:
    """Return the last `most` tokens of `text`, whose tokens lie at `spans`."""
    return text[spans[-most][0] :].strip() if len(spans) > most else text


@dataclass(frozen=True, slots=True)
class QueryContext:
    """C: its `words`, by tokens of a context, the `hits` among them by index, and all its `tokens`,
    over which a row is normalised."""

    words: Sequence[Word]
    hits: frozenset[int]
    tokens: Sequence[int]


@dataclass(frozen=True, slots=True)
class QueryText:
    """C as a text of its own, and the spans of the hit words in it."""

    text: str
    hits: tuple[Span, ...]


def query_text(question: str, text: str, hit: Hit) -> QueryText:
    """Join question, text, the previous sentences and the words of the hit's sentence by spaces.

    Empty parts leave their space, as in the official code.
    """
    joined = f"{question} {text} {hit.previous} "
    spans: list[Span] = []
    for scored, flag in zip(hit.words, hit.flags, strict=True):
        word = scored.word.text
        if flag and word:
            spans.append((len(joined), len(joined) + len(word)))
        joined += f"{word} "
    return QueryText(joined[:-1], tuple(spans))


def text_context(query: QueryText, scoring: Scoring) -> QueryContext:
    """Return C from a pass over its text. A hit without a word at exactly its place is skipped
    (METHODS.md §6 #23).
    """
    spans = [token.span for token in scoring.tokens]
    first = next((n for n, (begin, end) in enumerate(spans) if end > begin), len(spans))
    words = group_words(query.text, spans[first:], first)
    wanted = set(query.hits)
    hits = frozenset(index for index, word in enumerate(words) if word.span in wanted)
    return QueryContext(words, hits, range(len(spans)))


def generation_context(
    context: ContextRows, text: str, regions: Sequence[Span], hits: Iterable[int]
) -> QueryContext:
    """Return C inside a generation's own context `text`: what lies in its `regions`.

    `hits` are tokens of the hit words, one of each at least.
    """
    words: list[Word] = []
    for begin, end in regions:
        tokens = [n for n, span in enumerate(context.spans) if span[0] < end and span[1] > begin]
        if tokens:
            inside = context.spans[tokens[0] : tokens[-1] + 1]
            words += group_words(text, inside, tokens[0])
    asked = set(hits)
    found = frozenset(n for n, word in enumerate(words) if not asked.isdisjoint(word.tokens))
    return QueryContext(words, found, [token for word in words for token in word.tokens])


def word_attention(context: QueryContext, rows: Sequence[AttentionRow]) -> list[float] | None:
    """Return how much the hit words attend to each word of C, or None if no hit has a row.

    For each piece of a hit word the row that predicted it, over the tokens of C before the word,
    normalised to 1; averaged over pieces and hits, summed into words.
    """
    by_token: Mapping[int, Sequence[float]] = {row.token: row.weights for row in rows}
    received: dict[int, float] = {}
    counted = 0
    for index in context.hits:
        word = context.words[index]
        pieces = [by_token[token] for token in word.tokens if token in by_token]
        counted += bool(pieces)
        for row in pieces:
            before = [token for token in context.tokens if token < word.first]
            total = sum(row[token] for token in before)
            share = 1 / (total * len(word.tokens)) if total > 0 else 0.0
            for token in before:
                received[token] = received.get(token, 0.0) + row[token] * share
    if not counted:
        return None
    return [
        sum(received.get(token, 0.0) for token in word.tokens) / counted for word in context.words
    ]


def keep_content_words(
    context: QueryContext, weights: Sequence[float] | None, content: frozenset[str], most: int
) -> str:
    """Return the `most` words that receive most attention, have content and are not hits, in their
    order. Without weights (no hit survived the content filter), return the first ones."""
    candidates = [
        index
        for index, word in enumerate(context.words)
        if index not in context.hits and has_content(word.text, content)
    ]
    if weights is not None:
        candidates.sort(key=lambda index: weights[index], reverse=True)
    return " ".join(context.words[index].text for index in sorted(candidates[:most]))
