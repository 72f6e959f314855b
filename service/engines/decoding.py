"""One model in this process, which writes and reads one text at a time.

Every generator here yields after each pass of the network, so that a call can be ended between two
passes. A prompt that begins like the one before it is read from where they differ.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from service.core.errors import EngineFailure
from service.engines.attention import attention_rows, entropies, maxima_over, rows_per_block
from service.engines.base import Delta, FinishReason, GenerationRequest, TokenUsage
from service.engines.encoding import PromptEncoder
from service.engines.in_process import Item
from service.engines.output import (
    CONTEXT_TAIL,
    Detokenizer,
    DraftText,
    TokenAssembler,
    changed_maxima,
    place_tokens,
    wanted_tokens,
)
from service.engines.signals import (
    AttentionRow,
    ScoredToken,
    ScoreRequest,
    Scoring,
    Span,
)

Array = NDArray[Any]
CHUNK: Final = 256  # tokens of a prompt in one pass, which an abort cannot interrupt


class Network(Protocol):
    """A model, and the cache of the text that it has read so far."""

    context: int
    vocabulary: int
    scale: float  # of the last layer's attention
    no_signals: str | None  # why the queries are not known

    def run(self, ids: Sequence[int]) -> tuple[Array, Array]:
        """Append `ids` to the text. Return the logits (vocabulary,) after the last of them, and the
        last layer's queries (heads, tokens, size)."""

    def keys(self) -> Array:
        """Return the keys of the last layer: (kv_heads, length, size)."""

    def keep(self, length: int) -> int:
        """Drop the text behind the first `length` tokens, or earlier; return how many are left."""


# ---- constraints: the output is one of some choices, or JSON that follows a schema


class ChoiceConstraint:
    """Restricts the output to choices, each of which may be spelt in several ways. Ends as soon as
    one choice is left. `label` is its exact text.

    A choice that is the beginning of others ends by an end token, which competes with their tokens.
    """

    def __init__(
        self, spellings: Iterable[tuple[tuple[int, ...], str]], end_tokens: Iterable[int]
    ) -> None:
        self.label: str | None = None
        self._left = list(spellings)
        self.longest = max(len(spelling) for spelling, _ in self._left) + 1  # with an end token
        self._length = 0  # tokens written
        self._ends = tuple(end_tokens)

    def mask(self, logits: Array) -> Array:
        """Return logits (vocabulary,) with −inf for tokens that must not come next."""
        nexts = (spelling[self._length : self._length + 1] for spelling, _ in self._left)
        allowed = [token for next_ in nexts for token in next_ or self._ends]
        masked = np.full_like(logits, -np.inf)
        masked[allowed] = logits[allowed]
        return masked

    def advance(self, token: int) -> bool:
        """Take the chosen token. Returns True if nothing may follow it."""
        place = self._length
        self._length += 1
        if token in self._ends:
            self.label = next(label for spelling, label in self._left if len(spelling) == place)
            return True
        self._left = [pair for pair in self._left if pair[0][place : place + 1] == (token,)]
        labels = {label for _, label in self._left}
        if len(labels) == 1:
            (self.label,) = labels
        return self.label is not None


@dataclass(frozen=True, slots=True)
class SchemaConstraint:
    """Restricts the output to JSON of a schema, by llguidance. One leading space is allowed,
    because many models write one. The tokens are the text, so there is no `label`.
    """

    matcher: Any
    vocabulary: int
    label: str | None = None

    def mask(self, logits: Array) -> Array:
        bias = np.frombuffer(self.matcher.compute_logit_bias(), np.uint8)[: self.vocabulary]
        allowed = np.zeros(self.vocabulary, bool)
        allowed[: len(bias)] = bias > 0
        return np.where(allowed, logits, np.float32(-np.inf))

    def advance(self, token: int) -> bool:
        if not self.matcher.consume_token(token):
            raise ValueError(f"the output cannot follow the schema: {self.matcher.get_error()}")
        return bool(self.matcher.is_stopped())


