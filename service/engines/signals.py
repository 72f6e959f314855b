"""The data that DRAGIN needs of an engine besides text: entropy and last-layer attention of tokens.

METHODS.md §3.2 says what they are for, METHODS.md §6 #19 where they come from. Spans are in code
points: the first, and one past the last. Attention is that of the last layer; a maximum is the mean
over heads of the maximum over queries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from service.engines.base import FinishReason, Generator, TokenUsage

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class SignalRequest:
    """A greedy generation of at most `max_tokens` after the raw text `prompt`, with signals.

    `attention` requests the maxima and rows of the generation itself, with the prompt in its
    context (profile `in_context`); without it only entropies are returned. Rows are needed of the
    prompt from `rows_from` on only, a place in code points; an engine may return more. `question`
    and `turn` are as in `GenerationRequest`.
    """

    prompt: str
    max_tokens: int
    stop: tuple[str, ...] = ()
    attention: bool = False
    model: str | None = None
    question: str = ""
    turn: int = 0
    rows_from: int = 0


@dataclass(frozen=True, slots=True)
class AttentionUpdate:
    """Maxima of the draft token `key` after one more query: over q >= key, and over q > key."""

    key: int
    maximum: float
    later: float


@dataclass(frozen=True, slots=True)
class DraftToken:
    """One generated token. A token that ended the draft (`</s>`) is the last one, with an empty
    text and span: the official code counts it as part of the last word, in attention and entropy.

    `span` is the position in the draft's text, which begins where the prompt ends (a leading space
    is kept). Tokens that share a character have the same span, and its text belongs to the last of
    them. Stop strings are cut off, and tokens within them dropped. `entropy` (nats, full
    vocabulary, raw logits) and `logprob` belong to the distribution from which the token was taken.
    `updates` are the maxima that the token's own row, as a query, changed: folded up to token t
    they give the maxima over queries up to t. A token whose row was never computed (the last of a
    call) has none.
    """

    id: int
    text: str
    span: Span
    entropy: float
    logprob: float
    updates: tuple[AttentionUpdate, ...] = ()


@dataclass(frozen=True, slots=True)
class SignalDelta:
    """New tokens of a draft, in order. The last one of a call has `finish` and `usage` set; those
    before it may have what was used so far.
    """

    tokens: tuple[DraftToken, ...] = ()
    finish: FinishReason | None = None
    usage: TokenUsage | None = None


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

    For a generation the context is the prompt, from `SignalRequest.rows_from` on or whole, followed
    by the draft; `AttentionRow.token` counts from the context's first token.
    """

    spans: tuple[Span, ...]
    rows: tuple[AttentionRow, ...]


def check_rows(request: SignalRequest, tokens: Sequence[int], received: int) -> None:
    """Raise ValueError if these draft tokens have no rows. `received` is the number of tokens
    received.
    """
    if not request.attention:
        raise ValueError("the request did not ask for attention")
    if any(not 0 <= token < received for token in tokens):
        raise ValueError(
            f"attention rows of tokens {list(tokens)} are not available; {received} tokens were "
            "received"
        )


class SignalCall(Protocol):
    """A generation in progress. Iterate over it once; `rows` may be called at any time."""

    def __aiter__(self) -> AsyncIterator[SignalDelta]: ...

    async def rows(self, tokens: Sequence[int]) -> ContextRows:
        """Return the rows that predicted these draft tokens (counted from 0, already received).

        The rest of the generation is aborted. Requires a request with `attention`.
        """


@dataclass(frozen=True, slots=True)
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
    """One scored token.

    `attention_max` is over queries from the token itself on (METHODS.md §3.4 #2), and
    `attention_max_later` over those after it, 0 for the last.
    """

    id: int
    span: Span
    attention_max: float
    attention_max_later: float


@dataclass(frozen=True, slots=True)
class Scoring:
    tokens: tuple[ScoredToken, ...]
    rows: tuple[AttentionRow, ...] = ()
    usage: TokenUsage = field(default_factory=lambda: TokenUsage(0, 0))


@runtime_checkable
class SignalGenerator(Generator, Protocol):
    """An engine with `capabilities.token_signals`. Raises the errors of `Generator.stream`."""

    def signals(self, request: SignalRequest) -> AbstractAsyncContextManager[SignalCall]:
        """Start a generation. Leaving the context aborts the call at the engine and frees its
        resources.
        """

    async def score(self, request: ScoreRequest) -> Scoring: ...

    async def token_spans(self, text: str, model: str | None = None) -> tuple[Span, ...]:
        """Return the spans of a text's tokens, without special tokens."""
