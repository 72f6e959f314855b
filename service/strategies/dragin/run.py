"""What a DRAGIN run knows, and the small things that all its parts do."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from service.answer.events import TokenRole
from service.answer.inquiry import Inquiry, OpenStep, Scope
from service.core.domain import StepKind, StoppedBy
from service.prompts.examples import is_example
from service.strategies.drafting import token_spans
from service.strategies.dragin.answers import declines
from service.strategies.dragin.options import Options
from service.strategies.dragin.prompts import Layout
from service.strategies.dragin.words import join
from service.text.tagging.base import Splitter, Tagger

START: Final = 1  # token that an engine puts before a prompt
SLACK: Final = 2  # tokens that a prompt's ends may cost beyond its own text's


@dataclass(slots=True)
class Run:
    """`layout.written` is the text so far, `layout.passages` those of the newest retrieval. `step`
    is the open step; `seen`: some passage was found."""

    scope: Scope
    question: str
    as_role: TokenRole
    options: Options
    tagger: Tagger
    splitter: Splitter
    layout: Layout
    step: OpenStep
    retrievals: int = 0
    seen: bool = False
    ended: bool = False
    stopped_by: StoppedBy = "answer"
    _counted: dict[str, int] = field(default_factory=dict)  # demonstrations, in tokens

    @property
    def inquiry(self) -> Inquiry:
        return self.scope.inquiry

    @property
    def stops(self) -> tuple[str, ...]:
        return ("\n",) if self.options.cut_drafts else ()

    @property
    def may_retrieve(self) -> bool:
        most = self.options.max_retrievals
        return most is None or self.retrievals < most

    def wants_search(self, draft: str) -> bool:
        """Whether a draft declines before anything was searched, as a model may that is sure of
        not knowing: no word of it is in doubt, so none would ask for a retrieval."""
        undecided = self.options.may_decline and self.may_retrieve and not self.retrievals
        return undecided and declines(join(self.layout.written, draft))

    def borrows(self, text: str) -> bool:
        """Whether a text of the model's is a demonstration, or has a name from one that neither the
        question nor the passages hold; the model's own words before it do not count."""
        return is_example(
            text, self.layout.shots(), "\n".join([self.question, *self.layout.passages])
        )

    @property
    def unfounded(self) -> bool:
        """Retrieved, found nothing at all, and the service abstains then."""
        abstains = self.inquiry.settings.answers.no_evidence == "abstain"
        return abstains and self.retrievals > 0 and not self.seen

    async def open(self, kind: StepKind) -> None:
        """Close the open step and open the next; a step without an id was never shown."""
        if self.step.id:
            await self.step.end()
        self.step = self.scope.step(kind, self.question)
        await self.step.start()

    def write(self, *parts: str) -> None:
        self.layout = replace(self.layout, written=join(self.layout.written, *parts))

    def count_sentences(self, generated: str) -> None:
        self.step.generated(len(self.splitter.sentences(generated)))

    async def count(self, text: str) -> int:
        """Tokens of a text with the one before it."""
        return len(await token_spans(self.step, text)) + START if text else 0

    async def fit(self, layout: Layout) -> Layout:
        """The layout, made shorter until prompt and output fit the model's context."""
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
        """Asks the engine for a count only where bytes, of which a token has one at least, do not
        tell; the demonstrations, most of a prompt and always the same, are counted once."""
        shots = layout.shots()
        rest = layout.prompt().text[len(shots) :]
        if len(shots.encode()) + len(rest.encode()) <= room:
            return True
        if shots not in self._counted:
            self._counted[shots] = await self.count(shots)
        room -= self._counted[shots] + SLACK
        return len(rest.encode()) <= room or await self.count(rest) <= room
