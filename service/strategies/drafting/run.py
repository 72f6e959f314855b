"""The state of a question that is answered by drafts, and its rounds (METHODS.md §3.2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, Self

import anyio.to_thread

from service.answer.events import TokenRole
from service.answer.inquiry import Inquiry, OpenStep, Scope
from service.core.domain import StepKind, StoppedBy
from service.core.errors import LimitReached
from service.prompts.examples import is_example
from service.strategies.drafting.calls import count_tokens
from service.strategies.drafting.chain import declines, is_answered, join
from service.strategies.drafting.layout import Layout, opening_layout
from service.text.tagging import Splitter, SplitterName, open_splitter

START: Final = 1  # the token that an engine puts before a prompt
MAX_RETRIEVALS: Final = 8
SLACK: Final = 2  # tokens that the ends of a prompt may add to those of its text


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """The options of the methods that draft (METHODS.md §3.4, §6 #1).

    `limit` is L, the maximum number of tokens of a draft and of the complete text. With
    `cut_drafts`, a draft ends at its first line break. With `may_decline`, a demonstration shows
    how to state that no answer was found. With `keep_examples`, an answer that is an example of the
    prompt is accepted. With `keep_passages`, passages stay in the prompt until others are found.
    """

    limit: int = 128
    max_retrievals: int | None = None
    cut_drafts: bool = False
    may_decline: bool = False
    keep_examples: bool = True
    keep_passages: bool = False
    splitter: SplitterName = "own"


def baseline_options(inquiry: Inquiry) -> DraftOptions:
    """Return the options of the baselines: those of DRAGIN's profile `service`, but passages stay.
    The request's `max_steps`, if given, is the maximum number of retrievals."""
    return DraftOptions(
        limit=inquiry.settings.dragin.max_tokens,
        max_retrievals=inquiry.request.max_steps or MAX_RETRIEVALS,
        cut_drafts=True,
        may_decline=True,
        keep_examples=False,
        keep_passages=True,
    )


@dataclass(slots=True, kw_only=True)
class DraftingRun:
    """A question in progress.

    `layout.written` is the text so far, `layout.passages` those of the newest retrieval. `step` is
    the open step; `seen`: some passage was found.
    """

    scope: Scope
    question: str
    as_role: TokenRole
    options: DraftOptions
    splitter: Splitter
    layout: Layout
    step: OpenStep
    retrievals: int = 0
    seen: bool = False
    ended: bool = False
    stopped_by: StoppedBy = "answer"
    _counted: dict[str, int] = field(default_factory=dict)  # demonstrations, in tokens

    @classmethod
    async def begin(
        cls, scope: Scope, question: str, as_role: TokenRole, options: DraftOptions, **own: Any
    ) -> Self:
        """Return the state before the first step; `own` are the further fields of a subclass."""
        templates = scope.inquiry.roles.reader.templates
        return cls(
            scope=scope,
            question=question,
            as_role=as_role,
            options=options,
            splitter=await anyio.to_thread.run_sync(open_splitter, options.splitter),
            layout=opening_layout(templates, question.strip(), may_decline=options.may_decline),
            step=OpenStep(scope.inquiry, "", "answer"),
            **own,
        )

    @property
    def inquiry(self) -> Inquiry:
        return self.scope.inquiry

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings of every call."""
        return ("\n",) if self.options.cut_drafts else ()

    @property
    def may_retrieve(self) -> bool:
        most = self.options.max_retrievals
        return most is None or self.retrievals < most

    def wants_search(self, draft: str) -> bool:
        """Whether a draft declines before anything was searched. A model that is certain that it
        does not know has no doubtful word, so nothing else would start a retrieval.
        """
        undecided = self.options.may_decline and self.may_retrieve and not self.retrievals
        return undecided and declines(join(self.layout.written, draft))

    def borrows(self, text: str) -> bool:
        """Whether the model copied `text`, or a name in it, from a demonstration, and neither the
        question nor the passages have it. The model's own earlier words do not count."""
        shown = "\n".join([self.question, *self.layout.passages])
        return is_example(text, self.layout.shots(), shown)

    @property
    def answered(self) -> bool:
        """Whether the text states its answer."""
        return is_answered(self.layout.written)

    @property
    def unfounded(self) -> bool:
        """Whether all retrievals found nothing and the settings require abstaining then."""
        return self.inquiry.abstains and self.retrievals > 0 and not self.seen

    async def rounds(self, round: Callable[[], Awaitable[None]]) -> None:
        """Repeat `round` until the text is complete or a limit of the question is reached."""
        try:
            while not self.ended:
                if why := self.inquiry.budget.exhausted():
                    self.stopped_by = why
                    break
                before = len(self.layout.written)
                await round()
                await self._check_end(before)
        except LimitReached as limit:
            self.stopped_by = limit.stopped_by

    async def _check_end(self, before: int) -> None:
        """Check for the end (line 12); `before` is the length of the text when the round began."""
        if self.ended or self.answered:
            self.ended = True
        elif await self.fills_limit():
            self.stopped_by, self.ended = "budget", True
        elif len(self.layout.written) <= before:
            self.step.flag("no_progress")
            self.ended = True

    async def fills_limit(self) -> bool:
        """Whether the text, with the token before it, has more than L tokens."""
        text, limit = self.layout.written, self.options.limit
        return len(text.encode()) + SLACK > limit and await self.count(text) > limit

    async def open(self, kind: StepKind) -> None:
        """End the open step and start the next; a step without an id was never shown."""
        if self.step.id:
            await self.step.end()
        self.step = self.scope.step(kind, self.question)
        await self.step.start()

    def write(self, *parts: str) -> None:
        """Append to the text."""
        self.layout = replace(self.layout, written=join(self.layout.written, *parts))

    def count_sentences(self, generated: str) -> None:
        self.step.generated(len(self.splitter.sentences(generated)))

    def count_withdrawn(self) -> None:
        """Count the draft that the open step replaces."""
        self.step.usage = self.step.usage.model_copy(update={"hallucinated": 1})

    async def count(self, text: str) -> int:
        """Return the number of tokens of a text, including the one before it."""
        return await count_tokens(self.step, text) + START if text else 0

    async def fit(self, layout: Layout) -> Layout:
        """Return the layout, shortened until prompt and output fit the model's context."""
        context = self.inquiry.roles.reader.generator.capabilities.context_tokens
        if context is None:
            return layout
        room = context - self.options.limit - SLACK
        for candidate in chain([layout], layout.shorter()):
            if await self._fits(candidate, room):
                break
        if candidate != layout:
            self.step.flag("shortened")
        return candidate

    async def _fits(self, layout: Layout, room: int) -> bool:
        """Whether the layout fits. The engine counts tokens only if the number of bytes does not
        decide (a token has at least one byte). The demonstrations, most of a prompt and always the
        same, are counted once.
        """
        shots = layout.shots()
        rest = layout.prompt().text[len(shots) :]
        if len(shots.encode()) + len(rest.encode()) <= room:
            return True
        if shots not in self._counted:
            self._counted[shots] = await self.count(shots)
        room -= self._counted[shots] + SLACK
        return len(rest.encode()) <= room or await self.count(rest) <= room
