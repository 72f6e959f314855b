"""The state of a call in a batch: a row of output, with or without signals, or a text to score.

Constraints restrict a row's output to its choices, or to JSON that follows a schema. Admission
turns calls into rows, and logits into the output of the calls.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from service.core.errors import EngineFailure
from service.engines.attention_numpy import Array, Maxima, entropies
from service.engines.base import Delta, FinishReason, GenerationRequest, TokenUsage
from service.engines.batch.worker import AnyJob, Call, Item, Job, ScoreJob, SignalJob, deliver
from service.engines.encoding import PromptEncoder
from service.engines.output import (
    CONTEXT_TAIL,
    Detokenizer,
    StopCutter,
    TokenAssembler,
    place_tokens,
    wanted_tokens,
)
from service.engines.signals import (
    AttentionRow,
    AttentionUpdate,
    ScoredToken,
    Scoring,
    SignalDelta,
    Span,
)

Logits = NDArray[np.float32]


class ConstraintError(ValueError):
    """The constraint itself cannot be satisfied (for example an unsupported schema)."""


class Constraint(Protocol):
    """A constraint. `label` is the exact text of a finished choice, None where the tokens are the
    text.
    """

    label: str | None

    def mask(self, logits: Logits) -> Logits:
        """Return logits (vocabulary,) with −inf for tokens that must not come next."""

    def advance(self, token: int) -> bool:
        """Take the chosen token. Returns True if nothing may follow it."""


class TrieNode:
    __slots__ = ("children", "label", "labels")

    def __init__(self) -> None:
        self.children: dict[int, TrieNode] = {}
        self.label: str | None = None
        self.labels: set[str] = set()


def build_trie(
    choices: Iterable[str], spellings: Callable[[str], Iterable[tuple[int, ...]]]
) -> TrieNode:
    """Build a trie over the token spellings of each choice, which may have several."""
    root = TrieNode()
    for choice in choices:
        for spelling in spellings(choice):
            node = root
            node.labels.add(choice)
            for token in spelling:
                node = node.children.setdefault(token, TrieNode())
                node.labels.add(choice)
            node.label = node.label or choice
    return root


class ChoiceConstraint:
    """Restricts the output to choices. Ends as soon as one choice is left.

    A choice that is the beginning of others ends by an end token, which competes with their tokens.
    """

    def __init__(self, root: TrieNode, end_tokens: Iterable[int]) -> None:
        self.label: str | None = None
        self._node = root
        self._ends = tuple(end_tokens)

    def mask(self, logits: Logits) -> Logits:
        allowed = list(self._node.children)
        if self._node.label is not None:
            allowed.extend(self._ends)
        masked = np.full_like(logits, -np.inf)
        masked[allowed] = logits[allowed]
        return masked

    def log_share(self, logits: Logits, token: int) -> float:
        """Return the log-probability (natural) of this token's branch among all permitted branches.

        A choice may be spelt in several ways, so all tokens that lead to the same choices count
        together.
        """
        leads = {child: node.labels for child, node in self._node.children.items()}
        if self._node.label is not None:
            leads |= {end: {self._node.label} for end in self._ends if end not in leads}
        top = max(float(logits[child]) for child in leads)
        raised = {child: math.exp(float(logits[child]) - top) for child in leads}
        same = sum(chance for child, chance in raised.items() if leads[child] <= leads[token])
        return math.log(same / sum(raised.values()))

    def advance(self, token: int) -> bool:
        if token in self._ends and self._node.label is not None:
            self.label = self._node.label
            return True
        self._node = self._node.children[token]
        if len(self._node.labels) == 1:
            (self.label,) = self._node.labels
        return self.label is not None


class SchemaConstraint:
    """Restricts the output to JSON of a schema, by llguidance. One leading space is allowed,
    because many models write one.
    """

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self.label: str | None = None
        self._matcher = matcher
        self._vocabulary = vocabulary

    def mask(self, logits: Logits) -> Logits:
        bias = np.frombuffer(self._matcher.compute_logit_bias(), np.uint8)[: self._vocabulary]
        allowed = np.zeros(self._vocabulary, bool)
        allowed[: len(bias)] = bias > 0
        return np.where(allowed, logits, np.float32(-np.inf))

    def advance(self, token: int) -> bool:
        if not self._matcher.consume_token(token):
            raise ConstraintError(
                f"the output cannot follow the schema: {self._matcher.get_error()}"
            )
        return bool(self._matcher.is_stopped())


class SchemaCompiler:
    """Compiles schemas for one `tokenizers.Tokenizer`, and caches the grammars."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_tokens: list[int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._end_tokens = end_tokens
        self._lexicon: Any = None
        self._matchers: dict[str, Any] = {}

    def compile(self, schema: Mapping[str, Any]) -> SchemaConstraint:
        """Compile a schema. Raises ConstraintError if it is invalid or not supported by
        llguidance.
        """
        key = json.dumps(schema, sort_keys=False)
        if key not in self._matchers:
            self._matchers[key] = self._matcher(key)
        return SchemaConstraint(self._matchers[key].deep_copy(), self._vocabulary)

    def _matcher(self, schema: str) -> Any:
        import llguidance  # noqa: PLC0415  (only schemas need it)

        if self._lexicon is None:
            tokenizer = copy(self._tokenizer)
            tokenizer.no_padding()
            tokenizer.no_truncation()
            self._lexicon = llguidance.LLTokenizer(
                tokenizer.to_str(), n_vocab=self._vocabulary, eos_token=self._end_tokens
            )
        body = json.dumps({**json.loads(schema), "x-guidance": {"whitespace_pattern": " ?"}})
        grammar = llguidance.LLMatcher.grammar_from_lark(f"start: / ?/ body\nbody: %json {body}")
        matcher = llguidance.LLMatcher(self._lexicon, grammar, log_level=0)
        if matcher.is_error():
            raise ConstraintError(f"the JSON schema cannot be used: {matcher.get_error()}")
        return matcher


