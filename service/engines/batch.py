"""One batch of calls of a model in this process, which a thread steps.

A step reads one chunk of the newest call's prompt, and writes one token of every other call, in one
forward pass for all of these. A call's tokens do not depend on the other calls. A prompt that
begins like the one before it is read from where they differ.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from service.core.errors import EngineFailure
from service.engines.attention_numpy import Maxima, attention_rows, entropies, rows_per_block
from service.engines.base import Delta, FinishReason, GenerationRequest, TokenUsage
from service.engines.constraints import ChoiceConstraint, Constraint, Constraints, log_chances
from service.engines.encoding import PromptEncoder
from service.engines.in_process import Call, Item
from service.engines.output import (
    CONTEXT_TAIL,
    Detokenizer,
    DraftText,
    TokenAssembler,
    place_tokens,
    wanted_tokens,
)
from service.engines.signals import (
    AttentionRow,
    AttentionUpdate,
    ScoredToken,
    ScoreRequest,
    Scoring,
    SignalDelta,
    SignalRequest,
    Span,
)

Array = NDArray[Any]
CHUNK: Final = 256  # tokens of a prompt in one pass, which an abort cannot interrupt
ROW_BYTES: Final = 512 * 2**20  # that the running calls may come to use; a longer one runs alone


class Network(Protocol):
    """A model with the cache of its calls, each in a slot of its own."""

    context: int
    vocabulary: int
    slots: int
    position_bytes: int
    scale: float  # of the last layer's attention
    no_signals: str | None  # why the queries are not known

    def run(self, first: int, ids: Array, starts: Array, wanted: Array) -> tuple[Array, Array]:
        """Run `ids` (rows, tokens) in the slots from `first` on, which hold `starts` (rows,)
        positions each; the new positions are appended.

        Returns logits (wanted, vocabulary) of the places `wanted` in the flattened rows, and the
        last layer's queries (rows, heads, tokens, size).
        """

    def keys(self, slot: int, length: int) -> Array:
        """Return the keys of the last layer: (kv_heads, length, size)."""

    def recall(self, slot: int, prompt: Sequence[int]) -> int:
        """Fill a slot with what `prompt` shares with the prompt that was remembered last, and
        return the number of positions."""

    def remember(self, slot: int, prompt: Sequence[int]) -> None:
        """Keep the states of a prompt that was read, for `recall`."""

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the positions of one slot to another."""

    def free(self, slot: int) -> None:
        """Free the memory of a slot."""

    def forget(self) -> None:
        """Free what was remembered."""


class Row:
    """A call in the batch. Of its prompt and of what it wrote, `done` tokens are in its slot.
    `attends`: it needs the attention of its newest token."""

    attends = False

    def __init__(self, call: Call, prompt: list[int], limit: int) -> None:
        self.call = call
        self.prompt = prompt
        self.limit = limit  # of tokens to write
        self.done = 0
        self.token = -1  # the last one written
        self.written = 0
        self.ended = False

    @property
    def is_read(self) -> bool:
        return self.done >= len(self.prompt)

    def next(self, logits: Array, weights: Array | None) -> Item | None:
        """Choose the next token by its logits (vocabulary,), given the attention weights (heads,
        positions) of the newest one if the row attends. Returns what is to be sent, if anything."""
        raise NotImplementedError

    def _usage(self) -> TokenUsage:
        return TokenUsage(len(self.prompt), self.written)


