"""Turns calls into rows of a batch, and logits into the output of the calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from service.core.errors import EngineFailure
from service.engines.base import Delta, GenerationRequest
from service.engines.batch.constraints import (
    ChoiceConstraint,
    Constraint,
    Logits,
    SchemaCompiler,
    TrieNode,
    build_trie,
)
from service.engines.batch.rows import BatchRow, ReadingRow, SignalRow, open_reading
from service.engines.batch.worker import AnyJob, Call, Item, Job, SignalJob, deliver
from service.engines.encoding import PromptEncoder
from service.engines.output import CONTEXT_TAIL, Detokenizer
from service.engines.signals import SignalDelta


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
