"""Passages that a loop collects over several retrievals, their presentation in a prompt, and the
answer that is read from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from service.answer.calls import Role
from service.answer.events import Judgement, RetrievedPassage, TokenRole
from service.answer.inquiry import Inquiry, OpenStep, Scope
from service.core.domain import StoppedBy
from service.prompts.examples import is_example
from service.prompts.templates import PassageText
from service.retrieval.base import SearchResult
from service.strategies.anrag import RelevanceChoice
from service.strategies.base import Outcome
from service.strategies.drafting.layout import Layout, as_data
from service.strategies.last_resort import TOKENS_PER_LETTER, best_first
from service.strategies.revelator.generation import write_answer

AGAIN: Final = "collected before"
FULL: Final = "the collection is full"


@dataclass(frozen=True, slots=True)
class CollectedPassage:
    """A passage, the step that found it first, and the number of that retrieval."""

    passage: RetrievedPassage
    step: str
    round: int


@dataclass(slots=True)
class Collected:
    """Passages in the order in which they were found, each once; `most` of them, or all."""

    most: int | None = None
    found: list[CollectedPassage] = field(default_factory=list)
    rounds: int = 0

    def add(self, step: str, result: SearchResult) -> list[RelevanceChoice]:
        """Add the result of a retrieval. Returns for each hit whether it was added."""
        self.rounds += 1
        choices: list[RelevanceChoice] = []
        for hit in result.passages:
            passage = RetrievedPassage.of(hit)
            if any(_same(passage, known.passage) for known in self.found):
                choices.append(RelevanceChoice(False, AGAIN))
            elif self.most is not None and len(self.found) >= self.most:
                choices.append(RelevanceChoice(False, FULL))
            else:
                self.found.append(CollectedPassage(passage, step, self.rounds))
                choices.append(RelevanceChoice(True, "collected"))
        return choices

    @property
    def passages(self) -> list[RetrievedPassage]:
        return [found.passage for found in self.found]

    def newest(self, count: int) -> list[RetrievedPassage]:
        """The best-ranked passages of the newest retrievals, in the order in which they were
        found."""
        first = sorted(self.found, key=lambda found: (-found.round, found.passage.rank))
        chosen = first[:count]
        return [found.passage for found in self.found if found in chosen]


def _same(one: RetrievedPassage, other: RetrievedPassage) -> bool:
    alike = (one.title, one.text) == (other.title, other.text)
    return one.passage_id == other.passage_id or alike


async def collect(step: OpenStep, query: str, top_k: int, collected: Collected) -> None:
    """Search in an open step, and collect what is found. Raises as `OpenStep.search`."""
    before = len(collected.found)
    result = await step.search(query, top_k)
    choices = collected.add(step.id, result)
    await step.show_passages(result, *zip(*choices, strict=True) if choices else ((), ()))
    if len(collected.found) == before:
        step.flag("no_new_evidence" if before else "no_evidence")


def borrows(layout: Layout, question: str, text: str) -> bool:
    """Whether the model copied `text`, or a name in it, from a demonstration of the prompt, and
    neither the question nor the passages contain it.
    """
    return is_example(text, layout.shots(), "\n".join([question, *layout.passages]))


def with_passages(
    layout: Layout, collected: Collected, reader: Role, max_tokens: int
) -> tuple[Layout, list[RetrievedPassage]]:
    """Return the layout with the newest passages that fit the reader's context, beside an output of
    `max_tokens`, and these passages. If a single passage is too long, it is shortened.
    """
    able, count = reader.generator.capabilities, len(collected.found)
    most = min(count, able.passages or count)
    shown = [collected.newest(number) for number in range(most, 0, -1)] or [[]]
    layouts = [replace(layout, passages=passage_lines(passages)) for passages in shown]
    if able.context_tokens is None:
        return layouts[0], shown[0]
    room = (able.context_tokens - max_tokens) / TOKENS_PER_LETTER
    shorter = ((each, shown[-1]) for each in layouts[-1].shorter())
    candidates = list(chain(zip(layouts, shown, strict=True), shorter))
    fitting = (each for each in candidates if len(each[0].prompt().text.encode()) <= room)
    chosen, passages = next(fitting, candidates[-1])
    return chosen, passages if chosen.passages else []


def passage_lines(passages: Sequence[RetrievedPassage]) -> tuple[str, ...]:
    """Return ``Title: text`` of each passage as data, one line each."""
    texts = (f"{found.title}: {found.text}" if found.title else found.text for found in passages)
    return tuple(map(as_data, texts))


async def answer_from_collected(
    scope: Scope,
    question: str,
    collected: Collected,
    as_role: TokenRole,
    stopped_by: StoppedBy,
) -> Outcome:
    """Answer from the collected passages, in a separate step: best ranks first, as many as the
    reader's model can take. Without any passage the answer is from memory if `answers.no_evidence`
    allows it, else there is none.
    """
    reader = scope.inquiry.roles.reader
    if not collected.found and scope.inquiry.abstains:
        return Outcome(None, stopped_by)
    able = reader.generator.capabilities
    shown = best_first(collected.passages, able.passages, able.context_tokens)
    step = scope.step("answer", question)
    await leave_out(scope.inquiry, collected, shown)
    await step.start()
    if not shown:
        step.flag("closed_book")
    elif len(shown) < min(able.passages or len(collected.found), len(collected.found)):
        step.flag("shortened")
    texts = [PassageText(passage.title, passage.text) for passage in shown]
    templates = reader.templates
    prompt = templates.answer(question, texts) if texts else templates.closed(question)
    await write_answer(step, prompt, as_role, closed=not texts)
    await step.end()
    return Outcome(step.answer, stopped_by if step.stopped_by == "answer" else step.stopped_by)


async def leave_out(
    inquiry: Inquiry, collected: Collected, shown: Sequence[RetrievedPassage]
) -> None:
    """Emit which passages the reader is not shown."""
    reason = f"not among the {len(shown)} that the reader's model has room for"
    for found in collected.found:
        if found.passage not in shown:
            judgement = Judgement(
                step=found.step, passage_id=found.passage.passage_id, kept=False, reason=reason
            )
            await inquiry.emit(judgement)
