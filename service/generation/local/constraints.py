"""What a row may write: one of its choices, or JSON of a schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor


class ConstraintError(ValueError):
    """The constraint itself cannot be met (an unsupported schema)."""


class Constraint(Protocol):
    """`label`, once finished, is the exact text of a choice; None where the tokens are the text."""

    label: str | None

    def mask(self, logits: Tensor) -> Tensor:
        """Logits (vocabulary,) with −inf for what may not come next."""

    def advance(self, token: int) -> bool:
        """Take the chosen token; True when nothing may follow."""


class TrieNode:
    __slots__ = ("children", "label", "labels")

    def __init__(self) -> None:
        self.children: dict[int, TrieNode] = {}
        self.label: str | None = None
        self.labels: set[str] = set()


def build_trie(
    choices: Iterable[str], spellings: Callable[[str], Iterable[tuple[int, ...]]]
) -> TrieNode:
    """A trie over the token spellings of each choice; a choice may have several."""
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
    """Walks a trie. A choice that others continue ends by an end token, which competes with them.

    Ends as soon as one choice is left; `to_the_end` (for log-probabilities) writes that one out.
    """

    def __init__(self, root: TrieNode, end_tokens: Iterable[int], *, to_the_end: bool) -> None:
        self.label: str | None = None
        self._node = root
        self._ends = tuple(end_tokens)
        self._to_the_end = to_the_end

    def mask(self, logits: Tensor) -> Tensor:
        allowed = list(self._node.children)
        if self._node.label is not None:
            allowed.extend(self._ends)
        masked = torch.full_like(logits, float("-inf"))
        masked[allowed] = logits[allowed]
        return masked

    def advance(self, token: int) -> bool:
        if token in self._ends and self._node.label is not None:
            self.label = self._node.label
            return True
        self._node = self._node.children[token]
        only = len(self._node.labels) == 1
        if only and (not self._to_the_end or self._node.label is not None):
            (self.label,) = self._node.labels
        return self.label is not None


class SchemaConstraint:
    """JSON of a schema, by llguidance; one space before it is allowed, as many models write it."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        self.label: str | None = None
        self._matcher = matcher
        self._vocabulary = vocabulary

    def mask(self, logits: Tensor) -> Tensor:
        bias = torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8)
        forbidden = torch.ones(self._vocabulary, dtype=torch.bool)
        forbidden[: bias.shape[0]] = bias[: self._vocabulary] == 0
        return logits.masked_fill(forbidden.to(logits.device), float("-inf"))

    def advance(self, token: int) -> bool:
        if not self._matcher.consume_token(token):
            raise ConstraintError(f"the schema cannot be followed: {self._matcher.get_error()}")
        return bool(self._matcher.is_stopped())


class SchemaCompiler:
    """Makes constraints for one tokenizer, which is read at first use; grammars are kept."""

    def __init__(self, tokenizer: Any, vocabulary: int, end_tokens: list[int]) -> None:
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._end_tokens = end_tokens
        self._lexicon: Any = None
        self._matchers: dict[str, Any] = {}

    def compile(self, schema: Mapping[str, Any]) -> SchemaConstraint:
        """Raises ConstraintError for what is no schema, or none that llguidance supports."""
        key = json.dumps(schema, sort_keys=False)
        if key not in self._matchers:
            self._matchers[key] = self._matcher(key)
        return SchemaConstraint(self._matchers[key].deep_copy(), self._vocabulary)

    def _matcher(self, schema: str) -> Any:
        import llguidance  # noqa: PLC0415  (only schemas need it)
        import llguidance.hf  # noqa: PLC0415

        if self._lexicon is None:
            self._lexicon = llguidance.hf.from_tokenizer(
                self._tokenizer, n_vocab=self._vocabulary, eos_token=self._end_tokens
            )
        body = json.dumps({**json.loads(schema), "x-guidance": {"whitespace_pattern": " ?"}})
        grammar = llguidance.LLMatcher.grammar_from_lark(f"start: / ?/ body\nbody: %json {body}")
        matcher = llguidance.LLMatcher(self._lexicon, grammar, log_level=0)
        if matcher.is_error():
            raise ConstraintError(f"no usable JSON schema: {matcher.get_error()}")
        return matcher
