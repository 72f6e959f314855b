"""Restrict the output of a model in this process to choices, or to JSON that follows a schema."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.engines.base import GenerationRequest
from service.engines.encoding import PromptEncoder

Logits = NDArray[np.float32]


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

    def mask(self, logits: Logits) -> Logits:
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

    def mask(self, logits: Logits) -> Logits:
        bias = np.frombuffer(self.matcher.compute_logit_bias(), np.uint8)[: self.vocabulary]
        allowed = np.zeros(self.vocabulary, bool)
        allowed[: len(bias)] = bias > 0
        return np.where(allowed, logits, np.float32(-np.inf))

    def advance(self, token: int) -> bool:
        if not self.matcher.consume_token(token):
            raise ValueError(f"the output cannot follow the schema: {self.matcher.get_error()}")
        return bool(self.matcher.is_stopped())


Constraint = ChoiceConstraint | SchemaConstraint


def log_chances(logits: Logits, token: int, count: int) -> tuple[float, tuple[float, ...]]:
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
