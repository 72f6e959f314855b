"""The baseline `flare`: FLARE direct (METHODS.md §7.6). Pure functions decide, the rest makes the
calls.

The question is searched first. A look-ahead is a step `answer`: the next sentence, streamed as
`draft` tokens. If the model is sure of it, it is kept as the step's `thought`. Otherwise it is
withdrawn, and a step `retrieve` follows: `trigger`, `query`, `passages`, and as `answer` the
sentence that the model then writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from service.answer.calls import Roles
from service.answer.events import ThoughtWritten, TokenRole, Trigger, Withdraw
from service.answer.inquiry import Scope
from service.core.domain import LoopName, ScoredPassage
from service.core.errors import EngineFailure
from service.core.settings import Settings
from service.engines.base import GenerationRequest, Message
from service.prompts.quoting import quote
from service.prompts.templates import Prompt, TemplateSet
from service.retrieval.base import SearchResult
from service.strategies.base import Outcome, lacking_logprobs
from service.strategies.drafting.chain import FirstSentence, join
from service.strategies.drafting.layout import ROLES, lacking_template
from service.strategies.drafting.pieces import Piece, PieceRun, WrittenText, write
from service.strategies.drafting.run import baseline_options
from service.strategies.drafting.steps import conclude, lay, search, top_k

LOOK_AHEAD: Final = 64  # tokens of a look-ahead, and of a sentence
LEAST: Final = 4  # characters of a sentence; a shorter one is joined to the next
GAP: Final = 5  # fewest tokens between doubtful tokens that are asked for separately
QUESTION_TOKENS: Final = 64
ASKING: Final = "flare_question"


@dataclass(slots=True, kw_only=True)
class FlareRun(PieceRun):
    """A question that FLARE answers. A sentence with a probability of `theta` or less is doubtful;
    tokens of `beta` or less are left out of its query, or, with `asks`, asked for."""

    theta: float
    beta: float
    asks: bool

    def keep(self, written: WrittenText) -> str:
        """Append a sentence to the text, as far as L allows, and return what was added."""
        tokens = written.tokens
        room = max(0, self.options.limit - self.used)
        whole = len(tokens) <= room
        text = written.kept if whole else "".join(t.text for t in tokens[:room]).strip()
        self.used += min(len(tokens), room)
        self.write(text)
        self.ended = written.over and whole
        return text


class Flare:
    """Drafts a sentence ahead, and retrieves for it if the model is unsure of one of its tokens."""

    name: LoopName = "flare"

    def missing(self, roles: Roles, settings: Settings) -> str | None:
        """Return what this deployment lacks for the loop, or None if it can run."""
        asks = settings.baselines.flare_query == "questions"
        roles_used = [*ROLES, ASKING] if asks else ROLES
        return lacking_logprobs(roles.reader) or lacking_template(
            roles.reader.templates, roles_used
        )

    async def run(self, scope: Scope, question: str, as_role: TokenRole) -> Outcome:
        """The request's `max_steps`, if given, is the maximum number of retrievals."""
        settings = scope.inquiry.settings.baselines
        run = await FlareRun.begin(
            scope,
            question,
            as_role,
            baseline_options(scope.inquiry),
            theta=settings.flare_theta,
            beta=settings.flare_beta,
            asks=settings.flare_query == "questions",
        )
        await run.rounds(partial(_round, run))
        return await conclude(run)


async def _round(run: FlareRun) -> None:
    """Keep a sentence, or withdraw it, retrieve, and write it again."""
    if not run.retrievals:
        await run.open("retrieve")
        await search(run, run.question.strip())
    await run.open("answer")
    ahead = await _write_sentence(run, LOOK_AHEAD)
    tokens = ahead.tokens
    doubtful = is_doubtful(tokens, run.theta)
    if doubtful and not run.may_retrieve:
        run.stopped_by, doubtful = "max_steps", False
    if doubtful and (queries := await _make_queries(run, ahead, tokens)):
        await run.step.emit(Withdraw(role="draft", reason="trigger"))
        await _retrieve(run, queries, ahead, tokens)
        return
    if text := run.keep(ahead):
        await run.step.emit(ThoughtWritten(text=text))
    else:
        run.ended = True