class BatchRow:
    """A call in the batch. `prompt` holds its ids, `token` the last one chosen."""

    def __init__(
        self,
        job: Job,
        prompt: list[int],
        detokenizer: Detokenizer,
        *,
        limit: int,
        end_tokens: frozenset[int],
        constraint: Constraint | None,
    ) -> None:
        self.job = job
        self.prompt = prompt
        self.token = -1
        self.written = 0
        self.constraint = constraint
        self._limit = limit
        self._ends = end_tokens
        self._detokenizer = detokenizer
        self._stops = StopCutter(job.request.stop)
        self._logprob: float | None = None
        self._temperature = job.request.temperature
        self._random = np.random.default_rng(job.request.seed % 2**63)

    @property
    def length(self) -> int:
        """The number of cache positions after the last chosen token has been processed."""
        return len(self.prompt) + self.written

    @property
    def most(self) -> int:
        """The number of cache positions that the row may come to use."""
        return len(self.prompt) + self.job.request.max_tokens

    @property
    def is_plain(self) -> bool:
        """Whether the most likely token is chosen and nothing else of the logits is needed."""
        return self.constraint is None and self._temperature <= 0 and not self.job.request.logprobs

    def choose(self, logits: Logits) -> int:
        """Choose the next token by this row's rules, from logits (vocabulary,) in float32."""
        masked = self.constraint.mask(logits) if self.constraint is not None else logits
        if self._temperature > 0:
            noise = self._random.gumbel(size=len(masked))
            token = int((masked / self._temperature + noise).argmax())
        else:
            token = int(masked.argmax())
        if self.job.request.logprobs:
            self._logprob = (self._logprob or 0.0) + self._log_chance(logits, token)
        return token

    def _log_chance(self, logits: Logits, token: int) -> float:
        if isinstance(self.constraint, ChoiceConstraint):
            return self.constraint.log_share(logits, token)
        return log_chance(logits, token)

    def take(self, token: int) -> Delta | None:
        """Take the chosen token. Returns the delta to send, if any; the last one has `finish`
        set.
        """
        self.token = token
        self.written += 1
        if self.constraint is not None and self.constraint.advance(token):
            return self._last("stop", token)
        if token in self._ends:
            return self._last("stop", token)
        if self.constraint is not None and self.constraint.label is None and self._is_choice:
            return None
        text = self._cut(self._detokenizer.feed(token))
        if self._stops.stopped:
            return self._finish(text, "stop")
        if self.written >= self._limit:
            return self._finish(text + self._rest(), "length")
        return self._delta(text) if text else None

    @property
    def _is_choice(self) -> bool:
        return bool(self.job.request.choices)

    def _last(self, reason: FinishReason, token: int) -> Delta:
        if self.constraint is not None and self.constraint.label is not None:
            return self._finish(self.constraint.label, reason)
        text = "" if token in self._ends else self._cut(self._detokenizer.feed(token))
        return self._finish(text + self._rest(), reason)

    def _cut(self, text: str) -> str:
        return self._stops.feed(text)

    def _rest(self) -> str:
        return self._stops.feed(self._detokenizer.flush()) + self._stops.flush()

    def _delta(self, text: str) -> Delta:
        logprob, self._logprob = self._logprob, None
        return Delta(text, logprob)

    def _finish(self, text: str, reason: FinishReason) -> Delta:
        usage = TokenUsage(len(self.prompt), self.written)
        return Delta(text, self._logprob, "stop" if self._stops.stopped else reason, usage)