Constraint = ChoiceConstraint | SchemaConstraint


def log_chances(logits: Array, token: int, count: int) -> tuple[float, tuple[float, ...]]:
    """Return the natural logarithms of the probabilities of one token, and of the `count` best,
    if that is more than one."""
    top = logits.max()
    total = top + np.log(np.exp(logits - top).sum())
    best = np.sort(np.partition(logits, -count)[-count:])[::-1] - total if count > 1 else logits[:0]
    return float(logits[token] - total), tuple(best.tolist())


class Constraints:
    """Makes the constraints of the calls of one model. Compiled schemas are cached."""

    def __init__(self, encoder: PromptEncoder, vocabulary: int, end_tokens: Iterable[int]) -> None:
        self._encoder = encoder
        self._vocabulary = vocabulary
        self._ends = sorted(end_tokens)
        self._lexicon: Any = None
        self._compiled = lru_cache(maxsize=64)(self._compile)

    def of(self, request: GenerationRequest) -> Constraint | None:
        """Return the constraint of a request. Raises ValueError if its schema is invalid or
        not supported by llguidance."""
        if request.choices:
            spellings = (
                (ids, choice) for choice in request.choices for ids in self._spellings(choice)
            )
            return ChoiceConstraint(spellings, self._ends)
        if request.json_schema is not None:
            matcher = self._compiled(json.dumps(request.json_schema))
            return SchemaConstraint(matcher.deep_copy(), self._vocabulary)
        return None

    def _spellings(self, choice: str) -> set[tuple[int, ...]]:
        """Return the ids of a choice at the start of a turn, after other text, and after a
        space."""
        encode = self._encoder.encode_text
        found = (encode(choice), encode(choice, at_start=False), encode(" " + choice))
        return {tuple(ids) for ids in found if ids}

    def _compile(self, schema: str) -> Any:
        import llguidance  # noqa: PLC0415  (only schemas need it)

        if self._lexicon is None:
            tokenizer = copy(self._encoder.backend)
            tokenizer.no_padding()
            tokenizer.no_truncation()
            self._lexicon = llguidance.LLTokenizer(
                tokenizer.to_str(), n_vocab=self._vocabulary, eos_token=self._ends
            )
        body = json.dumps({**json.loads(schema), "x-guidance": {"whitespace_pattern": " ?"}})
        grammar = llguidance.LLMatcher.grammar_from_lark(f"start: / ?/ body\nbody: %json {body}")
        matcher = llguidance.LLMatcher(self._lexicon, grammar, log_level=0)
        if matcher.is_error():
            raise ValueError(f"the JSON schema cannot be used: {matcher.get_error()}")
        return matcher


# ---- reading and writing


class Output:
    """What a call for text has written."""

    def __init__(
        self,
        request: GenerationRequest,
        text: DraftText,
        ends: frozenset[int],
        constraint: Constraint | None,
    ) -> None:
        self.token = -1  # the last one
        self.written = 0
        self._request = request
        self._text = text
        self._ends = ends
        self._constraint = constraint
        self._sent = 0  # characters
        self._logprob: float | None = None
        self._best: list[tuple[float, ...]] = []
        self._random = np.random.default_rng(request.seed % 2**63)

    def next(self, logits: Array, limit: int) -> Delta | None:
        """Choose the next token by its logits (vocabulary,), of at most `limit`. Return what is to
        be sent, if anything."""
        constraint = self._constraint
        self.token = self._choose(logits)
        self.written += 1
        ended = constraint is not None and constraint.advance(self.token)
        if constraint is not None and constraint.label is not None:
            return self._delta(constraint.label, "stop")
        if self.token in self._ends:
            self._text.end()
            return self._delta(self._new_text(), "stop")
        if isinstance(constraint, ChoiceConstraint):
            return None
        self._text.feed(self.token)
        finish: FinishReason | None = "length" if self.written >= limit else None
        finish = "stop" if ended or self._text.stopped else finish
        if finish:
            self._text.end()
        text = self._new_text()
        return self._delta(text, finish) if text or finish else None

    def _choose(self, logits: Array) -> int:
        constraint, temperature = self._constraint, self._request.temperature
        allowed = logits if constraint is None else constraint.mask(logits)
        if temperature > 0:
            allowed = allowed / temperature + self._random.gumbel(size=len(allowed))
        token = int(allowed.argmax())
        if self._request.logprobs:
            chance, best = log_chances(logits, token, self._request.logprobs)
            self._logprob = (self._logprob or 0.0) + chance
            self._best += [best] if best else []
        return token

    def _new_text(self) -> str:
        new = self._text.shown[self._sent :]
        self._sent += len(new)
        return new

    def _delta(self, text: str, finish: FinishReason | None) -> Delta:
        logprob, self._logprob = self._logprob, None
        best, self._best = tuple(self._best), []
        return Delta(text, logprob, finish, best=best)


