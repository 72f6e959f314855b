"""The data that DRAGIN needs of an engine besides text: entropy and last-layer attention of tokens.

METHODS.md §3.2 says what they are for, METHODS.md §6 #19 where they come from. Spans are in code
points: the first, and one past the last. Attention is that of the last layer; a token's maximum is
the mean over heads of the maximum over queries. It is over later queries in a draft, and over the
token's own, too, in a text that is read (METHODS.md §3.4 #2).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from service.engines.base import Generator, TokenUsage

Span = tuple[int, int]
Maximum = tuple[int, float]  # of the attention to a draft's token, by its number


@dataclass(frozen=True, slots=True)
class DraftToken:
    """One generated token. A token that ended the draft (`</s>`) is the last one, with an empty
    text and span: the official code counts it as part of the last word, in attention and entropy.

    `span` is the position in the draft's text, which begins where the prompt ends (a leading space
    is kept). Tokens that share a character have the same span, and its text belongs to the last of
    them. Stop strings are cut off, and tokens within them dropped. `entropy` (nats, full
    vocabulary, raw logits) and `logprob` belong to the distribution from which the token was taken.
    `updates` are the maxima that the token's own row, as a query, changed: folded up to token t
    they give the maxima over queries up to t, of the tokens before t. A token whose row was never
    computed (the last of a call) has none. `row` is the attention that predicted the token, over
    the tokens of the context before it, in float32.
    """

    id: int
    text: str
    span: Span
    entropy: float
    logprob: float
    updates: tuple[Maximum, ...] = ()
    row: Any = ()


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """Head-averaged attention of row `token` - 1, the one that predicted `token`.

    `weights` are over the context's tokens before `token`, in order. They sum to 1 over the whole
    prompt.
    """

    token: int
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ContextRows:
    """Rows over a context whose tokens lie at `spans` of its text; a BOS has an empty span.

    For a draft the context is the prompt, from `GenerationRequest.rows_from` on or whole, followed
    by the draft; `AttentionRow.token` counts from the context's first token.
    """

    spans: tuple[Span, ...]
    rows: tuple[AttentionRow, ...]


def context_rows(
    prompt: str, context: Sequence[Span], draft: Sequence[DraftToken], wanted: Iterable[int]
) -> ContextRows:
    """Return the rows of the `wanted` tokens of a draft with attention, given the tokens received
    and the context of its first delta."""
    start, first = len(prompt), len(context)
    spans = [(start + begin, start + end) for begin, end in (token.span for token in draft)]
    rows = [AttentionRow(first + n, tuple(map(float, draft[n].row))) for n in wanted]
    return ContextRows((*context, *spans), tuple(rows))


@dataclass(slots=True)
class ScoreRequest:
    """A text, or a draft's token ids, to be read by a single prefill. Exactly one of them is given.

    `bos` puts the model's first token before it. Rows are returned for the tokens that overlap
    `row_spans` and are not the first. Spans are positions in `text`, or in the decoded ids.
    """

    text: str | None = None
    token_ids: tuple[int, ...] = ()
    bos: bool = False
    row_spans: tuple[Span, ...] = ()
    model: str | None = None
    question: str = ""
    turn: int = 0

    def __post_init__(self) -> None:
        if bool(self.token_ids) == (self.text is not None):
            raise ValueError("give exactly one of text and token_ids")


@dataclass(frozen=True, slots=True)
class ScoredToken:
    id: int
    span: Span
    attention_max: float


@dataclass(frozen=True, slots=True)
class Scoring:
    tokens: tuple[ScoredToken, ...]
    rows: tuple[AttentionRow, ...] = ()
    usage: TokenUsage = field(default_factory=lambda: TokenUsage(0, 0))


@runtime_checkable
class SignalGenerator(Generator, Protocol):
    """An engine with `capabilities.token_signals`. Raises the errors of `Generator.stream`."""

    async def score(self, request: ScoreRequest) -> Scoring: ...

    async def token_spans(self, text: str, model: str | None = None) -> tuple[Span, ...]:
        """Return the spans of a text's tokens, without special tokens."""