def log_chance(logits: Logits, token: int) -> float:
    """Return the natural logarithm of one token's probability."""
    top = logits.max()
    return float(logits[token] - top - np.log(np.exp(logits - top).sum()))


class SignalRow(BatchRow):
    """A row with signals. With attention, a token is sent once its own row has been computed."""

    def __init__(
        self, job: SignalJob, prompt: list[int], detokenizer: Detokenizer, **options: Any
    ) -> None:
        super().__init__(job, prompt, detokenizer, **options)
        self.signals = job
        self._draft = TokenAssembler(detokenizer, job.request.stop, attention=job.attention)
        self._maxima: Maxima | None = None
        self._means = np.zeros((2, 0), np.float32)

    @property
    def is_plain(self) -> bool:
        return False

    def choose(self, logits: Logits) -> int:
        entropy, logprob = entropies(logits[None])[:, 0].tolist()
        self._draft.add_signals([(entropy, logprob)], [])
        return int(logits.argmax())

    def see(self, weights: Array) -> None:
        """Take the attention weights of this row's newest query: (heads, positions)."""
        self.signals.rows.append(weights.mean(axis=0))
        prompt = len(self.prompt)
        if weights.shape[1] > prompt:
            if self._maxima is None:
                self._maxima = Maxima(weights.shape[0], self._limit)
            self._maxima.fold(weights[:, None, prompt:])
            self._draft.add_signals([], [self._changes(self._maxima.means())])

    def _changes(self, means: Array) -> tuple[AttentionUpdate, ...]:
        known = self._means.shape[1]
        changed = (means[:, :known] != self._means).any(axis=0).nonzero()[0].tolist()
        self._means = means
        maxima, later = means.tolist()
        keys = [*changed, *range(known, means.shape[1])]
        return tuple(AttentionUpdate(key, maxima[key], later[key]) for key in keys)

    def take(self, token: int) -> SignalDelta | None:  # type: ignore[override]
        self.token = token
        self.written += 1
        ends: FinishReason | None = "length" if self.written >= self._limit else None
        self._draft.add_tokens([token], "stop" if token in self._ends else ends)
        tokens, finish = tuple(self._draft.take()), self._draft.finish
        usage = TokenUsage(len(self.prompt), self.written) if finish else None
        return SignalDelta(tokens, finish, usage) if tokens or finish else None


@dataclass(slots=True, eq=False)
class ReadingRow:
    """A text that is scored. `wanted` are the tokens whose attention rows are requested."""

    job: ScoreJob
    ids: list[int]
    spans: list[Span]
    wanted: frozenset[int]
    rows: list[AttentionRow] = field(default_factory=list)
    maxima: Maxima | None = None

    def see(self, weights: Array) -> None:
        """Take the next rows, in order: (heads, rows, keys up to the last of these rows)."""
        if self.maxima is None:
            self.maxima = Maxima(weights.shape[0], len(self.ids))
        first = self.maxima.size
        self.maxima.fold(weights)
        for row in range(first, self.maxima.size):
            if row + 1 in self.wanted:
                mean = weights[:, row - first, : row + 1].mean(axis=0)
                self.rows.append(AttentionRow(row + 1, tuple(mean.tolist())))

    def result(self) -> Scoring:
        if self.maxima is None:
            raise EngineFailure("the model's last layer did not expose its attention")
        whole, later = self.maxima.means().tolist()
        tokens = tuple(
            ScoredToken(token, self.spans[n], whole[n], later[n])
            for n, token in enumerate(self.ids)
        )
        return Scoring(tokens, tuple(self.rows), TokenUsage(len(self.ids), 0))


def open_reading(encoder: PromptEncoder, job: ScoreJob, most: int) -> ReadingRow:
    """Prepare a text to be scored. Raises EngineFailure if it is longer than `most` tokens."""
    ids, spans = place_tokens(encoder, job.request)
    if not 0 < len(ids) <= most:
        raise EngineFailure(
            f"a text of {len(ids)} tokens cannot be scored; the length must be 1 to {most} tokens"
        )
    wanted = frozenset(wanted_tokens(spans, job.request))
    return ReadingRow(job, ids, spans, wanted)


