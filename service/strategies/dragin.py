"""The loop `dragin` (METHODS.md §3): retrieval at words of which the model is uncertain.

A draft is a step `answer`: its text streams as `draft` tokens, and the part that is kept is its
`thought`. Where a word requests retrieval the draft is withdrawn, and a step `retrieve` follows:
`thought` (the part of the draft that is kept), `trigger`, `query`, `passages`, and as `answer` the
sentence that the model then writes. Drafting continues from there. The answer to the question is
the text after "the answer is", in the last step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final

import anyio.to_thread
import structlog

from service.answer.calls import Roles, with_restarts
from service.answer.events import DraftWord, ThoughtWritten, Trigger, Withdraw
from service.core.domain import QueryFormulation
from service.core.errors import EngineFailure
from service.core.settings import Settings
from service.core.settings.loops import DraginSettings
from service.engines.base import Delta, GenerationRequest
from service.engines.signals import (
    ContextRows,
    DraftToken,
    ScoreRequest,
    Scoring,
    Span,
    context_rows,
)
from service.strategies import rind
from service.strategies.draft_text import Continuation, declines, join
from service.strategies.drafting import (
    SLACK,
    Drafting,
    DraftOptions,
    gives_signals,
    glue,
    signals_of,
    token_spans,
)
from service.strategies.rind import Hit, QueryContext, ScoredWord, Word
from service.text.tagging import Splitter, Tagger, TaggerName, missing, open_tagger

log = structlog.get_logger(__name__)
QUERY_TOKENS: Final = 64  # tokens of the model; a longer query loses its beginning


@dataclass(frozen=True, slots=True)
class DraginOptions(DraftOptions):
    """The resolved options (METHODS.md §3.4, §6 #1).

    `threshold` is θ. `tokens`: each token is scored by itself, entropy times attention, as the
    paper prints it; one without content scores 0. `full_context`: attention is that of the
    generation, prompt and all, and of later tokens, instead of the draft read on its own.
    `whole_draft`: that of later sentences counts too, so a hit does not end the draft early. If
    `served`, words without content cannot trigger, and the last word of a sentence receives the
    mean attention of the others at least.
    """

    threshold: float = 1.0
    tokens: bool = False
    full_context: bool = False
    whole_draft: bool = False
    tagger: TaggerName = "stopwords"


OFFICIAL: Final = DraginOptions()
PAPER: Final = replace(
    OFFICIAL,
    tokens=True,
    full_context=True,
    whole_draft=True,
    keep_passages=True,
)
IN_CONTEXT: Final = replace(OFFICIAL, full_context=True, whole_draft=True, as_published=False)
SERVICE: Final = replace(
    IN_CONTEXT,
    whole_draft=False,
    served=True,
    max_retrievals=Drafting.default_steps,
)
PROFILES: Final = {
    "official": OFFICIAL,
    "paper": PAPER,
    "in_context": IN_CONTEXT,
    "service": SERVICE,
}


def resolve(settings: DraginSettings) -> DraginOptions:
    """Resolve the profile, with the settings' θ, L, n and tagger."""
    return replace(
        PROFILES[settings.profile],
        threshold=settings.threshold,
        limit=settings.max_tokens,
        tagger=settings.tagger,
        splitter="model" if settings.tagger == "spacy" else "own",
    )


class Dragin(Drafting):
    """Drafts until a word's entropy times attention exceeds θ, then retrieves for its sentence.
    `tagger` says which words have content."""

    name = "dragin"
    options: DraginOptions
    tagger: Tagger
    resumed = False  # the text goes on at a token that requested retrieval

    @classmethod
    def missing(cls, roles: Roles, settings: Settings) -> str | None:
        generator = roles.reader.generator
        if not gives_signals(generator):
            return (
                f"the engine {generator.name!r} of roles.reader does not provide token "
                "signals; use an engine of kind embedded or local, or of kind vllm with workers "
                "started by `revelator worker`"
            )
        return super().missing(roles, settings) or missing(settings.dragin.tagger)

    async def run(self) -> str | None:
        name = self.inquiry.settings.dragin.tagger
        self.tagger = await anyio.to_thread.run_sync(open_tagger, name)
        return await super().run()

    def resolved_options(self) -> DraginOptions:
        options = resolve(self.inquiry.settings.dragin)
        if self.request.max_steps:
            options = replace(options, max_retrievals=self.request.max_steps)
        log.debug("dragin", id=self.inquiry.id, **asdict(options))
        return options

    async def fills_limit(self) -> bool:
        """Whether the text, with the token before it, has more than L tokens."""
        text, limit = self.layout.written, self.options.limit
        return len(text.encode()) + SLACK > limit and await self.count(text) > limit

    async def round(self) -> None:
        """Run lines 3 to 12: a draft that is kept, or one that is withdrawn and a retrieval."""
        step = await self.open("answer")
        passages = self.layout.passages if self.options.keep_passages else ()
        self.prompt = (await self.fit(replace(self.layout, passages=passages))).prompt()
        await self._draft()
        text, hit = self.watch.text, self.watch.hit
        if hit is None and self._wants_search(text):
            await step.emit(Withdraw(role="draft", reason="trigger"))
            await self.open("retrieve")
            await self._search_and_rewrite(self.question.strip(), "")
        elif hit is None or not self.may_retrieve:
            self._append(text)
            if text := text.strip():
                words, threshold = _words(self.watch.scored), self.options.threshold
                await step.emit(ThoughtWritten(text=text, words=words, threshold=threshold))
            if hit is not None:
                self.scope.stopped_by, self.ended = "max_steps", True
        else:
            await step.emit(Withdraw(role="draft", reason="trigger"))
            await self._retrieve(hit)

    async def _check_end(self, before: int) -> None:
        """A draft that was cut at its first token has not grown, but goes on with passages."""
        await super()._check_end(-1 if self.resumed else before)

    def _append(self, text: str) -> None:
        """Append to the text; a token may continue a word."""
        if self.options.tokens:
            self.layout = replace(self.layout, written=glue(self.layout.written, text))
        else:
            self.write(text)

    def _wants_search(self, draft: str) -> bool:
        """Whether a draft declines before anything was searched. A model that is certain that it
        does not know has no doubtful word, so nothing else would start a retrieval.
        """
        undecided = self.options.served and self.may_retrieve and not self.retrievals
        return undecided and declines(join(self.layout.written, draft))

    # ---- the draft (lines 4 and 5)

    async def _draft(self) -> None:
        """Let the model write until a sentence of its draft requests a retrieval that may be made,
        or to its end, and judge what is left."""
        options, prompt = self.options, self.prompt
        # the token that requested retrieval is written again, with passages
        first, self.resumed = int(self.resumed), False
        request = GenerationRequest(
            prompt=prompt.text,
            max_tokens=options.limit,
            stop=self.stops,
            signals="attention" if options.full_context else "entropy",
            rows_from=min(prompt.question[0], prompt.written[0]),
        )
        self.watch = watch = await self.continue_text(
            lambda: DraftWatch(options, self.tagger, self.splitter, first, stops=self.may_retrieve),
            request,
        )
        if options.full_context:
            hit = watch.hit or watch.judge_rest()
            if hit is not None and self.may_retrieve:
                wanted = hit_tokens(hit, options.tokens)
                watch.rows = context_rows(prompt.text, watch.context, watch.signals, wanted)
        elif watch.signals:
            scored = ScoreRequest(token_ids=tuple(token.id for token in watch.signals))
            watch.judge_rest(await self._score(scored))

    async def _score(self, request: ScoreRequest) -> Scoring:
        """Score a text with the reader's engine: one call without output."""
        return await with_restarts(partial(self._scored, request))

    async def _scored(self, request: ScoreRequest) -> Scoring:
        step = self.open_step
        with step.counted(self.reader, request) as counted:
            scoring = await step.timed(signals_of(self.reader).score(request))
            counted.see_tokens(0, scoring.usage)
        return scoring

    # ---- the retrieval (lines 8 to 11)

    async def _retrieve(self, hit: Hit) -> None:
        step = await self.open("retrieve")
        if hit.previous:
            await step.emit(ThoughtWritten(text=hit.previous))
        query = await self._query(hit)
        word = hit.strongest
        trigger = Trigger(
            token=word.word.text,
            entropy=word.weight,
            attention=word.attention,
            score=word.score,
            threshold=self.options.threshold,
            query=query,
            words=_words((*hit.before, *hit.words)),
        )
        await step.emit(trigger)
        if not self.options.tokens:
            self.write(hit.previous)
            return await self._search_and_rewrite(query, hit.sentence)
        self._append(hit.previous)
        self.resumed = True
        self.count_withdrawn()
        return await self.search(query)

    async def _query(self, hit: Hit) -> str:
        """Form the query, cut to the last 64 tokens of the model; it can be empty."""
        formulation = self.request.conditions.query_formulation
        query = await (self._formulated(hit, formulation) if formulation else self._attended(hit))
        return await self._last_tokens(query, QUERY_TOKENS)

    async def _formulated(self, hit: Hit, formulation: QueryFormulation) -> str:
        """Form the query as one of those that the paper compares with QFS (METHODS.md §3.3)."""
        context = join(self.layout.question, self.layout.written, hit.previous)
        match formulation:
            case "full_context":
                return context
            case "last_sentence":
                return next(reversed(self.splitter.sentences(context)), "")
            case "last_tokens":
                return await self._last_tokens(context, self.request.conditions.query_words)
            case "sentence_without_hits":
                return rind.certain_words(hit)

    async def _attended(self, hit: Hit) -> str:
        """Run QFS over C, read on its own or inside the draft's own context. The query is empty if
        C has no content word."""
        most = self.request.conditions.query_words
        asked, hit_spans = rind.query_text(self.layout.question, self.layout.written, hit)
        if self.watch.rows is not None:
            context, rows = self._inside(hit, self.watch.rows), self.watch.rows.rows
            if self.options.tokens:
                (row,) = rows
                return rind.top_tokens(context, row.weights, row.token - 1, most)
        else:
            request = ScoreRequest(text=asked, bos=True, row_spans=hit_spans)
            scoring = await self._score(request)
            context, rows = rind.text_context(asked, hit_spans, scoring), scoring.rows
        content = await anyio.to_thread.run_sync(self.tagger, asked)
        weights = rind.word_attention(context, rows)
        return rind.keep_content_words(context, weights, content, most)

    async def _last_tokens(self, text: str, most: int) -> str:
        if len(text.encode()) < most:  # a token has at least one byte
            return text
        return rind.last_tokens(text, await token_spans(self.open_step, text), most)

    def _inside(self, hit: Hit, rows: ContextRows) -> QueryContext:
        """Return C inside the draft's own context."""
        prompt, end = self.prompt, hit.words[-1].word.span[1] if hit.words else 0
        written = (len(prompt.text), len(prompt.text) + end)
        return rind.generation_context(
            rows,
            prompt.text + self.watch.text,
            [prompt.question, prompt.written, written],
            [row.token for row in rows.rows],
        )

    async def _search_and_rewrite(self, query: str, drafted: str) -> None:
        """Search in the open step, and let the model write the sentence that was `drafted` from the
        passages (lines 10 and 11). The call ends as soon as its first sentence is final. Without
        passages the `drafted` sentence stays, because the same prompt would produce it again. A
        sentence that copies the demonstrations is flagged; drafting continues after it.
        """
        self.count_withdrawn()
        await self.search(query)
        sentence = drafted
        if self.layout.passages:
            written = await self.continue_text(lambda: Continuation(self.splitter), self.call())
            sentence = written.kept
        if self.layout.borrows(sentence):
            self.open_step.flag("prompt_example")
        self.write(sentence)
        self.open_step.answer = sentence or None


def _words(scored: Sequence[ScoredWord]) -> list[DraftWord]:
    return [
        DraftWord(
            text=item.word.text, entropy=item.weight, attention=item.attention, score=item.score
        )
        for item in scored
    ]


def hit_tokens(hit: Hit, tokens: bool) -> list[int]:
    """Return the tokens whose rows are needed: those that predicted the hit words' tokens or, in
    the paper, that of the hit itself, which predicted the next token."""
    if tokens:
        return [hit.words[0].word.last + 1]
    pairs = zip(hit.words, hit.flags, strict=True)
    return [token for word, flag in pairs if flag for token in word.word.tokens]


class DraftWatch(Continuation):
    """Finds the hit of a draft. Let it take every token in order, then `judge_rest`.

    If attention is that of the generation, and the whole draft need not be known, a sentence is
    judged as soon as it is complete, by the attention of queries up to its last token. So the
    verdict does not depend on how far the engine has generated, and a hit can stop the draft: it
    `stops` the draft if a retrieval may follow. Tokens before number `first` request nothing.

    `scored` are the words of the judged sentences, and `rows` the attention rows of the hit's
    tokens in the draft's own context, if they are needed. Raises EngineFailure for signals that no
    model can produce.
    """

    def __init__(
        self,
        options: DraginOptions,
        tagger: Tagger,
        splitter: Splitter,
        first: int = 0,
        *,
        stops: bool = False,
    ) -> None:
        super().__init__()
        self.options, self.tagger, self.splitter = options, tagger, splitter
        self.first, self.stops = first, stops
        self.context: tuple[Span, ...] = ()
        self.signals: list[DraftToken] = []
        self.scored: tuple[ScoredWord, ...] = ()
        self.hit: Hit | None = None
        self.rows: ContextRows | None = None
        self._maxima: list[float] = []
        self._folded = 0  # tokens whose updates are in _maxima
        self._previous: list[str] = []
        self._start = 0  # word that the next sentence begins with

    @property
    def kept(self) -> str:
        return self.text.strip()

    def take(self, delta: Delta) -> str:
        """Take the tokens of a delta. White space before the first word is not shown."""
        self.finish_reason = delta.finish or self.finish_reason
        self.context = self.context or delta.context
        begin = len(self.text)
        for token in delta.tokens:
            if not self.done:
                self.done = self.feed(token) is not None and self.stops
        return self.text[begin:] if self.text[:begin].strip() else self.text.lstrip()

    def finish(self) -> str:
        return ""

    def feed(self, token: DraftToken) -> Hit | None:
        """Take one token. Return the hit, if a complete sentence requests retrieval."""
        check_token(token, self.signals)
        self.signals.append(token)
        self._maxima.append(0.0)
        brings_word = token.text[:1].isspace()
        self.text += token.text
        options = self.options
        early = options.full_context and not options.whole_draft and self.splitter.incremental
        if early and brings_word:
            self._judge_complete()
        return self.hit

    def judge_rest(self, scoring: Scoring | None = None) -> Hit | None:
        """End the draft, and judge the remaining sentences; all of them by the attention of a pass
        over the draft's tokens alone, if its `scoring` is given."""
        words = self.words()
        if scoring is not None:
            self._use(scoring)
        elif self.options.whole_draft:
            self._fold(len(self.signals) - 1)
        if self.options.tokens:
            spans = [token.span for token in self.signals]
            self.scored = rind.score_tokens(
                self.text, spans, words, self._maxima, self._entropies, self.tagger
            )
            self.hit = rind.find_token(self.text, self.scored, self.options.threshold, self.first)
            return self.hit
        sentences = self.splitter.sentences(self.text)[len(self._previous) :]
        for number, sentence in enumerate(sentences, 1):
            last = number == len(sentences)
            end = len(words) if last else rind.find_end(sentence, words, self._start)
            if self._judge(sentence, words, end):
                break
        return self.hit

    def _use(self, scoring: Scoring) -> None:
        if len(scoring.tokens) != len(self.signals):
            raise EngineFailure(
                f"the engine scored {len(scoring.tokens)} tokens of a draft of {len(self.signals)}"
            )
        self._maxima = [token.attention_max for token in scoring.tokens]
        self._folded = len(self.signals)
        check_numbers(self._maxima)

    def words(self) -> list[Word]:
        return rind.group_words(self.text, [token.span for token in self.signals])

    def _judge_complete(self) -> None:
        """Judge the sentences that are followed by a complete word of another one."""
        words = self.words()
        whole = self.text[: words[-1].span[0]]
        for sentence in self.splitter.sentences(whole)[len(self._previous) : -1]:
            if self._judge(sentence, words, rind.find_end(sentence, words, self._start)):
                return

    def _judge(self, sentence: str, words: Sequence[Word], end: int) -> bool:
        """Score the words of a sentence. Return whether it requests retrieval; the first one that
        does is the hit."""
        judged = words[self._start : end]
        if judged:
            self._fold(judged[-1].last)
        served = self.options.served
        scored = rind.score_words(judged, self._maxima, self._entropies, weigh_last=served)
        hit = rind.judge(
            self._previous, sentence, scored, self.options.threshold, self.tagger, gated=served
        )
        self._previous.append(sentence)
        self._start = end
        before, self.scored = self.scored, self.scored + scored
        if hit and self.hit is None:
            self.hit = replace(hit, before=before)
        return hit is not None

    @property
    def _entropies(self) -> list[float]:
        return [token.entropy for token in self.signals]

    def _fold(self, last: int) -> None:
        """Fold the maxima that queries up to token `last` changed."""
        for token in self.signals[self._folded : last + 1]:
            for key, maximum in token.updates:
                self._maxima[key] = maximum
        self._folded = max(self._folded, last + 1)


def check_token(token: DraftToken, before: Sequence[DraftToken]) -> None:
    """Raise EngineFailure if a token's signals contradict themselves or earlier ones."""
    check_numbers((token.entropy, token.logprob))
    check_numbers(maximum for _, maximum in token.updates)
    begin, end = token.span
    if end < begin or (before and begin < before[-1].span[0]):
        raise EngineFailure(f"the engine placed token {len(before)} of a draft at {token.span}")
    if any(not 0 <= key < len(before) for key, _ in token.updates):
        raise EngineFailure(
            f"the engine reported attention of token {len(before)} to one that is not before it"
        )


def check_numbers(values: Iterable[float]) -> None:
    """Raise EngineFailure for NaN and infinity."""
    if not all(math.isfinite(value) for value in values):
        raise EngineFailure(
            "the engine reported an entropy or attention that is not a number, because the "
            "model's numbers overflow: run it in float32 or bfloat16"
        )
