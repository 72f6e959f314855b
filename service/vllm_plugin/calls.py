"""Drafts and scores with signals, joined from the engine's output and the workers' packets."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field

import numpy as np

from service.engines.base import TokenUsage
from service.engines.encoding import PromptEncoder
from service.engines.output import (
    CONTEXT_TAIL,
    Detokenizer,
    TokenAssembler,
    place_tokens,
    wanted_tokens,
)
from service.engines.signals import (
    AttentionRow,
    ContextRows,
    ScoredToken,
    ScoreRequest,
    Scoring,
    SignalDelta,
    SignalRequest,
    Span,
)
from service.vllm_plugin.backend import AttentionBackend
from service.vllm_plugin.collector import Collector, Inbox, SignalsLost
from service.vllm_plugin.packets import NOT_FINITE
from service.vllm_plugin.tracking import Wish

MAX_CALLS = 512
MAX_BYTES = 1 << 30


class Full(Exception):
    """Too many calls or bytes are tracked already; the text says which."""


def bytes_of(
    prompt: int, most_tokens: int, heads: int, *, score: bool, attention: bool, rows: int
) -> int:
    """Return the most bytes that a worker keeps for a call.

    That is two maxima per head and watched key, a row of the whole context per token of a draft (or
    per requested row of a score), data waiting to be fetched, and two numbers per token of a draft,
    of 4 bytes each.
    """
    watched = prompt if score else most_tokens
    numbers = 0 if score else 2 * most_tokens
    if not attention:
        return 4 * numbers
    kept = rows * prompt if score else most_tokens * (prompt + most_tokens)
    waiting = 2 * prompt if score else most_tokens * (most_tokens + 1)
    return 4 * (2 * heads * watched + kept + waiting + numbers)


class Ledger:
    def __init__(self, max_calls: int = MAX_CALLS, max_bytes: int = MAX_BYTES) -> None:
        self.calls = 0
        self.bytes = 0
        self.max_calls = max_calls
        self.max_bytes = max_bytes

    @contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Reserve a place and `size` bytes. Raises Full."""
        if self.calls >= self.max_calls:
            raise Full(f"the maximum of {self.calls} calls with signals are already running")
        if self.bytes + size > self.max_bytes:
            raise Full(
                f"the call may need {size:,} bytes on the worker, where {self.bytes:,} of "
                f"{self.max_bytes:,} bytes are in use"
            )
        self.calls += 1
        self.bytes += size
        try:
            yield
        finally:
            self.calls -= 1
            self.bytes -= size


HOLD_S = 60.0  # how long the rows of a finished draft can be requested


class BadRequest(ValueError):
    """The request is invalid; the text says why."""


class UnknownCall(LookupError):
    """The draft does not exist, or has ended."""


@dataclass(eq=False, slots=True)
class SignalsCall:
    """A draft in progress. `let_go` ends it: its rows were taken, or are not needed."""

    name: str
    prompt: Sequence[int]
    spans: Sequence[Span]
    length: int
    request: SignalRequest
    inbox: Inbox
    given: list[Span] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: asyncio.Event = field(default_factory=asyncio.Event)


