"""Reads a draft as it comes and says when a sentence of it asks for retrieval (METHODS.md §3.2).

Under `in_context` a sentence is judged as soon as it is complete, by the attention that queries up
to its last token give; so the verdict does not depend on how far the engine has run on, and a hit
can stop the draft. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from service.core.errors import EngineFailure
from service.engines.signals import DraftToken, Scoring
from service.strategies.dragin.options import Options
from service.strategies.dragin.rind import Hit, Signal, find_end, find_hit, judge, score_words
from service.strategies.dragin.words import Word, group_words
from service.text.tagging.base import Splitter, Tagger


@dataclass(slots=True)
class DraftWatch:
    """Feed it every token of a draft in order, then `finish`, or `judge_scored`.

    Raises EngineFailure for signals that no model can have given.
    """

    options: Options
    tagger: Tagger
    splitter: Splitter
    text: str = ""
    tokens: list[DraftToken] = field(default_factory=list)
    _maxima: list[float] = field(default_factory=list)
    _folded: int = 0  # tokens whose updates are in _maxima
    _previous: list[str] = field(default_factory=list)
    _start: int = 0  # word that the next sentence begins with

    def feed(self, token: DraftToken) -> Hit | None:
        """Take one token; a hit where one of its sentences is complete and asks."""
        check_token(token, self.tokens)
        self.tokens.append(token)
        self._maxima.append(0.0)
        brings_word = token.text[:1].isspace()
        self.text += token.text
        early = self.options.full_context and self.splitter.incremental
        return self._judge_complete() if early and brings_word else None

    def finish(self) -> Hit | None:
        """The draft has ended: judge what was not judged yet."""
        words = self.words()
        sentences = self.splitter.sentences(self.text)[len(self._previous) :]
        for number, sentence in enumerate(sentences, 1):
            last = number == len(sentences)
            end = len(words) if last else find_end(sentence, words, self._start)
            if hit := self._judge(sentence, words, end):
                return hit
        return None

    def judge_scored(self, scoring: Scoring) -> Hit | None:
        """Judge the whole draft by the attention of a pass over its tokens alone."""
        if len(scoring.tokens) != len(self.tokens):
            raise EngineFailure(
                f"the engine scored {len(scoring.tokens)} tokens of a draft of {len(self.tokens)}"
            )
        later = self.options.exclude_self
        signals = [
            Signal(scored.attention_max_later if later else scored.attention_max, weight)
            for scored, weight in zip(scoring.tokens, self._weights(), strict=True)
        ]
        check_numbers(signal.attention for signal in signals)
        sentences = self.splitter.sentences(self.text)
        return find_hit(sentences, self.words(), signals, self.options.rule, self.tagger)

    def words(self) -> list[Word]:
        return group_words(self.text, [token.span for token in self.tokens])

    def _judge_complete(self) -> Hit | None:
        """Judge the sentences that a whole word of another follows."""
        words = self.words()
        whole = self.text[: words[-1].span[0]]
        for sentence in self.splitter.sentences(whole)[len(self._previous) : -1]:
            if hit := self._judge(sentence, words, find_end(sentence, words, self._start)):
                return hit
        return None

    def _judge(self, sentence: str, words: Sequence[Word], end: int) -> Hit | None:
        own = words[self._start : end]
        if own:
            self._fold(own[-1].last)
        weights = self._weights()
        signals = [Signal(a, w) for a, w in zip(self._maxima, weights, strict=True)]
        scored = score_words(own, signals, self.options.rule)
        hit = judge(self._previous, sentence, scored, self.options.rule, self.tagger)
        self._previous.append(sentence)
        self._start = end
        return hit

    def _fold(self, last: int) -> None:
        """Take in the maxima that queries up to token `last` changed."""
        for token in self.tokens[self._folded : last + 1]:
            for update in token.updates:
                value = update.later if self.options.exclude_self else update.maximum
                self._maxima[update.key] = value
        self._folded = max(self._folded, last + 1)

    def _weights(self) -> list[float]:
        if self.options.weight == "entropy":
            return [token.entropy for token in self.tokens]
        return [-token.logprob for token in self.tokens]


def check_token(token: DraftToken, before: Sequence[DraftToken]) -> None:
    """Raise EngineFailure where a token's signals contradict themselves or those before."""
    check_numbers((token.entropy, token.logprob))
    check_numbers(value for update in token.updates for value in (update.maximum, update.later))
    begin, end = token.span
    if end < begin or (before and begin < before[-1].span[0]):
        raise EngineFailure(f"the engine placed token {len(before)} of a draft at {token.span}")
    if any(not 0 <= update.key <= len(before) for update in token.updates):
        raise EngineFailure(
            f"the engine reported attention of token {len(before)} to a later token"
        )


def check_numbers(values: Iterable[float]) -> None:
    """Raise EngineFailure for NaN and infinity."""
    if not all(math.isfinite(value) for value in values):
        raise EngineFailure(
            "the engine reported an entropy or attention that is not a number, because the "
            "model's numbers overflow: run it in float32 or bfloat16"
        )
