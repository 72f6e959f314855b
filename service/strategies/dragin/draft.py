"""A draft: it is read until one of its sentences requests retrieval, or to its end (METHODS.md
§3.2, lines 4 and 5).

If attention is that of the generation, a sentence is judged as soon as it is complete, by the
attention of queries up to its last token. So the verdict does not depend on how far the engine has
generated, and a hit can stop the draft.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from service.answer.calls import with_restarts
from service.answer.events import Token, Withdraw
from service.core.concurrency import closing
from service.core.errors import EngineFailure
from service.engines.signals import ContextRows, DraftToken, ScoreRequest, Scoring, SignalRequest
from service.strategies.drafting.calls import DraftCall, drafting, score
from service.strategies.drafting.layout import DraftPrompt
from service.strategies.drafting.run import DraftingRun
from service.strategies.dragin.options import DraginOptions
from service.strategies.dragin.rind import (
    Hit,
    ScoredWord,
    Signal,
    Word,
    find_end,
    find_hit,
    group_words,
    judge,
    score_sentences,
    score_words,
)
from service.text.tagging import Splitter, Tagger


@dataclass(slots=True, kw_only=True)
class DraginRun(DraftingRun):
    """A question that DRAGIN answers. `tagger` says which words have content."""

    options: DraginOptions
    tagger: Tagger

    def watch(self) -> DraftWatch:
        """Return a watch for a new draft."""
        return DraftWatch(self.options, self.tagger, self.splitter)


@dataclass(slots=True)
class Draft:
    """A draft in progress. `rows` are the attention rows of the hit's tokens in the draft's own
    context, if they are needed."""

    prompt: DraftPrompt
    watch: DraftWatch
    hit: Hit | None = None
    rows: ContextRows | None = None


async def open_draft(run: DraginRun) -> Draft:
    prompt = (await run.fit(replace(run.layout, passages=()))).prompt()
    return Draft(prompt, run.watch())


async def read_draft(run: DraginRun, draft: Draft) -> None:
    """Emit the draft's tokens as they arrive. The draft restarts if a pool's worker is lost."""

    async def void() -> None:
        shown = bool(draft.watch.text.strip())
        draft.watch, draft.hit = run.watch(), None
        if shown:
            await run.step.emit(Withdraw(role="draft", reason="restart"))

    await with_restarts(lambda: _read(run, draft), void)


async def _read(run: DraginRun, draft: Draft) -> None:
    options, watch = run.options, draft.watch
    request = SignalRequest(
        draft.prompt.text, options.limit, run.stops, attention=options.full_context
    )
    async with drafting(run.step, request) as call:
        await _feed(run, draft, call)
        if options.full_context:
            draft.hit = draft.hit or watch.finish()
            if draft.hit is not None and run.may_retrieve:
                draft.rows = await call.rows(hit_tokens(draft.hit))
    if not options.full_context and watch.tokens:
        ids = tuple(token.id for token in watch.tokens)
        scoring = await score(run.step, ScoreRequest(token_ids=ids, entropies=False))
        draft.hit = watch.judge_scored(scoring)


async def _feed(run: DraginRun, draft: Draft, call: DraftCall) -> None:
    """Feed the watch until it has a hit that may be followed by a retrieval. A draft without a hit
    is kept, so it is read to its end. White space before the first word is not shown.
    """
    watch = draft.watch
    async with closing(aiter(call)) as deltas:
        async for delta in deltas:
            begin = len(watch.text)
            for token in delta.tokens:
                if draft.hit is None or not run.may_retrieve:
                    hit = watch.feed(token)
                    draft.hit = draft.hit or hit
            new = watch.text[begin:] if watch.text[:begin].strip() else watch.text.lstrip()
            if new:
                await run.step.emit(Token(role="draft", text=new))
            if draft.hit is not None and run.may_retrieve:
                return


def hit_tokens(hit: Hit) -> list[int]:
    pairs = zip(hit.words, hit.flags, strict=True)
    return [token for word, flag in pairs if flag for token in word.word.tokens]


@dataclass(slots=True)
class DraftWatch:
    """Finds the hit of a draft. Feed it every token in order, then `finish` or `judge_scored`.

    `scored` are the words of the judged sentences. Raises EngineFailure for signals that no model
    can produce.
    """

    options: DraginOptions
    tagger: Tagger
    splitter: Splitter
    text: str = ""
    tokens: list[DraftToken] = field(default_factory=list)
    scored: tuple[ScoredWord, ...] = ()
    _maxima: list[float] = field(default_factory=list)
    _folded: int = 0  # tokens whose updates are in _maxima
    _previous: list[str] = field(default_factory=list)
    _start: int = 0  # word that the next sentence begins with

    def feed(self, token: DraftToken) -> Hit | None:
        """Take one token. Return a hit if a sentence is now complete and requests retrieval."""
        check_token(token, self.tokens)
        self.tokens.append(token)
        self._maxima.append(0.0)
        brings_word = token.text[:1].isspace()
        self.text += token.text
        early = self.options.full_context and self.splitter.incremental
        return self._judge_complete() if early and brings_word else None

    def finish(self) -> Hit | None:
        """End the draft, and judge the remaining sentences."""
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
            Signal(scored.attention_max_later if later else scored.attention_max, token.entropy)
            for scored, token in zip(scoring.tokens, self.tokens, strict=True)
        ]
        check_numbers(signal.attention for signal in signals)
        sentences, words = self.splitter.sentences(self.text), self.words()
        scored = score_sentences(sentences, words, signals, self.options.rule)
        self.scored = tuple(word for sentence in scored for word in sentence)
        return find_hit(sentences, scored, self.options.rule, self.tagger)

    def words(self) -> list[Word]:
        return group_words(self.text, [token.span for token in self.tokens])

    def _judge_complete(self) -> Hit | None:
        """Judge the sentences that are followed by a complete word of another one."""
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
        signals = [
            Signal(attention, token.entropy)
            for attention, token in zip(self._maxima, self.tokens, strict=True)
        ]
        scored = score_words(own, signals, self.options.rule)
        hit = judge(self._previous, sentence, scored, self.options.rule, self.tagger)
        self._previous.append(sentence)
        self._start = end
        before, self.scored = self.scored, self.scored + scored
        return replace(hit, before=before) if hit else None

    def _fold(self, last: int) -> None:
        """Fold the maxima that queries up to token `last` changed."""
        for token in self.tokens[self._folded : last + 1]:
            for update in token.updates:
                value = update.later if self.options.exclude_self else update.maximum
                self._maxima[update.key] = value
        self._folded = max(self._folded, last + 1)


def check_token(token: DraftToken, before: Sequence[DraftToken]) -> None:
    """Raise EngineFailure if a token's signals contradict themselves or earlier ones."""
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