class Calls:
    """Runs the calls of one API server. `heads` is the number of heads of the model's last layer on
    one rank.
    """

    def __init__(self, backend: AttentionBackend, encoder: PromptEncoder, *, heads: int) -> None:
        self.encoder = encoder
        self.ledger = Ledger()
        self.collector = Collector(backend.rpc)
        self.context_tokens = backend.context_tokens
        self._backend = backend
        self._heads = heads
        self._drafts: dict[str, SignalsCall] = {}

    @contextmanager
    def draft(self, request: SignalRequest) -> Iterator[SignalsCall]:
        """Admit a draft; leaving the context frees all its resources.

        Raises BadRequest, backend.UnknownModel, Full.
        """
        ids, spans = self.encoder.encode_with_spans(request.prompt, bos=True)
        if not ids:
            raise BadRequest("the prompt is empty and the model has no start token")
        self._check_length(len(ids), request.max_tokens)
        size = bytes_of(
            len(ids),
            request.max_tokens,
            self._heads,
            score=False,
            attention=request.attention,
            rows=request.max_tokens,
        )
        self._backend.check_model(request.model)
        name = _name()
        with self.ledger.reserve(size):
            inbox = self.collector.open(name)
            call = SignalsCall(name, ids, spans, len(request.prompt), request, inbox)
            self._drafts[name] = call
            try:
                yield call
            finally:
                del self._drafts[name]
                self.collector.close(name)

    async def run(self, call: SignalsCall) -> AsyncGenerator[SignalDelta, None]:
        """Yield the tokens of a draft as they become complete; ends early, without `finish`, on
        `stop`.

        Raises SignalsLost.
        """
        request = call.request
        detokenizer = Detokenizer(self.encoder.backend, call.prompt[-CONTEXT_TAIL:])
        draft = TokenAssembler(detokenizer, request.stop, attention=request.attention)
        wish = Wish(call.name, len(call.prompt), request.max_tokens, attention=request.attention)
        outputs = self._backend.generate(call.prompt, wish, request.max_tokens, request.model)
        async with aclosing(outputs):
            while draft.finish is None:
                if (output := await anext(outputs, None)) is None:
                    raise SignalsLost("vLLM ended the request early")
                draft.add_tokens(*output)
                if call.stop.is_set():
                    return
                if (delta := await self._delta(call, draft)) is not None:
                    yield delta
        while not draft.complete:
            if (delta := await self._delta(call, draft)) is None:
                raise SignalsLost("the worker has no signals for the last tokens")
            yield delta

    async def _delta(self, call: SignalsCall, draft: TokenAssembler) -> SignalDelta | None:
        """Return the tokens that a fetch completed."""
        await self.collector.refresh()
        draft.add_signals(*call.inbox.take())
        tokens = draft.take()
        call.given += [token.span for token in tokens]
        if draft.complete:
            usage = TokenUsage(len(call.prompt), draft.generated)
            return SignalDelta(tuple(tokens), draft.finish, usage)
        return SignalDelta(tuple(tokens)) if tokens else None

    async def rows(self, name: str, tokens: Sequence[int]) -> ContextRows:
        """Return the rows that predicted these tokens of a draft, and end the draft.

        Raises UnknownCall, BadRequest, SignalsLost.
        """
        call = self._drafts.get(name)
        if call is None:
            raise UnknownCall(f"there is no draft {name!r} on this server")
        if not call.request.attention:
            raise BadRequest("the draft was started without attention")
        if bad := [token for token in tokens if not 0 <= token < len(call.given)]:
            raise BadRequest(f"the draft has no tokens {bad}; it has {len(call.given)} tokens")
        call.stop.set()
        first = len(call.prompt) - 1
        positions = sorted({first + token for token in tokens})
        self.collector.ask_rows(name, positions)
        try:
            await self.collector.refresh()
            rows = tuple(_row(call.inbox, position) for position in positions)
        finally:
            call.let_go.set()
        later = [(call.length + start, call.length + end) for start, end in call.given]
        return ContextRows((*call.spans, *later), rows)

    async def score(self, request: ScoreRequest) -> Scoring:
        """Score a text or ids. Raises BadRequest, Full, SignalsLost, UnknownModel."""
        if bad := [i for i in request.token_ids if not 0 <= i < self._backend.vocabulary]:
            raise BadRequest(f"not token ids of this model: {bad[:5]}")
        ids, spans = place_tokens(self.encoder, request)
        if not ids:
            return Scoring(())
        self._check_length(len(ids), 1)
        self._backend.check_model(request.model)
        rows = tuple(token - 1 for token in wanted_tokens(spans, request))
        size = bytes_of(len(ids), 1, self._heads, score=True, attention=True, rows=len(rows))
        wish = Wish(_name(), len(ids), score=True, rows=rows)
        with self.ledger.reserve(size):
            inbox = self.collector.open(wish.call)
            try:
                outputs = self._backend.generate(ids, wish, 1, request.model)
                async with aclosing(outputs):
                    async for _ in outputs:
                        pass
                await self.collector.refresh()
                return _scoring(ids, spans, inbox, rows)
            finally:
                self.collector.close(wish.call)

    def _check_length(self, prompt: int, new: int) -> None:
        if prompt + new > self.context_tokens:
            raise BadRequest(
                f"{prompt} prompt tokens and {new} new tokens exceed the model's context of "
                f"{self.context_tokens} tokens"
            )


def _scoring(
    ids: Sequence[int], spans: Sequence[Span], inbox: Inbox, rows: Sequence[int]
) -> Scoring:
    inbox.take()
    if inbox.means.shape[1] < len(ids):
        raise SignalsLost("the worker has no signals for the text")
    tokens = tuple(map(ScoredToken, ids, spans, *inbox.means.tolist()))
    kept = tuple(_row(inbox, position) for position in rows)
    return Scoring(tokens, kept, TokenUsage(len(ids), 0))


def _row(inbox: Inbox, position: int) -> AttentionRow:
    row = inbox.rows.get(position)
    if inbox.error is not None or row is None:
        raise SignalsLost(inbox.error or f"the attention row of position {position} was not kept")
    if not np.isfinite(row).all():
        raise SignalsLost(NOT_FINITE)
    return AttentionRow(position + 1, tuple(row.tolist()))


def _name() -> str:
    return f"revelator-{uuid.uuid4().hex}"