class LanguageModel:
    """A network with its tokenizer; used by one thread at a time."""

    def __init__(
        self,
        network: Network,
        encoder: PromptEncoder,
        end_tokens: frozenset[int],
        *,
        constrained: bool = True,
    ) -> None:
        self.passes = 0
        self.network = network
        self._encoder = encoder
        self._ends = end_tokens
        self._constraints = Constraints(encoder, network.vocabulary, end_tokens)
        self._constrained = constrained
        self._read: Sequence[int] = ()  # the prompt, or its beginning, that is in the cache

    def spans(self, text: str) -> tuple[Span, ...]:
        return tuple(self._encoder.encode_with_spans(text, bos=False)[1])

    def forget(self) -> None:
        """Read the next prompt as a whole."""
        self._read = ()

    def answer(self, request: GenerationRequest | ScoreRequest) -> Iterator[Item | None]:
        """Yield what a call receives, or None after a pass that gives nothing. Raises whatever the
        request is not fit for."""
        if isinstance(request, ScoreRequest):
            return self._score(request)
        return self._draft(request) if request.signals else self._write(request)

    def _write(self, request: GenerationRequest) -> Iterator[Delta | None]:
        context, limit = self.network.context, self._limit(request)
        constraint = self._constraints.of(request) if self._constrained else None
        if isinstance(constraint, ChoiceConstraint):  # ends by itself
            limit = max(limit, constraint.longest)
        prompt = _shortened(self._encoder.encode(request), context - limit)
        before = prompt[-CONTEXT_TAIL:] if request.prompt is not None else ()
        text = DraftText(Detokenizer(self._encoder.backend, before), request.stop)
        output = Output(request, text, self._ends, constraint)
        logits, _ = yield from self._prompt(prompt)
        while True:
            delta = output.next(logits, limit)
            if delta is not None and delta.finish is not None:
                yield replace(delta, usage=TokenUsage(len(prompt), output.written))
                return
            yield delta
            logits, _ = self._run([output.token])

    def _draft(self, request: GenerationRequest) -> Iterator[Delta | None]:
        """Write a draft. With attention, a token is sent once its own row has been computed."""
        limit, attention = self._limit(request), request.signals == "attention"
        ids, spans = self._encoder.encode_with_spans(request.prompt or "", bos=True)
        prompt = _shortened(ids or [0], self.network.context - limit)
        context = tuple(_shortened(spans or [(0, 0)], self.network.context - limit))
        decoder = Detokenizer(self._encoder.backend, prompt[-CONTEXT_TAIL:])
        draft = TokenAssembler(decoder, request.stop, attention=attention)
        logits, queries = yield from self._prompt(prompt)
        maxima: Array = np.zeros((len(queries), 0), np.float32)
        for written in count(1):
            if attention:
                weights = self._attention(queries[:, -1:], len(prompt) + written - 2)
                draft.add_signals([], [], [weights[:, 0].mean(axis=0)])
                if written > 1:
                    known = maxima.mean(0)
                    maxima = maxima_over(weights[:, :, len(prompt) : -1], maxima, np)
                    draft.add_signals([], [changed_maxima(known, maxima.mean(0))])
            entropy, logprob = entropies(logits[None], np)[:, 0].tolist()
            draft.add_signals([(entropy, logprob)], [])
            token = int(logits.argmax())
            ends: FinishReason | None = "length" if written >= limit else None
            draft.add_tokens([token], "stop" if token in self._ends else ends)
            tokens, finish = tuple(draft.take()), draft.finish
            usage = TokenUsage(len(prompt), written) if finish else None
            if tokens or finish:
                text = "".join(token.text for token in tokens)
                yield Delta(text, finish=finish, usage=usage, tokens=tokens, context=context)
                context = ()
            if finish:
                return
            logits, queries = self._run([token])

    def _score(self, request: ScoreRequest) -> Iterator[Scoring | None]:
        ids, spans = place_tokens(self._encoder, request)
        context = self.network.context
        if not 0 < len(ids) <= context:
            raise EngineFailure(
                f"a text of {len(ids)} tokens cannot be scored; the length must be 1 to "
                f"{context} tokens"
            )
        wanted = frozenset(wanted_tokens(spans, request))
        rows: list[AttentionRow] = []
        maxima: Array | None = None
        self.forget()  # every query of a text is needed, and of a prompt the last one
        for start, _, queries in self._passes(ids):
            size = rows_per_block(len(queries), start + queries.shape[1])
            for at in range(0, queries.shape[1], size):
                first = start + at
                weights = self._attention(queries[:, at : at + size], first)
                maxima = maxima_over(weights, maxima, np)
                for row in range(first, first + weights.shape[1]):
                    if row + 1 in wanted:
                        mean = weights[:, row - first, : row + 1].mean(axis=0)
                        rows.append(AttentionRow(row + 1, tuple(mean.tolist())))
            yield None
        assert maxima is not None  # there is a token
        tokens = map(ScoredToken, ids, spans, maxima.mean(0).tolist())
        yield Scoring(tuple(tokens), tuple(rows), TokenUsage(len(ids), 0))

    def _limit(self, request: GenerationRequest) -> int:
        return max(1, min(request.max_tokens, self.network.context // 2))

    def _prompt(self, prompt: Sequence[int]) -> Generator[None, None, tuple[Array, Array]]:
        """Read a prompt. Return the logits after it, and the queries of its last tokens."""
        for read in self._passes(prompt):
            yield
            _, logits, queries = read
        return logits, queries

    def _passes(self, prompt: Sequence[int]) -> Iterator[tuple[int, Array, Array]]:
        """Read a prompt in chunks, at least its last token. Yield where each chunk begins, the
        logits after it, and its queries."""
        pairs = zip(prompt[:-1], self._read, strict=False)
        known = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
        known = min(len(prompt) - 1, len(self._read)) if known is None else known
        begin = self.network.keep(known)
        for start in range(begin, len(prompt), CHUNK):
            self._read = prompt[:start]
            logits, queries = self._run(prompt[start : start + CHUNK])
            self._read = prompt[: start + CHUNK]
            yield start, logits, queries

    def _run(self, ids: Sequence[int]) -> tuple[Array, Array]:
        self.passes += 1
        return self.network.run(ids)

    def _attention(self, queries: Array, first: int) -> Array:
        """Return the weights (heads, rows, keys) of queries (heads, rows, size) at the positions
        from `first` on."""
        keys = self.network.keys()[:, : first + queries.shape[1]].transpose(0, 2, 1)
        weights: Array = attention_rows(queries, keys, first, self.network.scale, np)
        return weights


def _shortened(prompt: list[Any], room: int) -> list[Any]:
    """Drop the oldest tokens, except for the first one."""
    if len(prompt) <= room:
        return prompt
    return [prompt[0], *prompt[len(prompt) - room + 1 :]]