class BatchAdmission:
    """Opens rows and texts for one model. A call that cannot be opened fails alone."""

    def __init__(
        self,
        name: str,
        encoder: PromptEncoder,
        *,
        context_tokens: int,
        end_tokens: frozenset[int],
        schemas: SchemaCompiler,
        constrained: bool,
    ) -> None:
        self._name = name
        self._encoder = encoder
        self._context = context_tokens
        self._ends = end_tokens
        self._schemas = schemas
        self._constrained = constrained
        self._trie: Callable[[tuple[str, ...]], TrieNode] = lru_cache(maxsize=256)(
            lambda choices: build_trie(choices, self._spellings)
        )

    def open(self, jobs: Iterable[AnyJob]) -> tuple[list[BatchRow], list[ReadingRow]]:
        """Open the jobs. Those that cannot be opened receive their error."""
        rows: list[BatchRow] = []
        readings: list[ReadingRow] = []
        for job in jobs:
            try:
                if isinstance(job, SignalJob):
                    rows.append(self._signal_row(job))
                elif isinstance(job, Job):
                    rows.append(self._row(job))
                else:
                    readings.append(open_reading(self._encoder, job, self._context))
            except Exception as error:  # caused by this call alone: a schema, a template
                failure = EngineFailure(f"engine {self._name!r} cannot run the call: {error}")
                deliver([(job, failure)])
        return rows, readings

    def _signal_row(self, job: SignalJob) -> SignalRow:
        ids, spans = self._encoder.encode_with_spans(job.request.prompt or "", bos=True)
        limit = max(1, min(job.request.max_tokens, self._context // 2))
        prompt = _shorten(ids or [0], self._context - limit)
        job.spans = _shorten(spans or [(0, 0)], self._context - limit)
        decoder = Detokenizer(self._encoder.backend, prompt[-CONTEXT_TAIL:])
        return SignalRow(job, prompt, decoder, limit=limit, end_tokens=self._ends, constraint=None)

    def _row(self, job: Job) -> BatchRow:
        request = job.request
        prompt = self._encoder.encode(request)
        limit = max(1, min(request.max_tokens, self._context // 2))
        prompt = _shorten(prompt, self._context - limit)
        context = prompt[-CONTEXT_TAIL:] if request.prompt is not None else ()
        choice = bool(request.choices) and self._constrained
        return BatchRow(
            job,
            prompt,
            Detokenizer(self._encoder.backend, context),
            limit=self._context - len(prompt) if choice else limit,
            end_tokens=self._ends,
            constraint=self._constraint(request) if self._constrained else None,
        )

    def _constraint(self, request: GenerationRequest) -> Constraint | None:
        if request.choices:
            trie = self._trie(request.choices)
            return ChoiceConstraint(trie, self._ends)
        if request.json_schema is not None:
            return self._schemas.compile(request.json_schema)
        return None

    def _spellings(self, choice: str) -> set[tuple[int, ...]]:
        """Return the ids of a choice at the start of a turn, after other text, and after a
        space.
        """
        encode = self._encoder.encode_text
        return {
            tuple(ids)
            for ids in (encode(choice), encode(choice, at_start=False), encode(" " + choice))
            if ids
        }


def advance(
    name: str, rows: Sequence[BatchRow], best: Sequence[int], logits: Callable[[int], Logits]
) -> list[int]:
    """Choose a token for each row and deliver it. Returns the numbers of the rows that continue.

    `best` holds the most likely token of each row; `logits(n)` is called where a row needs all of
    them.
    """
    items: list[tuple[Call, Item]] = []
    goes_on: list[int] = []
    for number, row in enumerate(rows):
        item = _take(name, row, best[number], logits, number)
        if item is not None:
            items.append((row.job, item))
        if item is None or (isinstance(item, Delta | SignalDelta) and item.finish is None):
            goes_on.append(number)
    deliver(items)
    return goes_on


def _take(
    name: str, row: BatchRow, best: int, logits: Callable[[int], Logits], number: int
) -> Item | None:
    try:
        return row.take(best if row.is_plain else row.choose(logits(number)))
    except Exception as error:
        return EngineFailure(f"engine {name!r} cannot continue the call: {error}")


def _shorten(prompt: list[Any], room: int) -> list[Any]:
    """Drop the oldest tokens, except for the first one."""
    if len(prompt) <= room:
        return prompt
    return [prompt[0], *prompt[len(prompt) - room + 1 :]]
