"""A strict double of an engine with signals: drafts by script, a token a word."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from service.engines.base import Capabilities, Delta, GenerationRequest, TokenUsage
from service.engines.signals import (
    AttentionRow,
    DraftToken,
    ScoredToken,
    ScoreRequest,
    Scoring,
    Span,
)
from tests.support.scripted import ScriptedGenerator, ScriptError, ScriptStep

_TOKEN = re.compile(r"\s?[^\s]+|\s")
QUIET, PLAIN = 0.1, 0.2


def spans_in(text: str) -> tuple[Span, ...]:
    return tuple(match.span() for match in _TOKEN.finditer(text))


@dataclass(frozen=True)
class DraftScript:
    """One foreseen draft. `loud`: entropies of words, by their text; others are quiet.

    `attention`: of words; a token gets it from the query after it. `spoilt`: tokens by number that
    replace those made from the text. `failure` is raised after that many tokens.
    """

    text: str
    loud: Mapping[str, float] = field(default_factory=dict)
    attention: Mapping[str, float] = field(default_factory=dict)
    spoilt: Mapping[int, DraftToken] = field(default_factory=dict)
    failure: tuple[int, BaseException] | None = None
    finish: Any = "stop"

    def tokens(self) -> list[DraftToken]:
        words = [self.text[slice(*span)] for span in spans_in(self.text)]
        made = [self._token(n, words, span) for n, span in enumerate(spans_in(self.text))]
        return [self.spoilt.get(number, token) for number, token in enumerate(made)]

    def received(self, word: str) -> float:
        return self.attention.get(word.strip(), PLAIN)

    def _token(self, number: int, words: Sequence[str], span: Span) -> DraftToken:
        has_row = 0 < number < len(words) - 1
        updates = ((number - 1, self.received(words[number - 1])),) if has_row else ()
        entropy = self.loud.get(words[number].strip(), QUIET)
        return DraftToken(number, words[number], span, entropy, -entropy, updates)


# The drafts of METHODS.md §3.7, and what is written after the retrieval between them.
FIRST = DraftScript(
    " Norma was composed by Vincenzo Bellini. He was born in Palermo. So the answer is Palermo.",
    loud={"Palermo.": 1.10},
    attention={"Palermo.": 0.35, "He": 0.22, "born": 0.30},
)
LAST = DraftScript(" So the answer is Catania.")
REWRITTEN = "Bellini was born in Catania. So the answer is Catania."


class SignalEngine(ScriptedGenerator):
    """Drafts in order; plain calls by `steps`. All attention of a row goes to words of `focus`,
    and evenly to all where none of them comes before."""

    def __init__(
        self,
        drafts: Sequence[DraftScript] = (),
        steps: Sequence[ScriptStep] = (),
        *,
        focus: Sequence[str] = (),
        context_tokens: int | None = None,
        token_signals: bool = True,
    ) -> None:
        capabilities = Capabilities(
            True, True, True, token_signals=token_signals, context_tokens=context_tokens
        )
        super().__init__(steps, ordered=True, capabilities=capabilities)
        self.drafts = list(drafts)
        self.prompts: list[str] = []
        self.scores: list[ScoreRequest] = []
        self.spared = 0
        self._focus = focus
        self._newest: DraftScript | None = None

    def stream(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        return self._draft(request) if request.signals else super().stream(request)

    async def _draft(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        prompt = request.prompt or ""
        self.prompts.append(prompt)
        if not self.drafts:
            raise ScriptError(f"unexpected draft: {prompt!r}")
        script = self._newest = self.drafts.pop(0)
        context, text, sent = ((0, 0), *spans_in(prompt)), prompt + script.text, 0
        tokens, start = script.tokens(), len(prompt)
        spans = (*context, *((start + t.span[0], start + t.span[1]) for t in tokens))
        try:
            for number, token in enumerate(tokens):
                if script.failure and number == script.failure[0]:
                    raise script.failure[1]
                sent += 1
                if request.signals == "attention":
                    weights = self.row(text, spans, len(context) + number).weights
                    tokens[number] = replace(token, row=weights)
                yield Delta(token.text, tokens=(tokens[number],), context=() if number else context)
            yield Delta("", finish=script.finish, usage=TokenUsage(len(context), sent))
        finally:
            self.spared += len(tokens) - sent

    async def score(self, request: ScoreRequest) -> Scoring:
        self.scores.append(request)
        if request.text is None:
            return self._score_draft(request.token_ids)
        spans = ((0, 0), *spans_in(request.text))
        wanted = [
            n
            for n, (begin, end) in enumerate(spans)
            if n and any(begin < last and end > first for first, last in request.row_spans)
        ]
        tokens = tuple(ScoredToken(n, span, 0.5) for n, span in enumerate(spans))
        rows = tuple(self.row(request.text, spans, n) for n in wanted)
        return Scoring(tokens, rows, TokenUsage(len(spans), 0))

    async def token_spans(self, text: str, model: str | None = None) -> tuple[Span, ...]:
        return spans_in(text)

    def row(self, text: str, spans: Sequence[Span], token: int) -> AttentionRow:
        words = [text[begin:end].strip() for begin, end in spans[:token]]
        weights = [float(any(f in word for f in self._focus)) for word in words]
        total = sum(weights)
        return AttentionRow(token, tuple(w / total if total else 1 / token for w in weights))

    def assert_finished(self) -> None:
        super().assert_finished()
        if self.drafts:
            raise ScriptError(f"never written: {self.drafts[0].text!r}")

    def _score_draft(self, ids: Sequence[int]) -> Scoring:
        assert self._newest is not None
        made = {token.id: token for token in self._newest.tokens()}
        tokens = tuple(
            ScoredToken(n, made[n].span, self._newest.received(made[n].text)) for n in ids
        )
        return Scoring(tokens, (), TokenUsage(len(ids), 0))
