"""What DRAGIN asks of an engine beside text: entropy and last-layer attention of single tokens.

METHODS.md §3.2 says what they are for, METHODS.md §6 #19 where they come from. Spans are code
points, first and one past the last. Attention is that of the last layer; a maximum is the mean over
heads of the maximum over queries.
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

    `attention` asks for the maxima and rows of the generation itself, the prompt in its context
    (profile `in_context`); without it only entropies are taken. `question` and `turn` as of
    `GenerationRequest`.
    """

    prompt: str
    max_tokens: int
    stop: tuple[str, ...] = ()
    attention: bool = False
    model: str | None = None
    question: str = ""
    turn: int = 0


@dataclass(frozen=True, slots=True)
class AttentionUpdate:
    """Maxima of the draft token `key` after one more query: over q >= key, and over q > key."""

    key: int
    maximum: float
    later: float


@dataclass(frozen=True, slots=True)
class DraftToken:
    """One generated token. One that ended the draft (`</s>`) is the last, with an empty text and
    span: the official code counts it to the last word, in attention and entropy.

    `span` is its place in the draft's text, which goes on where the prompt ends (a first space
    stays); tokens that share a character have the same span, and its text is with the last of
    them. Stop strings are cut off, tokens within them dropped. `entropy` (nats, full vocabulary,
    raw logits) and `logprob` are of the distribution it was taken from. `updates` are the maxima
    that its own row, as a query, changed: folded up to token t they give the maxima over queries
    up to t. A token whose row was never computed (the last of a call) has none.
    """

    id: int
    text: str
    span: Span
    entropy: float
    logprob: float
    updates: tuple[AttentionUpdate, ...] = ()


@dataclass(frozen=True, slots=True)
class SignalDelta:
    """New tokens of a draft, in order. The last one of a call has `finish` and `usage` set."""

    tokens: tuple[DraftToken, ...] = ()
    finish: FinishReason | None = None
    usage: TokenUsage | None = None


@dataclass(frozen=True, slots=True)
class AttentionRow:
    """Head-averaged attention of row `token` - 1, the one that predicted `token`.

    `weights` are over the context's tokens before `token`, in order, and sum to 1.
    """

    token: int
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ContextRows:
    """Rows over a context whose tokens lie at `spans` of its text; a BOS has an empty span.

    For a generation the context is the prompt, then the draft; `AttentionRow.token` counts from
    the context's first token.
    """

    spans: tuple[Span, ...]
    rows: tuple[AttentionRow, ...]


def check_rows(request: SignalRequest, tokens: Sequence[int], received: int) -> None:
    """Raise ValueError if these draft tokens have no rows, of `received` tokens."""
    if not request.attention:
        raise ValueError("the request did not ask for attention")
    if any(not 0 <= token < received for token in tokens):
        raise ValueError(
            f"attention rows of tokens {list(tokens)} are not available; {received} tokens were "
            "received"
        )


class SignalCall(Protocol):
    """A generation under way. Iterate over it once; `rows` may be asked for at any point."""

    def __aiter__(self) -> AsyncIterator[SignalDelta]: ...

    async def rows(self, tokens: Sequence[int]) -> ContextRows:
        """The rows that predicted these draft tokens (counted from 0, already received).

        What is left of the generation is aborted. Only where the request asked for `attention`.
        """


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Text, or a draft's own token ids, to read by prefill alone. Exactly one is given.

    `bos` puts the model's first token before it. Rows are wanted for the tokens that overlap
    `row_spans` and have a token before them. Spans are places in `text`, for ids in what they are
    decoded to. Without `entropies` entropy and logprob are None, and their cost is saved.
    """

    text: str | None = None
    token_ids: tuple[int, ...] = ()
    bos: bool = False
    entropies: bool = True
    row_spans: tuple[Span, ...] = ()
    model: str | None = None
    question: str = ""
    turn: int = 0

    def __post_init__(self) -> None:
        if bool(self.token_ids) == (self.text is not None):
            raise ValueError("give exactly one of text and token_ids")


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token read. `entropy` and `logprob` as of `DraftToken`, None for the first.

    `attention_max` is over queries from the token itself on (METHODS.md §3.4 #2), and
    `attention_max_later` over those after it, 0 for the last.
    """

    id: int
    span: Span
    entropy: float | None
    logprob: float | None
    attention_max: float
    attention_max_later: float


@dataclass(frozen=True, slots=True)
class Scoring:
    tokens: tuple[ScoredToken, ...]
    rows: tuple[AttentionRow, ...] = ()
    usage: TokenUsage = field(default_factory=lambda: TokenUsage(0, 0))


@runtime_checkable
class SignalGenerator(Generator, Protocol):
    """An engine whose `capabilities.token_signals` holds. Raises as `Generator.stream` does."""

    def signals(self, request: SignalRequest) -> AbstractAsyncContextManager[SignalCall]:
        """Leaving the context aborts the call at the engine and frees what it kept for it."""

    async def score(self, request: ScoreRequest) -> Scoring: ...

    async def token_spans(self, text: str, model: str | None = None) -> tuple[Span, ...]:
        """Where the tokens of a text lie, without special tokens."""