async def _write_sentence(run: FlareRun, most: int) -> WrittenText:
    read = partial(FirstSentence, run.splitter, LEAST)
    written = await write(run, read, most, logprobs=True)
    if any(piece.probability is None for piece in written.pieces):
        engine = run.inquiry.roles.reader.generator.name
        raise EngineFailure(f"the engine {engine!r} reported no probability for some of its tokens")
    return written


async def _make_queries(run: FlareRun, ahead: WrittenText, tokens: Sequence[Piece]) -> list[str]:
    """Return the masked sentence, or questions that its doubtful parts answer; no query is
    empty.
    """
    if not run.asks:
        query = mask(tokens, run.beta)
        return [query] if query else []
    spans = find_doubtful_spans(tokens, run.beta)
    if not spans:
        return [ahead.kept]
    passage = join(run.layout.written, ahead.kept)
    asked = [await _ask_question(run, passage, span) for span in spans]
    return [question for question in asked if question]


def asking_prompt(templates: TemplateSet, passage: str, span: str) -> Prompt:
    """Return the prompt for a question that `span` answers in `passage`."""
    return templates.render(ASKING, passage=quote(passage), query=quote(span))


async def _ask_question(run: FlareRun, passage: str, span: str) -> str | None:
    """Return a question that `span` answers in `passage`, or None if the reply is not a
    question.
    """
    prompt = asking_prompt(run.inquiry.roles.reader.templates, passage, span)
    request = GenerationRequest(messages=(Message("user", prompt),), max_tokens=QUESTION_TOKENS)
    reply = (await run.step.ask("reader", request)).text.strip()
    return reply if reply.endswith("?") else None


async def _retrieve(
    run: FlareRun, queries: Sequence[str], ahead: WrittenText, tokens: Sequence[Piece]
) -> None:
    """Search, and write the sentence again. If nothing is found, the draft is kept."""
    await run.open("retrieve")
    run.count_withdrawn()
    await run.step.emit(_trigger(run, tokens, " ".join(queries)))
    if len(queries) == 1:
        await search(run, queries[0])
    else:
        await _search_each(run, queries)
    if run.layout.passages:
        left = run.options.limit - run.used
        sentence = await _write_sentence(run, min(LOOK_AHEAD, max(1, left)))
    else:
        run.step.flag("no_evidence")
        sentence = ahead
    text = run.keep(sentence)
    if run.borrows(text):
        run.step.flag("prompt_example")
    run.step.answer = text or None
    run.ended = run.ended or not text


async def _search_each(run: FlareRun, queries: Sequence[str]) -> None:
    """Search for every question, as far as retrievals are left, and show their best passages."""
    most = run.options.max_retrievals
    left = None if most is None else most - run.retrievals
    found = []
    for query in queries[:left]:
        run.retrievals += 1
        found.append(await run.step.search(query, top_k(run), shape="best_fields"))
    await lay(run, interleave(found, top_k(run)))


def _trigger(run: FlareRun, tokens: Sequence[Piece], query: str) -> Trigger:
    weakest = min(tokens, key=_probability)
    return Trigger(
        token=weakest.text.strip(),
        score=_probability(weakest),
        threshold=run.theta,
        query=query,
    )


def _probability(token: Piece) -> float:
    return 0.0 if token.probability is None else token.probability


def is_doubtful(tokens: Sequence[Piece], theta: float) -> bool:
    """Whether any token is as improbable as `theta`, or more so."""
    return any(_probability(token) <= theta for token in tokens)


def mask(tokens: Sequence[Piece], beta: float) -> str:
    """Return the implicit query: the sentence without its tokens of `beta` or less."""
    kept = (token.text if _probability(token) > beta else " " for token in tokens)
    return " ".join("".join(kept).split())


def find_doubtful_spans(tokens: Sequence[Piece], beta: float) -> list[str]:
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
    for rank in range(max((len(result.passages) for result in results), default=0)):
        for result in results:
            for scored in result.passages[rank : rank + 1]:
                merged.setdefault(scored.passage.passage_id, scored)
    chosen = [replace(scored, rank=n) for n, scored in enumerate([*merged.values()][:most], 1)]
    missing = dict.fromkeys(name for result in results for name in result.missing)
    return SearchResult(tuple(chosen), tuple(missing))