class TextRow(Row):
    """A call for text."""

    def __init__(
        self,
        call: Call,
        request: GenerationRequest,
        prompt: list[int],
        limit: int,
        detokenizer: Detokenizer,
        ends: frozenset[int],
        constraint: Constraint | None,
    ) -> None:
        super().__init__(call, prompt, limit)
        self._request = request
        self._ends = ends
        self._constraint = constraint
        self._text = DraftText(detokenizer, request.stop)
        self._sent = 0  # characters
        self._logprob: float | None = None
        self._best: list[tuple[float, ...]] = []
        self._random = np.random.default_rng(request.seed % 2**63)

    def next(self, logits: Array, weights: Array | None) -> Delta | None:
        constraint = self._constraint
        self.token = self._choose(logits)
        self.written += 1
        ended = constraint is not None and constraint.advance(self.token)
        if constraint is not None and constraint.label is not None:
            return self._last(constraint.label, "stop")
        if self.token in self._ends:
            self._text.end()
            return self._last(self._new_text(), "stop")
        if isinstance(constraint, ChoiceConstraint):
            return None
        self._text.feed(self.token)
        if ended or self._text.stopped or self.written >= self.limit:
            self._text.end()
            reason: FinishReason = "stop" if ended or self._text.stopped else "length"
            return self._last(self._new_text(), reason)
        return self._delta(text) if (text := self._new_text()) else None

    def _choose(self, logits: Array) -> int:
        constraint, temperature = self._constraint, self._request.temperature
        allowed = logits if constraint is None else constraint.mask(logits)
        if temperature > 0:
            allowed = allowed / temperature + self._random.gumbel(size=len(allowed))
        token = int(allowed.argmax())
        if self._request.logprobs:
            own, best = log_chances(logits, token, self._request.logprobs)
            self._logprob = (self._logprob or 0.0) + own
            self._best += [best] if best else []
        return token

    def _new_text(self) -> str:
        new = self._text.shown[self._sent :]
        self._sent += len(new)
        return new

    def _delta(self, text: str) -> Delta:
        logprob, self._logprob = self._logprob, None
        best, self._best = tuple(self._best), []
        return Delta(text, logprob, best=best)

    def _last(self, text: str, reason: FinishReason) -> Delta:
        return Delta(text, self._logprob, reason, self._usage(), best=tuple(self._best))


class DraftRow(Row):
    """A call with signals. With attention, a token is sent once its own row has been computed."""

    def __init__(
        self,
        call: Call,
        request: SignalRequest,
        prompt: list[int],
        limit: int,
        detokenizer: Detokenizer,
        ends: frozenset[int],
    ) -> None:
        super().__init__(call, prompt, limit)
        self.attends = request.attention
        self._ends = ends
        self._draft = TokenAssembler(detokenizer, request.stop, attention=request.attention)
        self._maxima: Maxima | None = None
        self._means = np.zeros((2, 0), np.float32)

    def next(self, logits: Array, weights: Array | None) -> SignalDelta | None:
        if weights is not None:
            self._see(weights)
        entropy, logprob = entropies(logits[None])[:, 0].tolist()
        self._draft.add_signals([(entropy, logprob)], [])
        self.token = int(logits.argmax())
        self.written += 1
        ends: FinishReason | None = "length" if self.written >= self.limit else None
        self._draft.add_tokens([self.token], "stop" if self.token in self._ends else ends)
        tokens, finish = tuple(self._draft.take()), self._draft.finish
        usage = self._usage() if finish else None
        return SignalDelta(tokens, finish, usage) if tokens or finish else None

    def _see(self, weights: Array) -> None:
        """Add the newest token's attention to the maxima of the draft's tokens."""
        self.call.rows.append(weights.mean(axis=0))
        own = weights[:, len(self.prompt) :]
        if own.shape[1]:
            if self._maxima is None:
                self._maxima = Maxima(len(own), self.limit)
            self._maxima.fold(own[:, None])
            self._draft.add_signals([], [self._changes(self._maxima.means())])

    def _changes(self, means: Array) -> tuple[AttentionUpdate, ...]:
        known = self._means.shape[1]
        changed = (means[:, :known] != self._means).any(axis=0).nonzero()[0].tolist()
        self._means = means
        maxima, later = means.tolist()
        keys = [*changed, *range(known, means.shape[1])]
        return tuple(AttentionUpdate(key, maxima[key], later[key]) for key in keys)


