"""Constraints on the output of a row: one of its choices, or JSON that follows a schema."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

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
