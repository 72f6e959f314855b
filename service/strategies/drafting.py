"""Methods that draft a chain of thought and search where the draft is in doubt (DRAGIN, FLARE), or
at every window of it (METHODS.md §3.2, §7.4, §7.5).

The rounds, the steps beside a draft (a retrieval, the conclusion), and the calls that end as soon
as enough text was written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain
from typing import ClassVar, Final, TypeGuard, TypeVar

import anyio.to_thread

from service.answer.calls import EngineCall, Role, with_restarts
from service.answer.events import ThoughtWritten, Token, Withdraw
from service.answer.inquiry import Choice, OpenStep
from service.core.concurrency import closing
from service.core.domain import LoopName
from service.engines.base import FinishReason, GenerationRequest, Generator, TokenUsage
from service.engines.signals import SignalGenerator, Span
from service.retrieval.base import SearchResult
from service.strategies.base import Method
from service.strategies.calls import RETRY_TEMPERATURE
from service.strategies.draft_text import (
    ANSWER_TOKENS,
    CONCLUSION,
    ROLES,
    Continuation,
    Layout,
    as_data,
    at_answer,
    cut_overrun,
    join,
    opening_layout,
    repeats,
    stated_answer,
    unconcluded,
)
from service.strategies.reader import verify
from service.strategies.reading.answers import read_answer
from service.strategies.reading.text import ends_with
from service.text.tagging import Splitter, SplitterName, open_splitter

T = TypeVar("T", bound=Continuation)
START: Final = 1  # the token that an engine puts before a prompt
SLACK: Final = 2  # tokens that the ends of a prompt may add to those of its text
WINDOW: Final = 16  # n, the tokens after which `fixed_length` searches again
LETTERS_PER_TOKEN: Final = 4  # for engines that do not report their tokens


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """The options of the methods that draft (METHODS.md §3.4, §6 #1). The defaults are those of the
    published DRAGIN.

    `limit` is L, the maximum number of tokens of a draft and of the complete text. If `served`, a
    draft ends at its first line break, a demonstration shows how to state that no answer was found,
    and an answer that is an example of the prompt is none. With `keep_passages`, passages stay in
    the prompt until others are found. With `as_published`, only "the answer is" in lower case
    states an answer, and a text that repeats a sentence goes on.
    """

    limit: int = 128
    max_retrievals: int | None = None
    served: bool = False
    keep_passages: bool = False
    as_published: bool = True
    splitter: SplitterName = "own"


class Drafting(Method):
    """Drafts in rounds until the text states its answer, then concludes.

    `layout.written` is the text so far, of `used` tokens, and `layout.passages` those of the newest
    retrieval. `found`: some passage was found.
    """

    raw = True
    needs = ROLES
    default_steps = 8
    splitter: Splitter

    async def run(self) -> str | None:
        """The request's `max_steps`, if given, is the maximum number of retrievals."""
        self.options = self.resolved_options()
        self.splitter = await anyio.to_thread.run_sync(open_splitter, self.options.splitter)
        self.layout = opening_layout(
            self.templates, self.question.strip(), may_decline=self.options.served
        )
        self.retrievals = self.used = 0
        self.found = self.ended = False
        with self.scope.limited():
            while not self.ended and self.scope.may_go_on():
                before = len(self.layout.written)
                await self.round()
                await self._check_end(before)
        return await self.conclude()

    def resolved_options(self) -> DraftOptions:
        """Return the options of the baselines: those of DRAGIN's profile `service`, but passages
        stay."""
        return DraftOptions(
            limit=self.inquiry.settings.dragin.max_tokens,
            max_retrievals=self.max_steps,
            served=True,
            keep_passages=True,
            as_published=False,
        )

    async def round(self) -> None:
        """Write a part of the text."""
        raise NotImplementedError

    # ---- the state of the text

    @property
    def may_retrieve(self) -> bool:
        most = self.options.max_retrievals
        return most is None or self.retrievals < most

    @property
    def answered(self) -> bool:
        """Whether the text states its answer."""
        return self._states(self.layout.written)

    def _states(self, text: str) -> bool:
        return at_answer(text, exact=self.options.as_published) is not None

    async def _check_end(self, before: int) -> None:
        """Check for the end (line 12); `before` is the length of the text when the round began."""
        if self.ended or self.answered:
            self.ended = True
        elif await self.fills_limit():
            self.scope.stopped_by, self.ended = "budget", True
        elif len(self.layout.written) <= before or (
            not self.options.as_published and repeats(self.splitter.sentences(self.layout.written))
        ):
            self.open_step.flag("no_progress")
            self.ended = True

    async def fills_limit(self) -> bool:
        """Whether the text has L tokens."""
        return self.used >= self.options.limit

    def write(self, *parts: str) -> None:
        """Append to the text."""
        self.layout = replace(self.layout, written=join(self.layout.written, *parts))

    def count_withdrawn(self) -> None:
        """Count the draft that the open step replaces."""
        self.open_step.usage["hallucinated"] = 1

    async def fit(self, layout: Layout) -> Layout:
        """Return the layout, shortened until prompt and output fit the model's context."""
        context = self.able.context_tokens
        if context is None:
            return layout
        room = context - self.options.limit - SLACK
        for candidate in chain([layout], layout.shorter()):
            text = candidate.prompt().text
            # a token has at least one byte, so most prompts need not be counted
            if len(text.encode()) <= room or await self.count(text) <= room:
                break
        if candidate != layout:
            self.open_step.flag("shortened")
        return candidate

    async def count(self, text: str) -> int:
        """Return the number of tokens of a text, including the one before it."""
        return await count_tokens(self.open_step, text) + START if text else 0

    # ---- steps

    async def search(self, query: str) -> None:
        """Search in the open step, and replace the passages of the prompt. An empty query is not
        sent, and finds nothing."""
        self.retrievals += 1
        self.layout = replace(self.layout, passages=())
        if query:
            await self.lay(await self.open_step.search(query, self.top_k, shape="best_fields"))
        else:
            self.open_step.flag("no_evidence")

    async def lay(self, found: SearchResult) -> None:
        """Replace the passages of the prompt, and emit as kept what it shows, because nothing
        judges them."""
        lines = [as_data(scored.passage.text) for scored in found.passages]
        texts = tuple(filter(None, lines))  # one without text has no line (METHODS.md §3.2)
        self.found = self.found or bool(texts)
        self.layout = await self.fit(replace(self.layout, passages=texts))
        room, choices = len(self.layout.passages), []
        for scored, line in zip(found.passages, lines, strict=True):
            keep = bool(line) and room > 0
            if keep:
                self.seen[scored.passage.passage_id] = scored.passage
            choices.append(Choice(keep, None if keep else "not shown"))
            room -= bool(line)
        if not self.layout.passages:
            self.open_step.flag("no_evidence")
        await self.open_step.show_passages(found, choices)

    def call(self, most: int | None = None, *, logprobs: bool = False) -> GenerationRequest:
        """Return the call that continues the text by at most `most` tokens (default: L)."""
        return GenerationRequest(
            prompt=self.layout.prompt().text,
            max_tokens=self.options.limit if most is None else most,
            stop=self.stops,
            logprobs=logprobs,
        )

    async def continue_text(self, open_text: Callable[[], T], request: GenerationRequest) -> T:
        """Continue the text in the open step, as tokens of a draft. If a pool's worker is lost, the
        call restarts with another `open_text()`.
        """
        step, written = self.open_step, open_text()

        async def show(text: str) -> None:
            if text:
                await step.emit(Token(role="draft", text=text))

        async def call() -> None:
            async with step.call(self.reader, request) as counted:
                async with closing(counted.deltas):
                    while not written.done and (delta := await step.next(counted)):
                        await show(written.take(delta))
                if written.finish_reason is None:
                    await count_cut(step, counted, request)
            await show("" if written.done else written.finish())

        async def void() -> None:
            nonlocal written
            visible, written = bool(written.kept), open_text()
            if visible:
                await step.emit(Withdraw(role="draft", reason="restart"))

        await with_restarts(call, void)
        sentences = len(self.splitter.sentences(written.text))
        step.usage.update(generations=1, sentences=sentences, hallucinated=0)
        return written

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings of every call."""
        return ("\n",) if self.options.served else ()

    # ---- the end

    async def conclude(self) -> str | None:
        """Extract the answer from the text, after another call if the text has none. If all
        retrievals found nothing, and the settings require it, there is no answer."""
        if self.inquiry.abstains and self.retrievals > 0 and not self.found:
            await self.close()
            return None
        step = self.open_step
        if step.kind != "answer":
            step = await self.open("answer")
        text = await self._concluded(self.layout.written)
        exact = self.options.as_published
        answer = stated_answer(text, exact=exact)
        if self.options.served and self._is_borrowed(answer):
            text = await self._concluded(unconcluded(self.layout.written), RETRY_TEMPERATURE)
            answer = stated_answer(text, exact=exact)
        if answer is None and self.scope.stopped_by == "deadline":
            answer = text or None
        if answer and self._declines(answer):
            step.flag("declined")
            answer = None
        if self._is_borrowed(answer):
            step.flag("prompt_example")
            answer = None if self.options.served else answer
        if not self.retrievals:
            step.flag("closed_book")
        if answer:
            await step.say(answer)
            await verify(step, self.seen.values())
        await self.close()
        return answer or None

    def _declines(self, answer: str) -> bool:
        return read_answer(answer, self.question).declined

    def _is_borrowed(self, answer: str | None) -> bool:
        """Whether an answer is copied from a demonstration. The one that declines is no example."""
        return answer is not None and not self._declines(answer) and self.layout.borrows(answer)

    async def _concluded(self, written: str, temperature: float = 0.0) -> str:
        """Return what was written, with its conclusion."""
        text = cut_overrun(written)
        if self._states(text):
            return text
        passages = self.layout.passages if self.options.keep_passages else ()
        layout = replace(self.layout, passages=passages, written=join(text, CONCLUSION))
        request = GenerationRequest(
            prompt=(await self.fit(layout)).prompt().text,
            max_tokens=ANSWER_TOKENS,
            temperature=temperature,
        )
        with self.scope.limited():
            completion = await self.open_step.ask("reader", request, final=self.open_step.final)
            text = cut_overrun(join(text, CONCLUSION, completion.text))
            if completion.finish == "length" and ends_with(text, completion.text.strip()):
                self.open_step.flag("shortened")
        return text


# ---- tokens of the reader's engine


async def count_tokens(step: OpenStep, text: str) -> int:
    """Return the number of the model's tokens in a text. Four characters count as one token if the
    engine does not report its tokens.
    """
    if not gives_signals(step.inquiry.roles.reader.generator):
        return -(-len(text) // LETTERS_PER_TOKEN)
    return len(await token_spans(step, text))


async def token_spans(step: OpenStep, text: str) -> tuple[Span, ...]:
    """Return the spans of the model's tokens in a text."""
    role = step.inquiry.roles.reader
    return await step.timed(signals_of(role).token_spans(text, role.model))


def gives_signals(generator: Generator) -> TypeGuard[SignalGenerator]:
    return isinstance(generator, SignalGenerator) and generator.capabilities.token_signals


def signals_of(role: Role) -> SignalGenerator:
    """Return the signals of the reader's engine. Raises ValueError if it has none, which should
    have been checked before the question began."""
    if not gives_signals(role.generator):
        raise ValueError(f"the engine {role.generator.name!r} does not provide token signals")
    return role.generator


async def count_cut(step: OpenStep, counted: EngineCall, request: GenerationRequest) -> None:
    """Count a call that was ended early, so that its engine never reported its usage, or only what
    was used so far. The unused part of its tokens counts as saved."""
    written = counted.pieces
    if counted.usage is None:
        tokens = await count_tokens(step, request.prompt or "") + 1
        counted.see_tokens(0, TokenUsage(tokens, written))
    if step.inquiry.metrics:
        left = max(0, request.max_tokens - written)
        step.inquiry.metrics.count("saved_tokens_total", by=left)


# ---- the baselines of fixed windows


class FixedLength(Drafting):
    """FLR: searches for the last n tokens, and writes the next n from what was found.

    Each round is a step `retrieve`: `query`, `passages`, and as `answer` the window that the
    model then writes. The first query is the question, every other the window before.
    """

    name: ClassVar[LoopName] = "fixed_length"
    query: str | None = None
    finish: FinishReason | None = None  # how the newest window ended

    def open_window(self) -> Continuation:
        return Continuation()

    @property
    def window(self) -> int | None:
        """The most tokens of a window; None for L."""
        return WINDOW

    @property
    def answered(self) -> bool:
        return states_answer(self.layout.written, self.finish, self.splitter)

    async def round(self) -> None:
        """Retrieve and write a window; if no retrieval is left, write the rest of the text."""
        if not self.may_retrieve:
            return await self._rest()
        step = await self.open("retrieve")
        await self.search(self.question.strip() if self.query is None else self.query)
        self.query = await self._write_window(self.open_window, self.window)
        step.answer = self.query or None
        return None

    async def _rest(self) -> None:
        step = await self.open("answer")
        if text := await self._write_window(Continuation):
            await step.emit(ThoughtWritten(text=text))
        self.scope.stopped_by, self.ended = "max_steps", True

    async def _write_window(
        self, open_window: Callable[[], Continuation], most: int | None = None
    ) -> str:
        """Append a window to the text, and return it. One that was cut may end within a word."""
        written = await self.continue_text(open_window, self.call(most))
        text = self.layout.written
        if written.whole and self.finish == "length":
            text = glue(text, "".join(piece.text for piece in written.pieces))
        else:
            text = join(text, written.kept)
        self.layout = replace(self.layout, written=text)
        self.used += len(written.tokens)
        self.finish = written.finish_reason
        self.ended = written.over
        return written.kept


class FixedSentence(FixedLength):
    """FSR: searches for the last sentence, and writes the next one from what was found."""

    name = "fixed_sentence"
    window = None

    def open_window(self) -> Continuation:
        return Continuation(self.splitter)


def glue(text: str, window: str) -> str:
    """Append a window that follows directly, possibly within a word: its white space is kept."""
    return join(text, window) if window[:1].isspace() or not text else text + window.rstrip()


def states_answer(text: str, finish: FinishReason | None, splitter: Splitter) -> bool:
    """Whether a text states its answer. If its window was cut, the sentence with the answer must be
    complete.
    """
    stated = at_answer(text)
    if stated is None or finish != "length":
        return stated is not None
    statement = stated[1]
    return len(splitter.sentences(statement)) > 1 or statement.rstrip().endswith((".", "!", "?"))