class ReadingRow(Row):
    """A text to score. `wanted` are the tokens whose attention rows are requested."""

    def __init__(
        self, call: Call, ids: list[int], spans: Sequence[Span], wanted: frozenset[int]
    ) -> None:
        super().__init__(call, ids, 0)
        self._spans = spans
        self._wanted = wanted
        self._rows: list[AttentionRow] = []
        self._maxima: Maxima | None = None

    def see(self, weights: Array) -> None:
        """Take the next rows, in order: (heads, rows, keys up to the last of these rows)."""
        if self._maxima is None:
            self._maxima = Maxima(len(weights), len(self.prompt))
        first = self._maxima.size
        self._maxima.fold(weights)
        for row in range(first, self._maxima.size):
            if row + 1 in self._wanted:
                mean = weights[:, row - first, : row + 1].mean(axis=0)
                self._rows.append(AttentionRow(row + 1, tuple(mean.tolist())))

    def next(self, logits: Array, weights: Array | None) -> Scoring:
        if self._maxima is None:
            raise EngineFailure("the model's last layer did not expose its attention")
        maxima = self._maxima.means().tolist()
        tokens = map(ScoredToken, self.prompt, self._spans, *maxima)
        return Scoring(tuple(tokens), tuple(self._rows), self._usage())


