"""The baseline `flare`: FLARE direct (METHODS.md §7.6). Pure functions decide, the rest makes the
calls.

The question is searched first. A look-ahead is a step `answer`: the next sentence, streamed as
`draft` tokens. If the model is sure of it, it is kept as the step's `thought`. Otherwise it is
withdrawn, and a step `retrieve` follows: `trigger`, `query`, `passages`, and as `answer` the
sentence that the model then writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, zip_longest
from typing import Final

from service.answer.calls import Roles
from service.answer.events import ThoughtWritten, Trigger, Withdraw
from service.core.domain import ScoredPassage
from service.core.errors import EngineFailure
from service.core.settings import Settings
from service.engines.base import Delta
from service.prompts.quoting import quote
from service.prompts.templates import Prompt, TemplateSet
from service.retrieval.base import SearchResult
from service.strategies.base import lacking_template
from service.strategies.calls import PromptCall
from service.strategies.draft_text import Continuation, join
from service.strategies.drafting import Drafting

# a sentence with a token of this probability or less is searched for and written again
THETA: Final = 0.8
BETA: Final = 0.4  # tokens of this probability or less are left out of the query, or asked for
LOOK_AHEAD: Final = 64  # tokens of a look-ahead, and of a sentence
LEAST: Final = 4  # characters of a sentence; a shorter one is joined to the next
GAP: Final = 5  # fewest tokens between doubtful tokens that are asked for separately
QUESTION_TOKENS: Final = 64
ASKING: Final = "flare_question"
SPAN: Final = PromptCall("reader", str, QUESTION_TOKENS)


class Flare(Drafting):
    """Drafts a sentence ahead, and retrieves for it if the model is unsure of one of its tokens: if
    one has a probability of θ or less. Tokens of β or less are left out of the query, or asked for.
    """

    name = "flare"
    weighs = True

    @classmethod
    def missing(cls, roles: Roles, settings: Settings) -> str | None:
        needs = [ASKING] if _asks(settings) else []
        lacking = super().missing(roles, settings)
        return lacking or lacking_template(roles.reader.templates, needs)

    async def round(self) -> None:
        """Keep a sentence, or withdraw it, retrieve, and write it again."""
        if not self.retrievals:
            await self.open("retrieve")
            await self.search(self.question.strip())
        step = await self.open("answer")
        ahead = await self._write_sentence(LOOK_AHEAD)
        doubtful = any(_probability(token) <= THETA for token in ahead.tokens)
        if doubtful and not self.may_retrieve:
            self.scope.stopped_by, doubtful = "max_steps", False
        if doubtful and (queries := await self._make_queries(ahead)):
            await step.emit(Withdraw(role="draft", reason="trigger"))
            await self._retrieve(queries, ahead)
        elif text := self._keep(ahead):
            await step.emit(ThoughtWritten(text=text))
        else:
            self.ended = True

    async def _write_sentence(self, most: int) -> Continuation:
        sentence = partial(Continuation, self.splitter, LEAST)
        written = await self.continue_text(sentence, self.call(most, logprobs=True))
        if any(piece.logprob is None for piece in written.pieces):
            engine = self.reader.generator.name
            raise EngineFailure(
                f"the engine {engine!r} reported no probability for some of its tokens"
            )
        return written

    def _keep(self, written: Continuation) -> str:
        """Append a sentence to the text, as far as L allows, and return what was added."""
        tokens = written.tokens
        room = max(0, self.options.limit - self.used)
        whole = len(tokens) <= room
        text = written.kept if whole else "".join(t.text for t in tokens[:room]).strip()
        self.used += min(len(tokens), room)
        self.write(text)
        self.ended = written.over and whole
        return text

    async def _make_queries(self, ahead: Continuation) -> list[str]:
        """Return the masked sentence, or questions that its doubtful parts answer; no query is
        empty.
        """
        if not _asks(self.inquiry.settings):
            return list(filter(None, [mask(ahead.tokens, BETA)]))
        spans = find_doubtful_spans(ahead.tokens, BETA)
        if not spans:
            return [ahead.kept]
        passage = join(self.layout.written, ahead.kept)
        prompts = [asking_prompt(self.templates, passage, span) for span in spans]
        asked = [(await SPAN.ask(self.open_step, prompt)).text.strip() for prompt in prompts]
        return [question for question in asked if question.endswith("?")]

    async def _retrieve(self, queries: Sequence[str], ahead: Continuation) -> None:
        """Search, and write the sentence again. If nothing is found, the draft is kept."""
        step = await self.open("retrieve")
        self.count_withdrawn()
        weakest = min(ahead.tokens, key=_probability)
        trigger = Trigger(
            token=weakest.text.strip(),
            score=_probability(weakest),
            threshold=THETA,
            query=" ".join(queries),
        )
        await step.emit(trigger)
        if len(queries) == 1:
            await self.search(queries[0])
        else:
            await self._search_each(queries)
        sentence = ahead
        if self.layout.passages:
            left = self.options.limit - self.used
            sentence = await self._write_sentence(min(LOOK_AHEAD, max(1, left)))
        text = self._keep(sentence)
        if self.layout.borrows(text):
            step.flag("prompt_example")
        step.answer = text or None
        self.ended = self.ended or not text

    async def _search_each(self, queries: Sequence[str]) -> None:
        """Search for every question, as far as retrievals are left, and show their best
        passages."""
        most = self.options.max_retrievals
        found = []
        for query in queries[: None if most is None else most - self.retrievals]:
            self.retrievals += 1
            found.append(await self.open_step.search(query, self.top_k, shape="best_fields"))
        await self.lay(interleave(found, self.top_k))


def _asks(settings: Settings) -> bool:
    """Whether doubtful parts are asked for by questions, instead of left out of the query."""
    return settings.baselines.flare_query == "questions"


def asking_prompt(templates: TemplateSet, passage: str, span: str) -> Prompt:
    """Return the prompt for a question that `span` answers in `passage`."""
    return templates.render(ASKING, passage=quote(passage), query=quote(span))


def _probability(token: Delta) -> float:
    return 0.0 if token.logprob is None else math.exp(min(0.0, token.logprob))


def mask(tokens: Sequence[Delta], beta: float) -> str:
    """Return the implicit query: the sentence without its tokens of `beta` or less."""
    kept = (token.text if _probability(token) > beta else " " for token in tokens)
    return " ".join("".join(kept).split())


def find_doubtful_spans(tokens: Sequence[Delta], beta: float) -> list[str]:
    """Return the spans that explicit queries ask for: tokens of `beta` or less, in one span with
    what lies between them if they are fewer than `GAP` tokens apart, widened to whole words. A span
    without a letter or a digit is left out."""
    spans: list[tuple[int, int]] = []
    for number, token in enumerate(tokens):
        if _probability(token) > beta:
            continue
        if spans and number - (spans[-1][1] - 1) < GAP:
            spans[-1] = (spans[-1][0], number + 1)
        else:
            spans.append((number, number + 1))
    texts = [_whole_words([token.text for token in tokens], *span) for span in spans]
    return [text for text in texts if any(map(str.isalnum, text))]


def _whole_words(texts: Sequence[str], first: int, last: int) -> str:
    """Return the text of tokens `first` to before `last`, widened to whole words."""
    text = "".join(texts)
    begin, end = len("".join(texts[:first])), len("".join(texts[:last]))
    begin += len(text[begin:end]) - len(text[begin:end].lstrip())
    while begin > 0 and not text[begin - 1].isspace():
        begin -= 1
    while end < len(text) and not text[end].isspace():
        end += 1
    return text[begin:end].strip()


def interleave(results: Sequence[SearchResult], most: int) -> SearchResult:
    """Merge the results of several queries: the best passage of each, then the second of each, and
    so on; no passage twice, `most` in all. Scores are those of their own search."""
    merged: dict[str, ScoredPassage] = {}
    for scored in chain(*zip_longest(*(result.passages for result in results))):
        if scored is not None:
            merged.setdefault(scored.passage.passage_id, scored)
    chosen = [replace(scored, rank=n) for n, scored in enumerate([*merged.values()][:most], 1)]
    missing = dict.fromkeys(name for result in results for name in result.missing)
    return SearchResult(tuple(chosen), tuple(missing))