class Batch:
    """One model and its running calls; used by one thread only."""

    def __init__(
        self,
        name: str,
        network: Network,
        encoder: PromptEncoder,
        end_tokens: frozenset[int],
        *,
        constrained: bool = True,
    ) -> None:
        self.forward_passes = 0
        self.network = network
        self._name = name
        self._encoder = encoder
        self._ends = end_tokens
        self._constraints = Constraints(encoder, network.vocabulary, end_tokens)
        self._constrained = constrained
        self._pending: deque[Row] = deque()  # without a slot
        self._rows: list[Row] = []  # by slot; only the last one may still be reading its prompt

    @property
    def running(self) -> int:
        return len(self._pending) + len(self._rows)

    def spans(self, text: str) -> tuple[Span, ...]:
        return tuple(self._encoder.encode_with_spans(text, bos=False)[1])

    def step(self, newcomers: Sequence[Call]) -> None:
        """Read one chunk of a prompt, and write one token of every call whose prompt was read."""
        for call in newcomers:
            try:
                self._pending.append(self._open(call))
            except Exception as error:  # caused by this call alone: a schema, a template
                call.send(EngineFailure(f"engine {self._name!r} cannot run the call: {error}"))
        self._drop()
        self._admit()
        if self._rows and not self._rows[-1].is_read:
            self._read(self._rows[-1])
        if writing := [row for row in self._rows if row.is_read and not row.ended]:
            self._write(writing)
        self._drop()

    def fail(self, error: EngineFailure) -> None:
        """End all calls."""
        for row in (*self._rows, *self._pending):
            row.ended = True
            row.call.send(error)
        self._drop()
        self.network.forget()

    def _drop(self) -> None:
        """Remove the calls that have ended or were left. The others move into the gaps."""
        stays = [row for row in self._rows if not (row.ended or row.call.cancelled)]
        for slot, row in enumerate(stays):
            if (before := self._rows.index(row)) != slot:
                self.network.move(before, slot, row.done)
        for slot in range(len(stays), len(self._rows)):
            self.network.free(slot)
        self._rows = stays
        self._pending = deque(r for r in self._pending if not (r.ended or r.call.cancelled))

    def _admit(self) -> None:
        """Give the oldest waiting call a slot, if there is one and no other call is reading."""
        if not self._pending or len(self._rows) == self.network.slots:
            return
        row, slot = self._pending[0], len(self._rows)
        most = sum(len(each.prompt) + each.limit for each in (*self._rows, row))
        if slot and (not self._rows[-1].is_read or most * self.network.position_bytes > ROW_BYTES):
            return
        self._rows.append(self._pending.popleft())
        if not isinstance(row, ReadingRow):  # every query of a text is needed, and of a prompt
            row.done = self.network.recall(slot, row.prompt[:-1])  # the last one

    def _read(self, row: Row) -> None:
        slot, start = len(self._rows) - 1, row.done
        row.done = min(start + CHUNK, len(row.prompt))
        ids = np.array([row.prompt[start : row.done]], np.int64)
        logits, queries = self._run(slot, ids, [start], np.array([row.done - start - 1]))
        if isinstance(row, ReadingRow):
            self._see(slot, row, start, queries[0])
        elif row.is_read:
            self.network.remember(slot, row.prompt)
        if row.is_read:
            self._advance(slot, [row], logits, queries[:, :, -1:])

    def _see(self, slot: int, row: ReadingRow, start: int, queries: Array) -> None:
        """Pass the attention of the newest chunk to a text that is scored."""
        size = rows_per_block(len(queries), row.done)
        for at in range(start, row.done, size):
            block = queries[:, at - start : at - start + size]
            keys = self.network.keys(slot, at + block.shape[1])
            row.see(attention_rows(block, keys, at, self.network.scale))

    def _write(self, rows: Sequence[Row]) -> None:
        ids = np.array([[row.token] for row in rows], np.int64)
        logits, queries = self._run(0, ids, [row.done for row in rows], np.arange(len(rows)))
        for row in rows:
            row.done += 1
        self._advance(0, rows, logits, queries)

    def _run(
        self, first: int, ids: Array, starts: Sequence[int], wanted: Array
    ) -> tuple[Array, Array]:
        self.forward_passes += 1
        return self.network.run(first, ids, np.array(starts, np.int64), wanted)

    def _advance(self, first: int, rows: Sequence[Row], logits: Array, queries: Array) -> None:
        """Choose the next token of each call, by the newest queries (rows, heads, 1, size)."""
        for number, row in enumerate(rows):
            weights = None
            if row.attends:
                keys = self.network.keys(first + number, row.done)
                scale = self.network.scale
                weights = attention_rows(queries[number], keys, row.done - 1, scale)[:, 0]
            item: Item | None
            try:
                item = row.next(logits[number], weights)
            except Exception as error:
                item = EngineFailure(f"engine {self._name!r} cannot continue the call: {error}")
            if item is not None:
                goes_on = isinstance(item, Delta | SignalDelta) and item.finish is None
                row.ended = not goes_on
                row.call.send(item)

    def _open(self, call: Call) -> Row:
        """Return the row of a call. Raises whatever the request is not fit for."""
        request, context = call.request, self.network.context
        if isinstance(request, ScoreRequest):
            ids, spans = place_tokens(self._encoder, request)
            if not 0 < len(ids) <= context:
                raise EngineFailure(
                    f"a text of {len(ids)} tokens cannot be scored; the length must be 1 to "
                    f"{context} tokens"
                )
            return ReadingRow(call, ids, spans, frozenset(wanted_tokens(spans, request)))
        limit = max(1, min(request.max_tokens, context // 2))
        if isinstance(request, SignalRequest):
            ids, spans = self._encoder.encode_with_spans(request.prompt, bos=True)
            prompt = _shortened(ids or [0], context - limit)
            call.spans = _shortened(spans or [(0, 0)], context - limit)
            decoder = Detokenizer(self._encoder.backend, prompt[-CONTEXT_TAIL:])
            return DraftRow(call, request, prompt, limit, decoder, self._ends)
        constraint = self._constraints.of(request) if self._constrained else None
        if isinstance(constraint, ChoiceConstraint):  # ends by itself
            limit = max(limit, constraint.longest)
        prompt = _shortened(self._encoder.encode(request), context - limit)
        before = prompt[-CONTEXT_TAIL:] if request.prompt is not None else ()
        decoder = Detokenizer(self._encoder.backend, before)
        return TextRow(call, request, prompt, limit, decoder, self._ends, constraint)


def _shortened(prompt: list[Any], room: int) -> list[Any]:
    """Drop the oldest tokens, except for the first one."""
    if len(prompt) <= room:
        return prompt
    return [prompt[0], *prompt[len(prompt) - room + 1 :]]
